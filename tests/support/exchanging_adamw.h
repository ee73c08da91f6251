// `ExchangingAdamW`: AdamW whose gradient makes every exchange between phases first. It comes back as it was, so each
// step must equal AdamW's to the bit, on any device and mesh.
#pragma once

#include "ops/copy/copy.h"
#include "ops/reduce/sum_squares.h"
#include "optim/adamw_optimizer.h"

namespace hawser::testing {

class ExchangingAdamW : public optim::Optimizer {
 public:
  std::string name() const override { return adamw_->name(); }
  std::vector<optim::StateSlot> slots(const nn::Flat& flat) const override { return adamw_->slots(flat); }
  std::vector<optim::Phase> phases(const nn::Flat&) const override {
    return {{.sums = 2, .gathers = DType::f32}, {.scatters = DType::f32}, {}};
  }
  std::int64_t scalars() const override { return adamw_->scalars(); }
  void prepare(Stream& stream, const optim::Prepare& step) const override { adamw_->prepare(stream, step); }
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    if (u.phase == 0) {
      ops::sum_squares(stream, {.x = u.gradient, .out = u.sent.sums.rows(1, 1), .accumulate = true});
      ops::copy(stream, {.x = u.gradient, .y = u.sent.shard});
      return;
    }
    if (u.phase == 1) {
      const TensorView scratch = u.temp(DType::f32, {u.count});
      ops::copy(stream, {.x = u.received.flat.rows(u.begin, u.count), .y = scratch});
      ops::copy(stream, {.x = scratch, .y = u.sent.flat.rows(u.begin, u.count)});
      return;
    }
    optim::FlatUpdate inner = u;
    inner.gradient = u.received.shard;
    adamw_->update(stream, inner);
  }

 private:
  std::shared_ptr<const optim::Optimizer> adamw_ = optim::make_adamw();
};

}  // namespace hawser::testing

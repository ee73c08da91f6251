#include "optim/ema_optimizer.h"

#include "ops/ema/ema.h"

namespace hawser::optim {

namespace {

class WithEma : public Optimizer {
 public:
  WithEma(std::shared_ptr<const Optimizer> optimizer, double decay) : of_(std::move(optimizer)), decay_(decay) {}

  std::string name() const override { return of_->name(); }
  std::vector<StateSlot> slots(const nn::Flat& flat) const override {
    std::vector<StateSlot> slots = of_->slots(flat);
    slots.push_back({.name = kEmaSlot, .of_weights = true});
    return slots;
  }
  std::vector<Phase> phases(const nn::Flat& flat) const override { return of_->phases(flat); }
  bool needs_matrices(const nn::Flat& flat) const override { return of_->needs_matrices(flat); }
  bool records_amaxes(const nn::Flat& flat) const override { return of_->records_amaxes(flat); }
  std::int64_t scalars() const override { return of_->scalars(); }
  void prepare(Stream& stream, const Prepare& step) const override { of_->prepare(stream, step); }

  void update(Stream& stream, const FlatUpdate& u) const override {
    FlatUpdate of = u;
    of.slots = u.slots.first(u.slots.size() - 1);
    of_->update(stream, of);
    if (static_cast<std::size_t>(u.phase) + 1 != of_->phases(u.flat).size()) return;
    ops::ema(stream,
             {.weight = u.weights, .average = u.slots.back(), .updates = u.updates, .skip = u.skip, .decay = decay_});
  }

 private:
  std::shared_ptr<const Optimizer> of_;
  double decay_;
};

}  // namespace

std::shared_ptr<const Optimizer> with_ema(std::shared_ptr<const Optimizer> optimizer, double decay) {
  return std::make_shared<WithEma>(std::move(optimizer), decay);
}

}  // namespace hawser::optim

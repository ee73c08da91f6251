#include "step/schedule.h"

#include <algorithm>

namespace hawser::step {

namespace {

using parallel::Computation;
using program::Instruction;
using program::Op;
using program::StreamId;

std::vector<int> units_of(const std::vector<models::ParamPlace>& places) {
  std::vector<int> units;
  for (const auto& place : places) units.push_back(place.unit);
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

// Lists the computations of a step; `input` and `partner` are indices into the list.
class Lister {
 public:
  Lister(const models::Model& model, const ScheduleOptions& options) : model_(model), options_(options) {
    for (int layer = 0; layer < model.layers(); ++layer) {
      recomputes_.push_back(nn::recomputes(model.layer(layer), options.policies[static_cast<std::size_t>(layer)]));
    }
  }

  std::vector<Computation> list() {
    const int group = std::max(1, options_.in_flight);
    for (int first = 0; first < options_.micro_batches; first += group) {
      const int end = std::min(first + group, options_.micro_batches);
      std::vector<Pass> passes;
      for (int mb = first; mb < end; ++mb) passes.push_back(forward(mb));
      if (forward_only(options_.purpose)) continue;
      for (Pass& pass : passes) backward(pass);
      for (Pass& pass : passes) delayed_weight_gradients(pass);
    }
    return std::move(list_);
  }

 private:
  struct Pass {
    int micro_batch = 0;
    std::vector<int> forward;  // by layer
    std::vector<int> dy;       // by layer: the computation that writes its dy
    int loss = -1;
  };

  int add(Instruction instruction, std::vector<int> weights, std::vector<int> gradients) {
    list_.push_back({std::move(instruction), std::move(weights), std::move(gradients)});
    return static_cast<int>(list_.size()) - 1;
  }

  Pass forward(int mb) {
    Pass pass{.micro_batch = mb};
    add({.op = Op::load_batch, .micro_batch = mb}, {}, {});
    int x = add({.op = Op::embed, .micro_batch = mb}, units_of(model_.embedding_params()), {});
    for (int layer = 0; layer < model_.layers(); ++layer) {
      x = add({.op = Op::forward, .layer = layer, .micro_batch = mb, .input = x}, units_of(model_.layer_params(layer)),
              {});
      pass.forward.push_back(x);
    }
    const std::vector<int> units = units_of(model_.head_params());
    const bool gradients = !forward_only(options_.purpose);
    const Op head = gradients ? Op::loss_gradient : options_.purpose == Purpose::loss ? Op::loss : Op::logits;
    pass.loss = add({.op = head, .micro_batch = mb, .input = x}, units, gradients ? units : std::vector<int>());
    return pass;
  }

  void backward(Pass& pass) {
    int dy = pass.loss;
    pass.dy.resize(pass.forward.size());
    for (int layer = model_.layers() - 1; layer >= 0; --layer) {
      const int forward = pass.forward[static_cast<std::size_t>(layer)];
      const std::vector<int> units = units_of(model_.layer_params(layer));
      const Instruction instruction{.layer = layer, .micro_batch = pass.micro_batch, .partner = forward};
      if (recomputes_[static_cast<std::size_t>(layer)]) {
        Instruction again = instruction;
        again.op = Op::recompute;
        add(again, units, {});
      }
      Instruction back = instruction;
      back.op = Op::backward;
      back.input = dy;
      pass.dy[static_cast<std::size_t>(layer)] = dy;
      dy = add(back, units, units);
    }
    add({.op = Op::embed_backward, .micro_batch = pass.micro_batch, .input = dy}, {},
        units_of(model_.embedding_params()));
  }

  void delayed_weight_gradients(const Pass& pass) {
    for (int layer = model_.layers() - 1; layer >= 0; --layer) {
      if (!options_.policies[static_cast<std::size_t>(layer)].delay_weight_gradients) continue;
      const std::vector<int> units = units_of(model_.layer_params(layer));
      add({.op = Op::backward_weight,
           .layer = layer,
           .micro_batch = pass.micro_batch,
           .input = pass.dy[static_cast<std::size_t>(layer)],
           .partner = pass.forward[static_cast<std::size_t>(layer)]},
          units, units);
    }
  }

  const models::Model& model_;
  const ScheduleOptions& options_;
  std::vector<bool> recomputes_;  // by layer: a recompute instruction precedes backward
  std::vector<Computation> list_;
};

}  // namespace

program::Program make_program(const models::Model& model, const ScheduleOptions& options) {
  HAWSER_CHECK(static_cast<int>(options.policies.size()) == model.layers(), options.policies.size(), " policies for ",
               model.layers(), " layers");
  program::Program program;
  program.micro_batches = options.micro_batches;
  program.add({.op = Op::begin_step});
  parallel::ShardOptions shard = options.shard;
  shard.micro_batches = options.micro_batches;
  const auto ends = parallel::write_sharded(program, Lister(model, options).list(), shard);
  if (options.purpose == Purpose::train) {
    // In the order in which gradients are complete, so that only the last one's norm remains after its reduction.
    for (const parallel::GradientEnd& end : ends) {
      program.add({.op = Op::grad_norm_partial, .unit = end.unit, .after = {end.instruction}});
    }
    program.add({.op = Op::gradient_norm});
    for (int unit = 0; unit < static_cast<int>(model.units().size()); ++unit) {
      program.add({.op = Op::update, .unit = unit});
    }
  }
  if (options.purpose == Purpose::gradient_norms) {
    program.add({.op = Op::parameter_norms, .after = {ends.back().instruction}});  // all other ends are before it
  }
  program.add({.op = Op::end_step});
  return program;
}

}  // namespace hawser::step

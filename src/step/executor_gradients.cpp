// The executor's instructions after backward: reduction of gradients to shards, their norm, the update.
#include "ops/adamw/adamw.h"
#include "ops/reduce/sum_squares.h"
#include "optim/decay.h"
#include "step/executor.h"

namespace hawser::step {

using program::Instruction;

BufferKey Executor::gradient_key(int flat, int micro_batch) const {
  if (setup_.state->flat(flat).cut.parts == 1) return {Role::shard_gradient, flat, 0};
  return {Role::unsharded_gradient, flat, setup_.local_accumulation ? 0 : micro_batch};
}

DType Executor::reduce_dtype(int flat) const {
  if (setup_.state->flat(flat).cut.parts == 1 || setup_.local_accumulation) return DType::f32;
  return setup_.reduce_dtype;
}

TensorView Executor::flat_gradient(int flat, int micro_batch) {
  const FlatState& state = setup_.state->flat(flat);
  return setup_.buffers->get(gradient_key(flat, micro_batch), reduce_dtype(flat), {state.count * state.cut.parts});
}

TensorView Executor::gradient_shard(int flat) {
  return setup_.buffers->get({Role::shard_gradient, flat, 0}, DType::f32, {setup_.state->flat(flat).count});
}

void Executor::reduce(const Instruction& instruction) {
  comm::Group& group = setup_.mesh->shard_reduce();
  const TensorView shard = gradient_shard(instruction.flat);
  const bool accumulate = !written_.emplace(BufferKey{Role::shard_gradient, instruction.flat, 0}, 0).second;
  const std::int64_t bytes = comm::reduce_scatter_workspace(shard.elements(), reduce_dtype(instruction.flat),
                                                            group.size(), stream(instruction.stream).target());
  const TensorView workspace = bytes > 0 ? temp(instruction, DType::u8, {bytes}) : TensorView();
  group.reduce_scatter(stream(instruction.stream), flat_gradient(instruction.flat, instruction.micro_batch), shard,
                       accumulate, workspace);
}

void Executor::reduce_replicas(const Instruction& instruction) {
  comm::Group& group = setup_.mesh->replicate();
  const TensorView shard = gradient_shard(instruction.flat);
  const std::int64_t bytes =
      comm::all_reduce_workspace(shard.elements(), DType::f32, group.size(), stream(instruction.stream).target());
  const TensorView workspace = bytes > 0 ? temp(instruction, DType::u8, {bytes}) : TensorView();
  group.all_reduce(stream(instruction.stream), shard, comm::Reduction::sum, workspace);
}

void Executor::grad_norm_partial(const Instruction& instruction) {
  ops::sum_squares(stream(instruction.stream), {.x = gradient_shard(instruction.flat),
                                                .out = setup_.state->result().field(&StepResult::sum_squares),
                                                .accumulate = norm_begun_});
  norm_begun_ = true;
}

void Executor::gradient_norm(const Instruction& instruction) {
  Stream& compute = stream(instruction.stream);
  const ModelState& state = *setup_.state;
  const TensorView sum = state.result().field(&StepResult::sum_squares);
  all_reduce_small(instruction, setup_.mesh->shard(), sum);
  ops::clip_coefficient(compute, {.sum_squares = sum,
                                  .max_norm = setup_.optimizer.gradient_clip,
                                  .norm_out = state.result().field(&StepResult::gradient_norm),
                                  .coefficient = state.result().field(&StepResult::clip),
                                  .skip = state.skip()});
}

void Executor::all_reduce_small(const Instruction& instruction, comm::Group& group, const TensorView& data) {
  if (group.size() == 1) return;
  const std::int64_t bytes =
      comm::all_reduce_workspace(data.elements(), data.dtype(), group.size(), stream(instruction.stream).target());
  group.all_reduce(stream(instruction.stream), data, comm::Reduction::sum,
                   bytes > 0 ? temp(instruction, DType::u8, {bytes}) : TensorView());
}

void Executor::update(const Instruction& instruction) {
  const nn::Flat& flat = setup_.model->flat(instruction.flat);
  const FlatState& state = setup_.state->flat(instruction.flat);
  if (!held_.empty()) stream(instruction.stream).wait(held_[static_cast<std::size_t>(instruction.flat)]);
  const TensorView gradient = gradient_shard(instruction.flat);
  const OptimizerSettings& settings = setup_.optimizer;
  const bool rounded = state.compute.raw() != state.stored.raw();
  for (const optim::UpdateRun& run : optim::update_runs(flat, state.begin, state.count)) {
    const auto part = [&](const TensorView& view) { return view.rows(run.begin, run.count); };
    ops::adamw(stream(instruction.stream), {.weight = part(state.stored),
                                            .gradient = part(gradient),
                                            .exp_avg = part(state.exp_avg),
                                            .exp_avg_sq = part(state.exp_avg_sq),
                                            .compute_weight = rounded ? part(state.compute) : TensorView(),
                                            .hyper = setup_.state->record().field(&StepRecord::adam),
                                            .coefficient = setup_.state->result().field(&StepResult::clip),
                                            .skip = setup_.state->skip(),
                                            .beta1 = settings.beta1,
                                            .beta2 = settings.beta2,
                                            .epsilon = settings.epsilon,
                                            .weight_decay = run.decay ? settings.weight_decay : 0.0});
  }
}

}  // namespace hawser::step

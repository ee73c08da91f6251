// The executor's instructions between backward and the updates: reduction of gradients to shards, their norm.
#include "ops/copy/scale.h"
#include "ops/reduce/sum_squares.h"
#include "step/executor_impl.h"
#include "step/weight_scales.h"

namespace hawser::step {

using program::Instruction;

BufferKey Executor::Impl::gradient_key(int flat, int micro_batch) const {
  if (setup_.state->flat(flat).shard.count == 1) return {Role::shard_gradient, flat, 0};
  return {Role::unsharded_gradient, flat, setup_.local_accumulation ? 0 : micro_batch};
}

DType Executor::Impl::reduce_dtype(int flat) const {
  if (setup_.state->flat(flat).shard.count == 1 || setup_.local_accumulation) return DType::f32;
  return setup_.reduce_dtype;
}

TensorView Executor::Impl::flat_gradient(int flat, int micro_batch) {
  const FlatState& state = setup_.state->flat(flat);
  return setup_.buffers->get(gradient_key(flat, micro_batch), reduce_dtype(flat), {state.count * state.shard.count});
}

TensorView Executor::Impl::gradient_shard(int flat) {
  return setup_.buffers->get({Role::shard_gradient, flat, 0}, DType::f32, {setup_.state->flat(flat).count});
}

void Executor::Impl::reduce(const Instruction& instruction) {
  comm::Group& group = setup_.mesh->shard_reduce(setup_.model->flat(instruction.flat).spec().domain);
  const TensorView shard = gradient_shard(instruction.flat);
  const std::int64_t bytes = comm::reduce_scatter_workspace(shard.elements(), reduce_dtype(instruction.flat),
                                                            group.size(), stream(instruction.stream).target());
  group.reduce_scatter(stream(instruction.stream), flat_gradient(instruction.flat, instruction.micro_batch), shard,
                       bound(instruction).accumulate, workspace(instruction, bytes));
}

void Executor::Impl::reduce_replicas(const Instruction& instruction) {
  all_reduce(instruction, setup_.mesh->replicate(), gradient_shard(instruction.flat));
}

void Executor::Impl::reduce_tied(const Instruction& instruction) {
  all_reduce(instruction, setup_.mesh->tied(instruction.tied), gradient_shard(instruction.flat));
}

void Executor::Impl::divide_copies(const Instruction& instruction) {
  ops::scale(stream(instruction.stream), {.x = gradient_shard(instruction.flat), .factor = 1.0 / setup_.copies});
}

void Executor::Impl::grad_norm_partial(const Instruction& instruction) {
  ops::sum_squares(stream(instruction.stream), {.x = gradient_shard(instruction.flat),
                                                .out = setup_.state->result().field(&StepResult::sum_squares),
                                                .accumulate = bound(instruction).accumulate});
}

void Executor::Impl::gradient_norm(const Instruction& instruction) {
  Stream& compute = stream(instruction.stream);
  const ModelState& state = *setup_.state;
  const RecordView<OptimizerProgress>& progress = state.progress();
  const TensorView sum = state.result().field(&StepResult::sum_squares);
  const TensorView norm = state.result().field(&StepResult::gradient_norm);
  all_reduce(instruction, setup_.mesh->model(), sum);
  ops::clip_coefficient(compute, {.sum_squares = sum,
                                  .loss_scale = progress.field(&OptimizerProgress::loss_scale),
                                  .max_norm = setup_.gradient_clip.value_or(0),
                                  .norm_out = norm,
                                  .coefficient = state.result().field(&StepResult::clip),
                                  .skip = state.skip()});
  refuse(instruction);
  judge(instruction);
  // The same step runs again as one that counts: an overflow of its gradients is counted then.
  const bool discarded = setup_.calibrates || setup_.verification == Verification::reference;
  if (!discarded) {
    ops::count_step(compute, {.step = progress.field(&OptimizerProgress::step),
                              .good_steps = progress.field(&OptimizerProgress::good_steps),
                              .loss_scale = progress.field(&OptimizerProgress::loss_scale),
                              .skip = state.skip(),
                              .overflow = static_cast<std::int32_t>(Skip::overflow),
                              .scaling = setup_.loss_scaling});
  }
  setup_.optimizer->prepare(compute, {.learning_rate = state.record().field(&StepRecord::learning_rate),
                                      .step = progress.field(&OptimizerProgress::step),
                                      .skip = state.skip(),
                                      .kept = progress.field(&OptimizerProgress::kept),
                                      .scalars = state.optimizer_scalars()});
}

// After the norm, which is of no use in a step that a layer refuses, and before judge(), which leaves such a step as it
// is. So what decides about a step and counts it sees it once, as it runs again.
void Executor::Impl::refuse(const Instruction& instruction) {
  const bool may = setup_.model->may_refuse(setup_.seams);
  // A reference is compared with a step that runs anyway; it does not run again.
  const bool again = trains() && setup_.runs_refused_again && setup_.verification != Verification::reference;
  if (!may && !again) return;
  const ModelState& state = *setup_.state;
  Stream& compute = stream(instruction.stream);
  const TensorView refusal = state.result().field(&StepResult::refusal);
  if (may) {
    all_reduce(instruction, setup_.mesh->loss(), refusal, comm::Reduction::max);
    all_reduce(instruction, setup_.mesh->tensor(), refusal, comm::Reduction::max);
  }
  ops::RefuseStep args{.refusal = refusal, .skip = state.skip(), .value = static_cast<std::int32_t>(Skip::refused)};
  if (again) {
    args.step = state.record().field(&StepRecord::step);
    args.replay_step = state.progress().field(&OptimizerProgress::replay_step);
    args.waits = static_cast<std::int32_t>(Skip::replay);
  }
  ops::refuse_step(compute, args);
}

TensorView Executor::Impl::workspace(const Instruction& instruction, std::int64_t bytes) {
  return bytes > 0 ? temp(instruction, DType::u8, {bytes}) : TensorView();
}

void Executor::Impl::all_reduce(const Instruction& instruction, comm::Group& group, const TensorView& data,
                                comm::Reduction reduction, std::int64_t label) {
  step::all_reduce(
      group, data, reduction, stream(instruction.stream),
      [&](std::int64_t bytes) { return workspace(instruction, bytes); }, label);
}

}  // namespace hawser::step

// The executor's updates of flats: the phases of the optimizer, and what the ranks exchange between them.
#include "ops/copy/copy.h"
#include "step/executor_impl.h"

namespace hawser::step {

using program::Instruction;
using program::Op;

void Executor::Impl::wait_for_readers(int flat, Stream& stream) {
  if (!held_.empty()) stream.wait(held_[static_cast<std::size_t>(flat)]);
}

void Executor::Impl::state_out(const Instruction& instruction) {
  wait_for_readers(instruction.flat, stream(instruction.stream));
  copy_buffers(instruction);
}

// What layers read, or a buffer that state_out copies to it.
TensorView Executor::Impl::rounded_on_device(const Instruction& instruction) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  return flat.streamed ? staged(instruction, 1 + static_cast<int>(flat.slots.size()), flat.compute) : flat.compute;
}

// What is rounded after the optimizer's last phase, which cannot do it; empty: nothing.
TensorView Executor::Impl::rounded_after(const Instruction& update) {
  const FlatState& flat = setup_.state->flat(update.flat);
  if (!flat.streamed || flat.quantized_after_updates() || flat.compute.raw() == flat.stored.raw()) return {};
  return rounded_on_device(update);
}

void Executor::Impl::update(const Instruction& instruction) {
  const int f = instruction.flat, phase = instruction.phase;
  const nn::Flat& flat = setup_.model->flat(f);
  const FlatState& state = setup_.state->flat(f);
  const Domain domain = flat.spec().domain;
  const bool sliced = domain == Domain::sliced || domain == Domain::kv_copies;
  const int copies = domain == Domain::kv_copies ? setup_.mesh->sizes().kv_copies : 1;
  const bool rounds = !state.streamed && !state.quantized_after_updates() && state.compute.raw() != state.stored.raw();
  Stream& compute = stream(instruction.stream);
  if (phase == 0 && (!state.stored_on_host() || !state.on_host())) wait_for_readers(f, compute);
  const Bound& views = bound(instruction);
  if (!views.sent.sums.empty()) ops::fill(compute, {.y = views.sent.sums});
  if (!views.sent.flat.empty()) ops::fill(compute, {.y = views.sent.flat});  // the optimizer adds to it
  const bool measures = !views.measured.empty();
  if (measures) ops::fill(compute, {.y = state.amax, .value = 0});
  setup_.optimizer->update(compute,
                           {.flat = flat,
                            .begin = state.begin,
                            .count = state.count,
                            .part = state.shard.index,
                            .parts = state.shard.count,
                            .phase = phase,
                            .slice = sliced ? setup_.mesh->coordinate().tensor / copies : 0,
                            .slices = sliced ? setup_.mesh->sizes().tensor / copies : 1,
                            .copies = copies,
                            .weights = views.stored,
                            .gradient = gradient_shard(f),
                            .slots = views.slots,
                            .compute = rounds ? state.compute : TensorView(),
                            .scalars = setup_.state->optimizer_scalars(),
                            .amax = measures ? state.amax : TensorView(),
                            .measured = views.measured,
                            .coefficient = setup_.state->result().field(&StepResult::clip),
                            .skip = setup_.state->skip(),
                            .seed = setup_.seed,
                            .step = setup_.state->record().field(&StepRecord::step),
                            .updates = setup_.state->progress().field(&OptimizerProgress::step),
                            .received = views.received,
                            .sent = views.sent,
                            .temp = [&](DType dtype, const Shape& shape) { return temp(instruction, dtype, shape); }});
  // Of a skipped step, too: the buffer has nothing of the step before.
  if (!views.compute.empty()) ops::cast(compute, {.x = views.stored, .y = views.compute});
  if (!views.last_phase) return;
  if (state.quantized_after_updates()) {
    if (!measures) setup_.state->measure(f, views.stored, compute);
  } else if (state.shard.count == 1) {
    setup_.state->transpose_unsharded(f, compute);
  }
}

void Executor::Impl::exchange_update(const Instruction& instruction) {
  Stream& on = stream(instruction.stream);
  const nn::Flat& flat = setup_.model->flat(instruction.flat);
  const optim::Phase phase = setup_.optimizer->phases(flat)[static_cast<std::size_t>(instruction.phase)];
  const Domain domain = exchanged_over(flat, phase);
  const optim::Exchanged& views = bound(instruction).sent;
  if (instruction.op == Op::optimizer_sum) {
    // Of tensors: of those that tensor ranks slice the ranks of one copy of the model have parts, of experts those with
    // the same ones.
    const Domain over = domain == Domain::expert ? Domain::expert : Domain::replicated;
    all_reduce(instruction, setup_.mesh->shard(over), views.sums);
  } else if (instruction.op == Op::optimizer_gather) {
    setup_.mesh->shard_gather(domain).all_gather(on, views.shard, views.flat);
  } else {
    comm::Group& group = setup_.mesh->shard_reduce(domain);
    const std::int64_t bytes =
        comm::reduce_scatter_workspace(views.shard.elements(), views.shard.dtype(), group.size(), on.target());
    group.reduce_scatter(on, views.flat, views.shard, /*accumulate=*/false, workspace(instruction, bytes));
  }
}

}  // namespace hawser::step

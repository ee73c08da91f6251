// The executor's copies for updates on the host (HostPlacement::updates), and what these updates read and write.
#include "step/executor_impl.h"

namespace hawser::step {

using program::Instruction;
using program::Op;

void Executor::Impl::bind_host_copies(const Instruction& instruction, Bound& bound) {
  if (instruction.op == Op::scalars_out) {
    UpdateScalars device = update_scalars(false), host = update_scalars(true);
    for (std::size_t i = 0; i < device.all().size(); ++i) {
      if (!device.all()[i]->empty()) bound.copies.emplace_back(*device.all()[i], *host.all()[i]);
    }
    return;
  }
  const int flat = instruction.flat;
  if (setup_.state->flat(flat).count == 0) return;
  if (instruction.op == Op::gradient_out) {
    bound.copies.emplace_back(gradient_shard(flat), host_gradient(flat));
  } else {
    bound.copies.emplace_back(host_weights(flat), setup_.state->flat(flat).compute);
  }
}

Executor::Impl::UpdateScalars Executor::Impl::update_scalars(bool on_host) {
  const ModelState& state = *setup_.state;
  UpdateScalars out{.scalars = state.optimizer_scalars(),
                    .coefficient = state.result().field(&StepResult::clip),
                    .skip = state.skip(),
                    .step = state.record().field(&StepRecord::step)};
  int index = 0;
  for (TensorView* const view : out.all()) {
    const BufferKey key{Role::host_scalars, 0, index++};
    if (on_host && !view->empty()) *view = setup_.buffers->get(key, view->dtype(), view->shape());
  }
  return out;
}

TensorView Executor::Impl::host_gradient(int flat) {
  return setup_.buffers->get({Role::host_gradient, flat, 0}, DType::f32, {setup_.state->flat(flat).count});
}

TensorView Executor::Impl::host_weights(int flat) {
  const FlatState& state = setup_.state->flat(flat);
  if (state.streamed) return state.compute;
  if (state.stored.dtype() == state.compute.dtype()) return state.stored;
  return setup_.buffers->get({Role::host_weights, flat, 0}, state.compute.dtype(), {state.count});
}

void Executor::Impl::weights_in(const Instruction& instruction) {
  copy_buffers(instruction);
  if (setup_.state->flat(instruction.flat).shard.count == 1) {
    setup_.state->transpose_unsharded(instruction.flat, stream(instruction.stream));
  }
}

}  // namespace hawser::step

// The executor's part of quantized Linears (nn/quantizer.h): scales of x and dy, and what follows the updates.
#include "step/executor_context.h"
#include "step/weight_scales.h"

namespace hawser::step {

using program::Instruction;
using program::Op;

nn::Quantization Executor::Impl::quantization(const Instruction& instruction, nn::Site site, nn::Operand operand) {
  if (instruction.layer < 0) return {};
  const LinearFormat format = setup_.policies[static_cast<std::size_t>(instruction.layer)].format(site);
  if (format == LinearFormat::compute) return {};
  const ModelState& state = *setup_.state;
  nn::Quantization how{
      .format = format, .quantizer = state.options().quantizer.get(), .operand = operand, .scale = {}, .amax = {}};
  HAWSER_CHECK(how.quantizer != nullptr, "a format of Linears needs a quantizer");
  if (setup_.verification == Verification::reference) {
    how.records_only = true;
    return how;
  }
  if (format != LinearFormat::fp8_delayed) return how;
  const std::int64_t index = state.site_index({instruction.layer, site, operand});
  if (trains()) how.scale = state.sites().scales.rows(index, 1);
  how.records_only = setup_.calibrates;
  const Op recording = operand == nn::Operand::x ? Op::forward : Op::backward;
  if (trains() && instruction.op == recording) {
    how.amax = state.sites().amax.rows(index, 1);
    how.saturated = state.sites().saturated.rows(index, 1);
    how.elements = &site_elements_[static_cast<std::size_t>(index)];
  }
  return how;
}

void Executor::Impl::judge(const Instruction& instruction) {
  const ModelState& state = *setup_.state;
  if (state.sites().amax.empty() || setup_.verification == Verification::reference) return;
  Stream& compute = stream(instruction.stream);
  // The layers of the step are enqueued.
  const std::vector<float> elements(site_elements_.begin(), site_elements_.end());
  link_.upload(compute, "write_site_elements", state.sites().elements, elements.data(), state.sites().elements.bytes());
  all_reduce(instruction, setup_.mesh->loss(), state.sites().records, comm::Reduction::max);
  all_reduce(instruction, setup_.mesh->tensor(), state.sites().records, comm::Reduction::max);
  if (setup_.calibrates) return;
  const RecordView<OptimizerProgress>& progress = state.progress();
  state.options().quantizer->judge(compute, {.amax = state.sites().amax,
                                             .scales = state.sites().scales,
                                             .saturated = state.sites().saturated,
                                             .elements = state.sites().elements,
                                             .step = state.record().field(&StepRecord::step),
                                             .replay_step = progress.field(&OptimizerProgress::replay_step),
                                             .replays = progress.field(&OptimizerProgress::replays),
                                             .skip = state.skip(),
                                             .worst = state.result().field(&StepResult::saturation),
                                             .worst_site = state.result().field(&StepResult::saturated_site),
                                             .saturates = static_cast<std::int32_t>(Skip::saturated),
                                             .waits = static_cast<std::int32_t>(Skip::replay),
                                             .refused = static_cast<std::int32_t>(Skip::refused)});
}

void Executor::Impl::scale_update(const Instruction& instruction) {
  const ModelState& state = *setup_.state;
  Stream& compute = stream(instruction.stream);
  if (!held_.empty()) compute.wait(held_.back());
  for (int f = 0; f < state.flats(); ++f) {
    if (state.flat(f).quantized_after_updates()) wait_for_readers(f, compute);
  }
  if (!state.sites().scales.empty()) {
    state.options().quantizer->update_scales(
        compute, {.amax = state.sites().amax,
                  .history = state.sites().history,
                  .scales = state.sites().scales,
                  .skip = state.skip(),
                  .refreshes = static_cast<std::int32_t>(setup_.calibrates ? Skip::no_target : Skip::saturated)});
  }
  scale_weights(state, *setup_.mesh, compute, [&](std::int64_t bytes) { return workspace(instruction, bytes); });
}

void Executor::Impl::quantize_weights(const Instruction& instruction) {
  const Bound& views = bound(instruction);
  setup_.state->refresh_compute(instruction.flat, views.stored, views.compute, stream(instruction.stream));
  if (setup_.state->flat(instruction.flat).shard.count == 1) {
    setup_.state->transpose_unsharded(instruction.flat, stream(instruction.stream));
  }
}

}  // namespace hawser::step

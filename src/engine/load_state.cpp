#include "engine/load_state.h"

#include <algorithm>

#include "engine/host_copy.h"

namespace hawser::engine {

void load(Session& session, checkpoint::Checkpoint& checkpoint, StateScope scope) {
  HostCopy copy(session, scope);
  checkpoint.read(copy.states(StatesFor::load));
  copy.store();
  session.parameters_changed(scope.scales ? Scales::keep : Scales::measure);
}

bool has_scales(Session& session, const checkpoint::Checkpoint& checkpoint) {
  std::vector<StatePart> parts = state_parts(session, {.optimizer = false});
  std::erase_if(parts, [&](const StatePart& part) {
    if (part.flat < 0) return false;
    const step::FlatState& flat = session.state().flat(part.flat);
    return !flat.quantized || part.device.raw() != flat.scales.raw();
  });
  return std::ranges::any_of(named_states(session, parts, StatesFor::load),
                             [&](const NamedState& state) { return checkpoint.find(state.name) != nullptr; });
}

void load_weights(Session& session, OpenModel& open, std::uint64_t seed) {
  if (open.weights) session.load(sources_of(open), seed);
  if (!open.checkpoint) return;
  load(session, *open.checkpoint,
       {.optimizer = false, .frozen = !open.weights, .scales = has_scales(session, *open.checkpoint)});
}

}  // namespace hawser::engine

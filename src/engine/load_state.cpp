#include "engine/load_state.h"

#include "engine/host_copy.h"

namespace hawser::engine {

void load(Session& session, checkpoint::Checkpoint& checkpoint, StateScope scope) {
  HostCopy copy(session, scope);
  checkpoint.read(copy.states(StatesFor::load));
  copy.store();
  session.parameters_changed();
}

void load_weights(Session& session, OpenModel& open, std::uint64_t seed) {
  if (open.checkpoint) return load(session, *open.checkpoint, {.optimizer = false});
  session.load(*open.weights, seed);
}

}  // namespace hawser::engine

#include "step/host_placement.h"

namespace hawser::step {

bool HostPlacement::streams(const models::Model& model, int flat) const {
  const auto names = [&](const std::vector<bool>& flats, const char* what) {
    HAWSER_CHECK(flats.empty() || flats.size() == model.flats().size(), flats.size(), " places for the ", what, " of ",
                 model.flats().size(), " flats");
    return !flats.empty() && flats[static_cast<std::size_t>(flat)];
  };
  const bool of_state = names(state, "state");
  return names(weights, "weights") || (of_state && !model.flat(flat).spec().trainable);
}

}  // namespace hawser::step

#include "plan/offload_text.h"

#include <cmath>
#include <set>
#include <vector>

#include "base/text.h"
#include "nn/row_tiles.h"
#include "plan/candidate.h"

namespace hawser::plan {

namespace {

// "all" or "12%" of the elements of the flats that `counts`; "" if none are in `host`.
template <class Counts>
std::string part_of(const models::Model& model, const std::vector<bool>& host, const Counts& counts) {
  double there = 0, all = 0;
  for (std::size_t f = 0; f < model.flats().size(); ++f) {
    const nn::Flat& flat = model.flats()[f];
    if (!counts(flat.spec())) continue;
    all += static_cast<double>(flat.used());
    if (f < host.size() && host[f]) there += static_cast<double>(flat.used());
  }
  if (there == 0) return "";
  return there == all ? "all" : cat(std::max(1L, std::lround(100 * there / all)), "%");
}

}  // namespace

std::string offload_text(const Layout& layout, const models::Model& model) {
  std::vector<std::string> out;
  std::set<int> blocks;
  for (std::size_t layer = 0; layer < layout.policies.size(); ++layer) {
    if (layout.policies[layer].offload) blocks.insert(model.block_of(static_cast<int>(layer)));
  }
  if (!blocks.empty()) out.push_back(cat("activations of ", plural(std::ssize(blocks), "block")));
  const auto trains = [](const nn::FlatSpec& spec) { return spec.trainable; };
  const auto frozen = [](const nn::FlatSpec& spec) { return !spec.trainable; };
  const step::HostPlacement& host = layout.host;
  const auto add = [&](const std::string& part, const char* what) {
    if (!part.empty()) out.push_back((part == "all" ? "the" : part + " of the") + std::string(what));
  };
  add(part_of(model, host.state, trains), " optimizer state");
  add(part_of(model, host.weights, trains), " weights");
  add(part_of(model, host.state, frozen), " frozen weights");
  return joined(out, ", ");
}

std::string tiles_text(const Layout& layout, const models::Model& model) {
  for (std::size_t layer = 0; layer < layout.policies.size(); ++layer) {
    const nn::SavePolicy& policy = layout.policies[layer];
    if (!nn::in_tiles(model.layer(static_cast<int>(layer)), policy)) continue;
    return cat("MLPs in tiles of ", with_commas(policy.tile_rows), " rows");
  }
  return "";
}

std::string useless_tiles(const Recipe& recipe, const models::Model& model) {
  if (recipe.memory.mlp_tile_rows == 0 || takes_tiles(model)) return "";
  return "memory.mlp_tile_rows changes nothing: the model has no MLPs that compute all tokens, only experts";
}

std::string useless_offload(const Recipe& recipe, DeviceKind device) {
  const MemoryRecipe& memory = recipe.memory;
  if (device == DeviceKind::cuda) {
    if (memory.activation_offload || is_automatic(memory)) return "";
    return "memory.activation_offload: auto offloads nothing without memory.activation_checkpointing: auto";
  }
  std::vector<std::string> keys;
  if (memory.activation_offload.value_or(true)) keys.emplace_back("memory.activation_offload");
  if (memory.optimizer_offload.value_or(true)) keys.emplace_back("memory.optimizer_offload");
  if (memory.weight_offload) keys.emplace_back("memory.weight_offload");
  if (keys.empty()) return "";
  return cat(joined(keys, ", "), keys.size() == 1 ? " saves" : " save",
             " nothing on a CPU: host and device memory are one");
}

}  // namespace hawser::plan

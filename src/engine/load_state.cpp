#include "engine/load_state.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/host_copy.h"
#include "models/linear_names.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::engine {

namespace {

// The flats whose weights the state quantizes as they are loaded, and the checkpoint has as they were.
std::vector<int> to_quantize(Session& session, const checkpoint::Checkpoint& checkpoint, const StateScope& scope) {
  std::vector<int> flats;
  for (int f = 0; scope.frozen && f < session.state().flats(); ++f) {
    const step::FlatState& state = session.state().flat(f);
    if (!state.held || !state.quantized_on_load()) continue;
    const nn::Segment& first = session.model().flat(f).params().front().segments.front();
    const checkpoint::SavedTensor* const saved = checkpoint.find(first.name);
    if (saved != nullptr && (saved->dtype == DType::f32 || saved->dtype == DType::bf16)) flats.push_back(f);
  }
  return flats;
}

// Values that have the names of several tensors (nn::Granularity::Kind::gemm_matrix): each tensor's is read on its
// own, and the largest becomes the state's.
class SharedValues {
 public:
  // Gives the boxes of such values in `states` views of their own. The views that they had outlive this.
  explicit SharedValues(std::vector<NamedState>& states) {
    std::map<const std::byte*, std::vector<NamedState*>> by_view;
    for (NamedState& state : states) {
      if (state.boxes.size() == 1 && state.boxes.front().extent.elements() == 1) {
        by_view[state.boxes.front().view.raw()].push_back(&state);
      }
    }
    for (const auto& [raw, sharing] : by_view) {
      if (sharing.size() == 1) continue;
      Value& value = values_.emplace_back();
      value.to = sharing.front()->boxes.front().view;
      for (NamedState* const state : sharing) {
        std::int64_t& read = value.read.emplace_back();
        TensorView& view = state->boxes.front().view;
        view = TensorView(reinterpret_cast<std::byte*>(&read), view.dtype(), view.shape(), DeviceKind::cpu);
        value.views.push_back(view);
        value.names.push_back(state->name);
      }
    }
  }
  // After the boxes were read: writes the largest value of each. A Problem for one of `equal` whose values differ.
  void store(const std::set<std::string>& equal, const std::string& file, Problems& problems) const {
    for (const Value& value : values_) {
      dispatch_float(value.to.dtype(), [&](auto tag) {
        using T = decltype(tag);
        const auto of = [](const TensorView& view) { return static_cast<float>(*view.data<T>()); };
        const auto [least, most] = std::ranges::minmax_element(value.views, {}, of);
        std::memcpy(value.to.raw(), most->raw(), sizeof(T));
        if (of(*least) == of(*most) || !equal.contains(value.names.front())) return;
        problems.add({.file = file,
                      .what = "tensors that are one parameter on this mesh have different scales",
                      .got = cat(of(*least), " to ", of(*most)),
                      .at = models::joined(value.names)});
      });
    }
  }

 private:
  struct Value {
    TensorView to;
    std::deque<std::int64_t> read;  // their memory
    std::vector<TensorView> views;
    std::vector<std::string> names;
  };
  std::deque<Value> values_;
};

// The scales of frozen weights, which are a part of their values.
std::set<std::string> scales_of_frozen(Session& session, const StateScope& scope) {
  std::set<std::string> names;
  for (const StatePart& part : state_parts(session, scope)) {
    if (!part.flat) continue;
    const step::FlatState& flat = session.state().flat(*part.flat);
    if (flat.quantized_after_updates() || part.device.raw() != flat.scales.raw()) continue;
    for (const NamedState& state : named_states(session, {part}, StatesFor::load)) names.insert(state.name);
  }
  return names;
}

}  // namespace

void load(Session& session, checkpoint::Checkpoint& checkpoint, StateScope scope) {
  HostCopy copy(session, scope);
  std::vector<NamedState> states = copy.states(StatesFor::load);
  const std::vector<int> unquantized = to_quantize(session, checkpoint, scope);
  for (const StatePart& part : state_parts(session, scope)) {
    if (!part.flat || std::ranges::find(unquantized, *part.flat) == unquantized.end()) continue;
    for (const NamedState& state : named_states(session, {part}, StatesFor::load)) {
      std::erase_if(states, [&](const NamedState& other) { return other.name == state.name; });
    }
  }
  const SharedValues shared(states);
  checkpoint.read(states);
  Problems problems;
  shared.store(scales_of_frozen(session, scope), checkpoint.folder(), problems);
  problems.throw_if_any();
  copy.store();
  session.load_quantized(unquantized, [&](int flat, std::int64_t first, const TensorView& values) {
    checkpoint.read(nn::value_states(session.model().flat(flat), {}, session.state().flat(flat).begin + first,
                                     values.elements(), values, "", true));
  });
  // The scales in a checkpoint are of its weights, not of their averages.
  session.parameters_changed(scope.scales && !checkpoint.has_preferred() ? Scales::keep : Scales::measure);
}

namespace {

bool in_fp8_without_scales(Session& session, const checkpoint::Checkpoint& checkpoint, int layer, nn::Site site) {
  const LinearFormat format = session.layout().policies[static_cast<std::size_t>(layer)].format(site);
  if (format == LinearFormat::compute) return false;
  if (format == LinearFormat::fp8_delayed) {
    const std::string table = step::scale_table({layer, site, nn::Operand::x});
    return checkpoint.find(table) == nullptr;
  }
  const models::Model& model = session.model();
  for (const int weight : model.layer(layer).linear_weights(site)) {
    const models::ParamIndex& place = model.layer_params(layer)[static_cast<std::size_t>(weight)];
    const nn::Flat& flat = model.flat(place.flat);
    const nn::Param& param = flat.params()[static_cast<std::size_t>(place.index)];
    if (!flat.spec().trainable) continue;  // a checkpoint has none of theirs
    const nn::Segment& first = param.segments.front();
    const NamedState scale{.name = "scale/" + nn::range_name(first),
                           .former_names = {"scale/" + param.name, "scale/" + first.name}};
    if (checkpoint.find(scale) == nullptr) return true;
  }
  return false;
}

}  // namespace

Problems missing_scales(Session& session, const checkpoint::Checkpoint& checkpoint, std::vector<std::string> exclude) {
  Problems out;
  if (!has_scales(session, checkpoint)) return out;
  const std::size_t before = exclude.size();
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(exclude, name) == exclude.end()) exclude.push_back(name);
  };
  std::vector<std::string> modules;
  for (int layer = 0; layer < session.model().layers(); ++layer) {
    for (int s = 0; s < nn::kSites; ++s) {
      const auto site = static_cast<nn::Site>(s);
      if (!in_fp8_without_scales(session, checkpoint, layer, site)) continue;
      const std::vector<std::string> of = models::modules_at(session.model(), layer, site);
      const bool experts = of.front().find("experts.") != std::string::npos;
      for (const std::string& name : experts ? std::vector<std::string>{".*experts.*"} : models::last_parts(of))
        add(name);
      modules.insert(modules.end(), of.begin(), of.end());
    }
  }
  if (exclude.size() == before) return out;
  out.add({.file = checkpoint.folder(),
           .what = "the precision has changed",
           .expected = cat(models::joined(models::last_parts(modules)), " in ", to_string(session.layout().compute)),
           .got = "FP8",
           .at = "precision.fp8.exclude",
           .hint = cat("--set 'precision.fp8.exclude=", nlohmann::json(exclude).dump(),
                       "', or --set output=... for a new run")});
  return out;
}

bool has_scales(Session& session, const checkpoint::Checkpoint& checkpoint) {
  std::vector<StatePart> parts = state_parts(session, {.optimizer = false});
  std::erase_if(parts, [&](const StatePart& part) {
    if (!part.flat) return false;
    const step::FlatState& flat = session.state().flat(*part.flat);
    return !flat.quantized_after_updates() || part.device.raw() != flat.scales.raw();
  });
  return std::ranges::any_of(named_states(session, parts, StatesFor::load),
                             [&](const NamedState& state) { return checkpoint.find(state) != nullptr; });
}

void load_weights(Session& session, OpenModel& open, std::uint64_t seed) {
  if (open.weights) session.load(sources_of(open), seed);
  if (!open.checkpoint) return;
  load(session, *open.checkpoint,
       {.optimizer = false, .frozen = !open.weights, .scales = has_scales(session, *open.checkpoint)});
}

}  // namespace hawser::engine

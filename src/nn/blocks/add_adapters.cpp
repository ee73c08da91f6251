#include <algorithm>
#include <cmath>

#include "nn/blocks/linear.h"

namespace hawser::nn {

AdapterNames adapter_names(const AdapterConfig& config) {
  const std::string suffix = config.name.empty() ? ".weight" : "." + config.name + ".weight";
  return {config.target + ".lora_A" + suffix, config.target + ".lora_B" + suffix,
          config.target + ".lora_magnitude_vector" + (config.name.empty() ? "" : suffix)};
}

namespace {

struct Placed {
  const AdapterTarget* target;
  const AdapterConfig* config;
};

// These adapters share a parameter for their A.
bool share_a(const AdapterConfig& one, const AdapterConfig& other) {
  const bool plain = one.dropout == 0 && other.dropout == 0 && !one.magnitude && !other.magnitude;
  return plain && one.rank == other.rank && one.scale == other.scale && one.name == other.name;
}

// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::vector<Adapter> add_adapters(const std::vector<AdapterConfig>& configs, const std::vector<AdapterTarget>& targets,
                                  std::int64_t inputs, PartOf part, std::vector<Param>& params) {
  const bool row_parallel = part.total > 0;
  const auto all_inputs = static_cast<double>(row_parallel ? part.total : inputs);
  const Initial normal{Initial::Kind::normal, 1.0 / std::sqrt(3.0 * all_inputs)};
  std::vector<Placed> placed;
  for (const AdapterTarget& target : targets) {
    for (const AdapterConfig& config : configs) {
      if (config.target == target.name) placed.push_back({&target, &config});
    }
  }
  const auto add = [&](Param param) {
    for (Segment& segment : param.segments.edit()) {
      const auto has_name = [&](const Segment& other) { return other.name == segment.name; };
      HAWSER_CHECK(std::ranges::none_of(
                       params, [&](const Param& other) { return std::ranges::any_of(other.segments, has_name); }),
                   segment.name, " twice");
      segment.may_be_absent = true;
    }
    params.push_back(std::move(param));
    return static_cast<int>(params.size()) - 1;
  };
  std::vector<Adapter> adapters(placed.size());
  for (std::size_t i = 0; i < placed.size(); ++i) {  // A
    if (adapters[i].a >= 0) continue;
    const AdapterConfig& config = *placed[i].config;
    std::vector<Segment> segments;
    std::string name;
    std::int64_t rows = 0;
    for (std::size_t k = i; k < placed.size(); ++k) {
      if (k > i && (row_parallel || !share_a(config, *placed[k].config))) continue;
      const std::string own = adapter_names(*placed[k].config).a;
      name = k == i ? own : cat(last_part(placed[k].config->target), "+", name);
      segments.push_back({.name = own, .row = rows, .rows = config.rank});
      adapters[k].a = static_cast<int>(params.size());
      adapters[k].a_row = rows;
      rows += config.rank;
    }
    Param param = row_parallel ? sliced_param(name, {rows, inputs}, 1, part, normal, true)
                               : fused_param(name, std::move(segments), {rows, inputs}, normal, true);
    if (!row_parallel) {
      param.flat.domain = Domain::replicated;
      param.flat.partial_gradient = true;
    }
    add(std::move(param));
  }
  for (std::size_t i = 0; i < placed.size(); ++i) {  // B and magnitudes
    const AdapterTarget& target = *placed[i].target;
    const AdapterConfig& config = *placed[i].config;
    const auto rows_of = [&](const std::string& name, const Shape& shape, const Initial& initial, bool decay) {
      Param param = row_parallel ? partial_param(name, shape, initial, decay)
                                 : sliced_param(name, shape, 0, target.part, initial, decay);
      param.segments.edit().front().file.row_order = target.row_order;
      if (target.kv_copies) {
        param.flat.domain = Domain::kv_copies;
        param.flat.partial_gradient = true;
      }
      return param;
    };
    const AdapterNames names = adapter_names(config);
    Adapter& adapter = adapters[i];
    adapter.b = add(rows_of(names.b, {target.outputs, config.rank}, {}, true));
    adapter.rank = config.rank;
    adapter.first_output = target.first_output;
    adapter.outputs = target.outputs;
    adapter.scale = config.scale;
    adapter.dropout = config.dropout;
    if (!config.magnitude) continue;
    const Initial norms{.kind = Initial::Kind::row_norms, .rows_of = target.name + ".weight"};
    Param magnitude = rows_of(names.magnitude, {target.outputs}, norms, false);
    magnitude.flat.gathered = DType::f32;
    adapter.magnitude = add(std::move(magnitude));
  }
  return adapters;
}

}  // namespace hawser::nn

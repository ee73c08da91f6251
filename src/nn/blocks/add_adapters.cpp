#include <algorithm>
#include <cmath>

#include "nn/blocks/linear.h"

namespace hawser::nn {

AdapterNames adapter_names(const AdapterConfig& config) {
  const std::string suffix = config.name.empty() ? ".weight" : "." + config.name + ".weight";
  return {config.target + ".lora_A" + suffix, config.target + ".lora_B" + suffix,
          config.target + ".lora_magnitude_vector" + (config.name.empty() ? "" : suffix)};
}

std::vector<Adapter> add_adapters(const std::vector<AdapterConfig>& configs, const std::vector<AdapterTarget>& targets,
                                  std::int64_t inputs, PartOf part, std::vector<Param>& params) {
  std::vector<Adapter> adapters;
  const bool row_parallel = part.total > 0;
  const auto all_inputs = static_cast<double>(row_parallel ? part.total : inputs);
  const Initial normal{Initial::Kind::normal, 1.0 / std::sqrt(3.0 * all_inputs)};
  for (const AdapterTarget& target : targets) {
    for (const AdapterConfig& config : configs) {
      if (config.target != target.name) continue;
      adapters.push_back({.a = static_cast<int>(params.size()),
                          .b = static_cast<int>(params.size()) + 1,
                          .rank = config.rank,
                          .first_output = target.first_output,
                          .outputs = target.outputs,
                          .scale = config.scale,
                          .dropout = config.dropout});
      const auto [a, b, m] = adapter_names(config);
      HAWSER_CHECK(std::ranges::none_of(params, [&name = a](const Param& param) { return param.name == name; }), a,
                   " twice");
      const Shape shape_a{config.rank, inputs}, shape_b{target.outputs, config.rank};
      params.push_back(row_parallel ? sliced_param(a, shape_a, 1, part, normal, true)
                                    : partial_param(a, shape_a, normal, true));
      params.push_back(row_parallel ? partial_param(b, shape_b, {}, true)
                                    : sliced_param(b, shape_b, 0, target.part, {}, true));
      params.back().segments.front().file.row_order = target.row_order;
      const std::size_t first = params.size() - 2;
      if (config.magnitude) {
        const Initial norms{.kind = Initial::Kind::row_norms, .rows_of = target.name + ".weight"};
        adapters.back().magnitude = static_cast<int>(params.size());
        params.push_back(row_parallel ? partial_param(m, {target.outputs}, norms, false)
                                      : sliced_param(m, {target.outputs}, 0, target.part, norms, false));
        params.back().segments.front().file.row_order = target.row_order;
        params.back().flat.gathered = DType::f32;
      }
      for (std::size_t i = first; i < params.size(); ++i) params[i].segments.front().may_be_absent = true;
    }
  }
  return adapters;
}

}  // namespace hawser::nn

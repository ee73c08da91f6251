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

// Consecutive ranges of a target that one parameter has.
struct Run {
  std::int64_t first_output = 0, outputs = 0;
  bool kv_copies = false;
  std::vector<OutputRange> ranges = {};
};

std::vector<Run> runs_of(const AdapterTarget& target) {
  std::vector<Run> runs;
  for (const OutputRange& range : target.ranges) {
    HAWSER_CHECK(target.ranges.size() == 1 || range.slice.sliced(), target.name,
                 ": several ranges of rows, one without a slice");
    if (runs.empty() || runs.back().kv_copies != range.kv_copies) {
      runs.push_back({.first_output = range.first_output, .kv_copies = range.kv_copies});
    }
    Run& run = runs.back();
    HAWSER_CHECK(range.first_output == run.first_output + run.outputs, target.name, ": a range from row ",
                 range.first_output, ", not ", run.first_output + run.outputs);
    run.ranges.push_back(range);
    run.outputs += range.outputs;
  }
  return runs;
}

// A Param of slices of the global tensor `tensor`, one for each range of a run.
Param param_of(const std::string& name, const std::string& tensor, const Run& run, const Shape& shape,
               const Initial& initial, bool decay) {
  if (run.ranges.size() == 1) {
    Param param = sliced_param(tensor, shape, 0, run.ranges.front().slice, initial, decay);
    param.name = name;
    param.segments.edit().front().range = run.ranges.front().range;
    return param;
  }
  std::vector<Segment> segments;
  std::int64_t row = 0;
  for (const OutputRange& range : run.ranges) {
    segments.push_back(row_segment(tensor, row, range.outputs, shape, range.slice, range.range));
    row += range.outputs;
  }
  return fused_param(name, std::move(segments), shape, initial, decay);
}

// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::vector<Adapter> add_adapters(const std::vector<AdapterConfig>& configs, const std::vector<AdapterTarget>& targets,
                                  std::int64_t inputs, DimSlice slice, std::vector<Param>& params) {
  const bool row_parallel = slice.sliced();
  const auto all_inputs = static_cast<double>(row_parallel ? slice.total : inputs);
  const Initial normal{Initial::Kind::normal, 1.0 / std::sqrt(3.0 * all_inputs)};
  std::vector<Placed> placed;
  for (const AdapterTarget& target : targets) {
    for (const AdapterConfig& config : configs) {
      if (config.target == target.name) placed.push_back({&target, &config});
    }
  }
  const auto expect_new = [&](const std::string& name) {
    const auto has_name = [&](const Segment& segment) { return segment.name == name; };
    HAWSER_CHECK(
        std::ranges::none_of(params, [&](const Param& param) { return std::ranges::any_of(param.segments, has_name); }),
        name, " twice");
  };
  const auto add = [&](Param param) {
    for (Segment& segment : param.segments.edit()) segment.may_be_absent = true;
    params.push_back(std::move(param));
    return static_cast<int>(params.size()) - 1;
  };
  std::vector<Adapter> of(placed.size());
  for (std::size_t i = 0; i < placed.size(); ++i) {  // A
    if (of[i].a >= 0) continue;
    const AdapterConfig& config = *placed[i].config;
    std::vector<Segment> segments;
    std::string name;
    std::int64_t rows = 0;
    for (std::size_t k = i; k < placed.size(); ++k) {
      if (k > i && (row_parallel || !share_a(config, *placed[k].config))) continue;
      const std::string own = adapter_names(*placed[k].config).a;
      expect_new(own);
      name = k == i ? own : cat(last_part(placed[k].config->target), "+", name);
      segments.push_back({.name = own, .row = rows, .rows = config.rank});
      of[k].a = static_cast<int>(params.size());
      of[k].a_row = rows;
      rows += config.rank;
    }
    Param param = row_parallel ? sliced_param(name, {rows, inputs}, 1, slice, normal, true)
                               : fused_param(name, std::move(segments), {rows, inputs}, normal, true);
    if (!row_parallel) {
      param.flat.domain = Domain::replicated;
      param.flat.partial_gradient = true;
    }
    add(std::move(param));
  }
  std::vector<Adapter> adapters;
  for (std::size_t i = 0; i < placed.size(); ++i) {  // B and magnitudes
    const AdapterTarget& target = *placed[i].target;
    const AdapterConfig& config = *placed[i].config;
    const AdapterNames names = adapter_names(config);
    expect_new(names.b);
    if (config.magnitude) expect_new(names.magnitude);
    for (const Run& run : runs_of(target)) {
      const auto rows_of = [&](const std::string& name, Shape shape, const Initial& initial, bool decay) {
        shape[0] = run.outputs;
        const std::string own =
            run.first_output == target.ranges.front().first_output ? name : cat("rows_", run.first_output, "+", name);
        Param param =
            row_parallel ? partial_param(own, shape, initial, decay) : param_of(own, name, run, shape, initial, decay);
        for (Segment& segment : param.segments.edit()) segment.file.row_order = target.row_order;
        if (run.kv_copies) {
          param.flat.domain = Domain::kv_copies;
          param.flat.partial_gradient = true;
        }
        return param;
      };
      Adapter& adapter = adapters.emplace_back(of[i]);
      adapter.b = add(rows_of(names.b, {0, config.rank}, {}, true));
      adapter.rank = config.rank;
      adapter.first_output = run.first_output;
      adapter.outputs = run.outputs;
      adapter.scale = config.scale;
      adapter.dropout = config.dropout;
      if (!config.magnitude) continue;
      const Initial norms{.kind = Initial::Kind::row_norms, .rows_of = target.name + ".weight"};
      Param magnitude = rows_of(names.magnitude, {0}, norms, false);
      magnitude.flat.gathered = DType::f32;
      adapter.magnitude = add(std::move(magnitude));
    }
  }
  return adapters;
}

}  // namespace hawser::nn

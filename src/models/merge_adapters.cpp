#include "models/merge_adapters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "checkpoint/boxes.h"

namespace hawser::models {

namespace {

using Matrix = std::vector<float>;

struct Part {
  nn::AdapterConfig config;
  std::string a, b, magnitude;
};

// By the name of the adapted matrix.
std::map<std::string, std::vector<Part>> parts_of(const Model& model) {
  std::map<std::string, std::vector<Part>> out;
  const auto add = [&](const std::vector<nn::AdapterConfig>& configs) {
    for (const nn::AdapterConfig& config : configs) {
      const nn::AdapterNames names = nn::adapter_names(config);
      out[config.target + ".weight"].push_back({config, names.a, names.b, config.magnitude ? names.magnitude : ""});
    }
  };
  for (const BlockDescription& block : model.description().blocks) {
    add(block.attention.adapters);
    if (!block.moe) add(block.mlp.adapters);
  }
  return out;
}

Matrix read(const StateSource& source, const std::string& name, const Shape& global, std::int64_t first,
            std::int64_t rows) {
  Shape extent = global, offset = global;
  std::int64_t row = 1;
  for (int dim = 0; dim < global.rank(); ++dim) offset[dim] = 0, row *= dim > 0 ? global[dim] : 1;
  extent[0] = rows;
  offset[0] = first;
  Matrix out(static_cast<std::size_t>(rows * row));
  const TensorView view(reinterpret_cast<std::byte*>(out.data()), DType::f32, {rows * row}, DeviceKind::cpu);
  source({{.name = name, .shape = global, .dtype = DType::f32, .boxes = {{offset, extent, view}}}});
  return out;
}

// Rows [first, first + rows) of the merged matrix `global`, whose rows are W's in `w`.
void add_parts(const StateSource& source, const std::vector<Part>& parts, const Shape& global, std::int64_t first,
               std::int64_t rows, Matrix& w) {
  const std::int64_t columns = global[1];
  std::vector<double> sum(w.begin(), w.end()), row(static_cast<std::size_t>(columns));
  for (const Part& part : parts) {
    const std::int64_t rank = part.config.rank;
    const Matrix a = read(source, part.a, {rank, columns}, 0, rank),
                 b = read(source, part.b, {global[0], rank}, first, rows);
    Matrix m;
    if (!part.magnitude.empty()) m = read(source, part.magnitude, {global[0]}, first, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const own = w.data() + r * columns;
      std::fill(row.begin(), row.end(), 0.0);
      for (std::int64_t k = 0; k < rank; ++k) {
        const double factor = part.config.scale * double{b[static_cast<std::size_t>(r * rank + k)]};
        const float* const of_a = a.data() + k * columns;
        for (std::int64_t c = 0; c < columns; ++c) row[static_cast<std::size_t>(c)] += factor * double{of_a[c]};
      }
      if (!m.empty()) {
        double squares = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          double& value = row[static_cast<std::size_t>(c)];
          value += double{own[c]};
          squares += value * value;
        }
        const double factor = squares > 0 ? double{m[static_cast<std::size_t>(r)]} / std::sqrt(squares) : 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          double& value = row[static_cast<std::size_t>(c)];
          value = factor * value - double{own[c]};
        }
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        sum[static_cast<std::size_t>(r * columns + c)] += row[static_cast<std::size_t>(c)];
      }
    }
  }
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(sum[i]);
}

}  // namespace

StateSource merge_adapters(const Model& model, StateSource source) {
  return [parts = parts_of(model), source = std::move(source)](const std::vector<NamedState>& wanted) {
    for (const NamedState& state : wanted) {
      const auto adapted = parts.find(state.name);
      if (adapted == parts.end()) {
        source({state});
        continue;
      }
      HAWSER_CHECK(state.shape.rank() == 2 && state.dtype == DType::f32, state.name, ": merged as ",
                   state.shape.text());
      for (const Box& box : state.boxes) {
        const std::int64_t first = box.offset[0], rows = box.extent[0];
        Matrix merged = read(source, state.name, state.shape, first, rows);
        add_parts(source, adapted->second, state.shape, first, rows, merged);
        if (!std::ranges::all_of(merged, [](float value) { return std::isfinite(value); })) {
          throw UserError(Problem{.what = "a weight with its adapters is not finite", .at = state.name});
        }
        const checkpoint::Region all{{first, 0}, {rows, state.shape[1]}};
        checkpoint::copy_region(checkpoint::region_of(box), {all, reinterpret_cast<std::byte*>(merged.data()), 4},
                                {checkpoint::region_of(box), box.view.raw(), 4},
                                checkpoint::cast_run(DType::f32, DType::f32));
      }
    }
  };
}

}  // namespace hawser::models

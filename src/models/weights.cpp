#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/philox.h"
#include "checkpoint/boxes.h"
#include "models/file_form.h"
#include "models/peft.h"
#include "ops/copy/copy.h"
#include "ops/seed/init.h"

namespace hawser::models {
namespace {

const nn::Flat& flat_of(const Model& model, int flat) {
  HAWSER_CHECK(flat >= 0 && flat < static_cast<int>(model.flats().size()), "flat ", flat, " of ", model.flats().size());
  return model.flat(flat);
}

struct Place {
  const nn::Param& param;
  const nn::Segment& segment;
};
Place place_of(const nn::Flat& flat, const SegmentRange& piece) {
  const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
  return {param, param.segments[static_cast<std::size_t>(piece.segment)]};
}

// Random values of a box. Outside the slice's dim a box has complete dims, or one of several rows: the first elements
// of its rows are equally far apart in the global tensor.
void random_box(const Place& place, std::uint64_t seed, const Box& box, Stream& stream) {
  const auto& [param, segment] = place;
  std::int64_t rows = 1, columns = 1, stride = 1, first = 0;
  for (int dim = 0; dim < segment.global.rank(); ++dim) {
    first = first * segment.global[dim] + box.offset[dim];
    const bool outer = segment.slice && dim < segment.slice->dim;
    (outer ? rows : columns) *= box.extent[dim];
    if (!outer) stride *= segment.global[dim];
  }
  ops::random_normal(stream, {.y = box.view.reshape({rows, columns}),
                              .seed = seed,
                              .name = fnv1a(segment.name),
                              .first_element = first,
                              .row_stride = stride,
                              .std = param.initial.std});
}

void expect_piece(const TensorView& values, std::int64_t count) {
  HAWSER_CHECK(values.elements() == count && values.dense(), "a piece of ", count, " elements in ", values.text());
}

}  // namespace

std::vector<HfTensor> hf_tensors(const Model& model) {
  std::vector<HfTensor> tensors;
  std::set<std::string> known;
  for (std::size_t f = 0; f < model.flats().size(); ++f) {
    const std::vector<nn::Param>& params = model.flats()[f].params();
    for (std::size_t p = 0; p < params.size(); ++p) {
      for (std::size_t s = 0; s < params[p].segments.size(); ++s) {
        const nn::Segment& segment = params[p].segments[s];
        if (!known.insert(segment.name).second) continue;  // another part of the same tensor
        tensors.push_back({.name = segment.name,
                           .shape = segment.global,
                           .file = segment.file,
                           .file_shape = nn::file_shape(segment),
                           .flat = static_cast<int>(f),
                           .param = static_cast<int>(p),
                           .segment = static_cast<int>(s)});
      }
    }
  }
  return tensors;
}

WeightSources::Place WeightSources::find(const std::string& name) const {
  for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder) {
    if (auto found = folder->name_in_files(name))
      return {folder->files, std::move(*found), folder->adapter.has_value()};
  }
  return {nullptr, name};
}

void WeightSources::add_adapter(checkpoint::SafetensorsFolder& folder, const std::string& adapter) {
  Folder added{.files = &folder, .prefix = kPeftPrefix, .adapter = adapter};
  for (const std::string& name : folder.names()) {
    if (auto own = name_of_peft(name, adapter)) added.renamed.emplace(std::move(*own), name);
  }
  folders_.push_back(std::move(added));
}

std::optional<std::string> WeightSources::Folder::name_in_model(const std::string& name) const {
  if (adapter) return name_of_peft(name, *adapter);
  if (!name.starts_with(prefix)) return {};
  return name.substr(prefix.size());
}

std::optional<std::string> WeightSources::Folder::name_in_files(const std::string& name) const {
  if (adapter) {
    const auto found = renamed.find(name);
    return found == renamed.end() ? std::nullopt : std::optional(found->second);
  }
  return files->find(prefix + name) == nullptr ? std::nullopt : std::optional(prefix + name);
}

std::vector<SegmentRange> load_flat(const Model& model, int flat, const WeightSources& sources, std::int64_t begin,
                                    std::int64_t count, const TensorView& values) {
  expect_piece(values, count);
  HAWSER_CHECK(values.device() == DeviceKind::cpu, "weights are read into host memory, not into ", values.text());
  const nn::Flat& of = flat_of(model, flat);
  const TensorView line = values.reshape({count});
  const auto clear = [&](std::int64_t at, std::int64_t elements) {
    const TensorView rest = line.rows(at, elements);
    std::memset(rest.raw(), 0, static_cast<std::size_t>(rest.bytes()));
  };
  std::vector<SegmentRange> absent;
  for (const SegmentRange& piece : segment_ranges(of, begin, count)) {
    const Place place = place_of(of, piece);
    const WeightSources::Place from = sources.find(place.segment.name);
    if (from.files == nullptr) {
      HAWSER_CHECK(place.segment.may_be_absent, "no weights of ", place.segment.name);
      clear(piece.at, piece.count);
      absent.push_back(piece);
      continue;
    }
    for (const Box& box : nn::global_boxes(place.segment, piece, line.rows(piece.at, piece.count))) {
      read_region(*from.files, from.name, place.segment.file, checkpoint::region_of(box), box.view);
    }
  }
  for (const IndexRange& gap : gap_ranges(of, begin, count)) clear(gap.begin, gap.count);
  return absent;
}

StateSource read_weights(const Model& model, const WeightSources& sources) {
  std::unordered_map<std::string, nn::FileForm> forms;
  for (const HfTensor& tensor : hf_tensors(model)) forms.emplace(tensor.name, tensor.file);
  return [forms = std::move(forms), &sources](const std::vector<NamedState>& wanted) {
    for (const NamedState& state : wanted) {
      const WeightSources::Place from = sources.find(state.name);
      HAWSER_CHECK(from.files != nullptr, "no weights of ", state.name);
      for (const Box& box : state.boxes) {
        read_region(*from.files, from.name, forms.at(state.name), checkpoint::region_of(box), box.view);
      }
    }
  };
}

namespace {

// Rows [first, first + rows) of a global matrix in float32, as the sources have them or as they start.
std::vector<float> read_rows(const Model& model, const HfTensor& tensor, std::uint64_t seed,
                             const WeightSources* sources, std::int64_t first, std::int64_t rows) {
  const std::int64_t columns = tensor.shape[1];
  std::vector<float> out(static_cast<std::size_t>(rows * columns));
  const WeightSources::Place from = sources != nullptr ? sources->find(tensor.name) : WeightSources::Place();
  if (from.files != nullptr) {
    const TensorView view(reinterpret_cast<std::byte*>(out.data()), DType::f32, {rows, columns}, DeviceKind::cpu);
    read_region(*from.files, from.name, tensor.file, {{first, 0}, {rows, columns}}, view);
    return out;
  }
  const nn::Initial& initial = model.flat(tensor.flat).params()[static_cast<std::size_t>(tensor.param)].initial;
  HAWSER_CHECK(initial.kind == nn::Initial::Kind::normal, tensor.name, ": norms of rows that are not random");
  const RandomStream random(seed, fnv1a(tensor.name));
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    out[static_cast<std::size_t>(i)] =
        static_cast<float>(initial.std * random.normal(static_cast<std::uint64_t>(first * columns + i)));
  }
  return out;
}

void fill_row_norms(const Model& model, const Place& place, std::uint64_t seed, const WeightSources* sources,
                    const SegmentRange& piece, Stream& stream, const TensorView& y, std::int64_t piece_elements) {
  const std::vector<HfTensor> tensors = hf_tensors(model);
  const auto matrix = std::ranges::find(tensors, place.param.initial.rows_of, &HfTensor::name);
  HAWSER_CHECK(matrix != tensors.end() && matrix->shape.rank() == 2 && matrix->shape[0] == place.segment.global[0],
               place.segment.name, ": norms of the rows of ", place.param.initial.rows_of);
  if (stream.target() == DeviceKind::meta || y.elements() == 0) return;
  std::vector<float> norms;
  const std::int64_t columns = matrix->shape[1];
  const std::int64_t at_once = std::max<std::int64_t>(1, piece_elements / std::max<std::int64_t>(1, columns));
  nn::for_each_global_run(place.segment, piece, [&](std::int64_t global, std::int64_t, std::int64_t count) {
    for (std::int64_t done = 0; done < count; done += at_once) {
      const std::int64_t rows = std::min(at_once, count - done);
      const std::vector<float> values = read_rows(model, *matrix, seed, sources, global + done, rows);
      for (std::int64_t row = 0; row < rows; ++row) {
        double squares = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          const double value = values[static_cast<std::size_t>(row * columns + c)];
          squares += value * value;
        }
        norms.push_back(static_cast<float>(std::sqrt(squares)));
      }
    }
  });
  HAWSER_CHECK(static_cast<std::int64_t>(norms.size()) == y.elements(), place.segment.name, ": ", norms.size(),
               " norms for ", y.text());
  std::vector<Bf16> narrow;
  const void* from = norms.data();
  if (y.dtype() == DType::bf16) {
    for (const float norm : norms) narrow.emplace_back(norm);
    from = narrow.data();
  }
  transfer(stream, {.name = "row_norms", .kind = OpKind::transfer, .accesses = {writes(y)}}, y.raw(),
           static_cast<const std::byte*>(from), y.bytes());
  stream.synchronize();
}

}  // namespace

void initialise_flat(const Model& model, int flat, std::uint64_t seed, std::int64_t begin, std::int64_t count,
                     Stream& stream, const TensorView& values, const WeightSources* sources,
                     std::int64_t piece_elements) {
  expect_piece(values, count);
  const nn::Flat& of = flat_of(model, flat);
  const TensorView line = values.reshape({count});
  for (const SegmentRange& piece : segment_ranges(of, begin, count)) {
    const Place place = place_of(of, piece);
    const TensorView y = line.rows(piece.at, piece.count);
    switch (place.param.initial.kind) {
      case nn::Initial::Kind::normal:
        for (const Box& box : nn::global_boxes(place.segment, piece, y)) random_box(place, seed, box, stream);
        break;
      case nn::Initial::Kind::row_norms:
        fill_row_norms(model, place, seed, sources, piece, stream, y, piece_elements);
        break;
      case nn::Initial::Kind::ones:
      case nn::Initial::Kind::zeros:
        ops::fill(stream, {.y = y, .value = place.param.initial.kind == nn::Initial::Kind::ones ? 1.0 : 0.0});
    }
  }
  for (const IndexRange& gap : gap_ranges(of, begin, count)) {
    ops::fill(stream, {.y = line.rows(gap.begin, gap.count), .value = 0.0});
  }
}

}  // namespace hawser::models

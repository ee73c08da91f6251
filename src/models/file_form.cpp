#include "models/file_form.h"

#include <algorithm>

#include "device/device.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::models {
namespace {

using checkpoint::Region;

// Rows [row, row + rows) of the model are rows [file_row, file_row + rows) of the file (columns if transposed).
struct Run {
  std::int64_t row = 0, file_row = 0, rows = 0;
};

std::vector<Run> runs_of(const nn::FileForm& file, std::int64_t rows) {
  if (file.row_order.empty()) return {{0, 0, rows}};
  std::vector<Run> runs;
  std::int64_t at = 0;
  for (const IndexRange& next : file.row_order) {
    runs.push_back({next.begin, at, next.count});
    at += next.count;
  }
  return runs;
}

// The part of a run in rows [begin, end) of the model.
Run clipped(const Run& run, std::int64_t begin, std::int64_t end) {
  const std::int64_t from = std::max(run.row, begin), to = std::min(run.row + run.rows, end);
  return {from, run.file_row + from - run.row, to - from};
}

// The same in rows of the file.
Run clipped_in_file(const Run& run, std::int64_t begin, std::int64_t end) {
  const std::int64_t from = std::max(run.file_row, begin), to = std::min(run.file_row + run.rows, end);
  return {run.row + from - run.file_row, from, to - from};
}

std::int64_t row_length(const Shape& shape) {
  return shape[0] > 0 ? shape.elements() / shape[0] : 0;
}

// to[r * to_row + c] = from[c * from_row + r]
template <class T>
void transpose(const T* from, std::int64_t from_row, T* to, std::int64_t to_row, std::int64_t rows,
               std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) to[r * to_row + c] = from[c * from_row + r];
  }
}

// Reads a run's rows of the region from a transposed file into `out`, which has the region's rows from `first` on.
void read_transposed(checkpoint::SafetensorsFolder& folder, const std::string& name, const Run& run,
                     const Region& region, const TensorView& out, Device& device, std::int64_t piece_elements) {
  const std::int64_t columns = region.extent[1];
  const std::int64_t at_once = std::max<std::int64_t>(1, piece_elements / std::max<std::int64_t>(1, columns));
  for (std::int64_t done = 0; done < run.rows; done += at_once) {
    const std::int64_t rows = std::min(at_once, run.rows - done);
    const Storage staged(device, out.dtype(), {columns, rows});
    folder.read(name, {.offset = {region.offset[1], run.file_row + done}, .extent = {columns, rows}}, staged.view());
    const std::int64_t to = (run.row + done - region.offset[0]) * columns;
    dispatch_float(out.dtype(), [&](auto tag) {
      using T = decltype(tag);
      transpose(reinterpret_cast<const T*>(staged.view().raw()), rows, reinterpret_cast<T*>(out.raw()) + to, columns,
                rows, columns);
    });
  }
}

}  // namespace

void read_region(checkpoint::SafetensorsFolder& folder, const std::string& name, const nn::FileForm& file,
                 const Region& region, const TensorView& out, std::int64_t piece_elements) {
  if (file == nn::FileForm()) return folder.read(name, region, out);
  HAWSER_CHECK(out.dense() && out.elements() == region.elements(), name, ": box ", region.text(), " into ", out.text());
  const auto device = make_cpu_device();
  const TensorView line = out.reshape({out.elements()});
  const std::int64_t begin = region.offset[0], end = begin + region.extent[0], row = row_length(region.extent);
  for (const Run& whole : runs_of(file, end)) {
    const Run run = clipped(whole, begin, end);
    if (run.rows <= 0) continue;
    if (file.transposed) {
      read_transposed(folder, name, run, region, line, *device, piece_elements);
      continue;
    }
    Region rows = region;
    rows.offset[0] = run.file_row;
    rows.extent[0] = run.rows;
    folder.read(name, rows, line.rows((run.row - begin) * row, run.rows * row));
  }
}

void read_file_rows(const StateSource& source, const HfTensor& tensor, std::int64_t first, std::int64_t rows,
                    const TensorView& out) {
  NamedState wanted{.name = tensor.name, .shape = tensor.shape, .dtype = DType::f32};
  const std::vector<Run> runs = runs_of(tensor.file, tensor.shape[0]);
  const TensorView line = out.reshape({out.elements()});
  if (!tensor.file.transposed) {
    const std::int64_t row = row_length(tensor.shape);
    for (const Run& whole : runs) {
      const Run run = clipped_in_file(whole, first, first + rows);
      if (run.rows <= 0) continue;
      Shape offset = tensor.shape, extent = tensor.shape;
      for (int dim = 0; dim < offset.rank(); ++dim) offset[dim] = 0;
      offset[0] = run.row;
      extent[0] = run.rows;
      wanted.boxes.push_back({offset, extent, line.rows((run.file_row - first) * row, run.rows * row)});
    }
    return source({wanted});
  }
  // Rows of the file are columns of the model.
  const auto device = make_cpu_device();
  const std::int64_t length = tensor.shape[0];
  const Storage staged(*device, DType::f32, {length, rows});
  wanted.boxes.push_back({Shape{0, first}, Shape{length, rows}, staged.view()});
  source({wanted});
  for (const Run& run : runs) {
    transpose(staged.view().data<float>() + run.row * rows, rows, out.data<float>() + run.file_row, length, rows,
              run.rows);
  }
}

}  // namespace hawser::models

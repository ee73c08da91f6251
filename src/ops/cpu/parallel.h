// Parallel loops of CPU kernels. A kernel divides its work into pieces whose results do not depend on the thread, so
// that any number of threads gives the same bits.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "base/units.h"
#include "tensor/dtype_dispatch.h"
#include "tensor/tensor.h"

namespace hawser::ops {

// Calls body(begin, end) over pieces of [0, count), each a multiple of `grain` except the last. body must not throw.
template <class Body>
void parallel_pieces(std::int64_t count, std::int64_t grain, const Body& body) {
  const std::int64_t grains = ceil_div(count, std::max<std::int64_t>(grain, 1));
  const std::int64_t threads = std::min<std::int64_t>(omp_get_max_threads(), grains);
  if (threads <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
  // Always uses the full team: libgomp ends and restarts threads when the team's size changes.
#pragma omp parallel for schedule(static)
  for (std::int64_t piece = 0; piece < threads; ++piece) {
    const std::int64_t begin = piece * grains / threads * grain;
    const std::int64_t end = std::min(count, (piece + 1) * grains / threads * grain);
    if (begin < end) body(begin, end);
  }
}

// Calls body(i) for each i in [0, count), assigned one by one in ascending order. body must not throw.
template <class Body>
void parallel_items(std::int64_t count, const Body& body) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// A view as rows of equal length, `stride` apart.
template <class T>
struct RowsOf {
  T* data = nullptr;
  std::int64_t count = 0, columns = 0, stride = 0;

  T* row(std::int64_t index) const { return data + index * stride; }
};

template <class T>
RowsOf<T> rows_of(const TensorView& view) {
  if (view.empty()) return {};
  if (view.rank() == 0) return {view.data<T>(), 1, 1, 1};
  const std::int64_t count = view.size(0);
  return {view.data<T>(), count, count > 0 ? view.elements() / count : 0, view.stride(0)};
}

// Calls body(row, column, count) over runs of elements that are contiguous in all views, which have the same shape.
template <class Body>
void parallel_runs(std::initializer_list<TensorView> views, const Body& body) {
  const TensorView& shape = *views.begin();
  if (shape.elements() == 0) return;
  if (std::all_of(views.begin(), views.end(), [](const TensorView& view) { return view.dense(); })) {
    parallel_pieces(shape.elements(), 4096,
                    [&](std::int64_t begin, std::int64_t end) { body(std::int64_t{0}, begin, end - begin); });
    return;
  }
  const std::int64_t columns = shape.elements() / shape.size(0);
  parallel_pieces(shape.size(0), std::max<std::int64_t>(1, 4096 / columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row, std::int64_t{0}, columns);
  });
}

}  // namespace hawser::ops

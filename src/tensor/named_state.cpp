#include "tensor/named_state.h"

#include <algorithm>

namespace hawser {

std::vector<Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t count, const TensorView& flat) {
  HAWSER_CHECK(begin >= 0 && count >= 0 && begin + count <= shape.elements(), "elements [", begin, ", ", begin + count,
               ") of ", shape.text());
  HAWSER_CHECK(flat.elements() == count, "a view of ", flat.elements(), " elements for ", count);
  std::vector<Box> boxes;
  const TensorView line = flat.reshape({count});
  std::int64_t at = begin;
  const std::int64_t end = begin + count;
  while (at < end) {
    // Take the largest aligned run that starts at `at`: complete slices of the outermost dim that `at` is aligned to
    // and that fits. Runs first grow, then shrink towards the end, which bounds the number of boxes.
    std::int64_t slice = 1;
    int dim = shape.rank() - 1;
    while (dim > 0 && at % (slice * shape[dim]) == 0 && at + slice * shape[dim] <= end) slice *= shape[dim--];
    Box box;
    std::int64_t rest = at, weight = shape.elements();
    for (int d = 0; d < shape.rank(); ++d) {
      weight /= std::max<std::int64_t>(shape[d], 1);
      box.offset.push_back(rest / weight);
      rest %= weight;
      box.extent.push_back(d > dim ? shape[d] : 1);
    }
    std::int64_t rows = (end - at) / slice;
    if (dim >= 0) {
      rows = std::min(rows, shape[dim] - box.offset[dim]);
      box.extent[dim] = rows;
    } else {
      rows = 1;
    }
    box.view = line.rows(at - begin, rows * slice);
    at += rows * slice;
    boxes.push_back(box);
  }
  return boxes;
}

}  // namespace hawser

// A micro-batch on the host, as one rank gets it, and the bounds that its buffers are planned for.
#pragma once

#include <cstdint>
#include <vector>

namespace hawser::step {

// Row order and tables as in nn::BatchViews; tables are flat, 6 numbers a segment.
struct HostBatch {
  std::vector<std::int32_t> ids, labels, positions;
  std::vector<std::int32_t> squares, rectangles;
  std::vector<std::int32_t> gathered_row;  // empty without context parallelism
  std::vector<std::int32_t> chosen_row;    // one number with Purpose::logits, else empty
};

// Known from the recipe, never from the data.
struct BatchBounds {
  std::int64_t rows = 0;  // T of this rank
  int context = 1;
  std::int64_t squares = 1;  // segments at most
  std::int64_t rectangles = 0;
  std::int64_t uniform_squares = 0;  // as in nn::BatchViews
  bool rectangles_apart = false;
  bool chosen_row = false;  // Purpose::logits
  double square_pairs = 0;  // visible query-key pairs a head at most: what the plan books
  double rectangle_pairs = 0;
};

}  // namespace hawser::step

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
  std::vector<std::int32_t> chosen_rows;   // BatchBounds::chosen_rows at most; what is missing counts as row 0
  std::vector<std::int32_t> kept_row;      // a number each row where keys are kept, else empty
};

// Known from the recipe, never from the data.
struct BatchBounds {
  std::int64_t rows = 0;  // T of this rank
  int context = 1;
  std::int64_t squares = 1;  // segments at most
  std::int64_t rectangles = 0;
  std::int64_t uniform_squares = 0;  // as in nn::BatchViews
  bool rectangles_apart = false;
  std::int64_t chosen_rows = 0;  // Purpose::logits: rows whose logits are wanted
  bool keeps_keys = false;       // nn/kept_keys.h
  double square_pairs = 0;       // visible query-key pairs a head at most: what the plan books
  double rectangle_pairs = 0;
};

}  // namespace hawser::step

// Off-diagonal blocks of attention with a window, as context parallelism makes them (tests only).
#pragma once

#include "ops/testing/attention_reference.h"

namespace hawser::ops::testing {

// Blocks at equal distances: the keys before chunks 1 and 2 of two sequences of 4 chunks of 50 rows.
inline std::vector<Problem> windowed_blocks() {
  const auto problem = [](const char* name, std::int64_t d, std::int64_t window, std::vector<Row> segments,
                          std::vector<StridedBlocks> places) {
    Problem p{name, 200, 400, 4, 2, d, std::move(segments), false, window, DType::bf16, 8};
    p.places = std::move(places);
    return p;
  };
  std::vector<Problem> out;
  for (const std::int64_t d : {64, 128, 256}) {
    out.push_back(problem(
        "a window within a chunk, one sequence that ends early", d, 31,
        {{0, 30, 20, 30, 50, 20}, {50, 30, 70, 30, 100, 70}, {100, 30, 220, 30, 50, 20}, {150, 13, 270, 30, 100, 70}},
        {{2, 50, 30, 100, 70, 30, 200}, {2, 0, 30, 100, 20, 30, 200}}));
  }
  out.push_back(problem("a window of more than a chunk", 64, 76, {{0, 50, 0, 50, 50, 0}, {50, 50, 25, 75, 100, 25}},
                        {{2, 50, 50, 100, 25, 75, 200}, {2, 0, 50, 100, 0, 50, 200}}));
  out.push_back(problem("a window of more than the sequence", 64, 150,
                        {{0, 50, 0, 50, 50, 0}, {50, 50, 0, 100, 100, 0}},
                        {{2, 50, 50, 100, 0, 100, 200}, {2, 0, 50, 100, 0, 50, 200}}));
  return out;
}

// Tables with two halves of 4 rows; the last row of each is unused.
inline std::vector<Problem> windowed_segments() {
  std::vector<Problem> out;
  for (const std::int64_t d : {64, 128, 256}) {
    for (const bool known : d == 64 ? std::vector{false, true} : std::vector{false}) {
      Problem p{cat("a window before pieces of documents", known ? ", host_segments" : ""),
                200,
                400,
                4,
                2,
                d,
                {{0, 40, 60, 40, 100, 60},
                 {170, 20, 330, 30, 40, 0},
                 {50, 25, 150, 40, 190, 150},
                 {0, 0, 0, 0, 0, 0},
                 {100, 20, 300, 10, 10, 0},
                 {130, 31, 310, 9, 9, 0},
                 {161, 9, 330, 30, 31, 1}},
                false,
                41,
                DType::bf16,
                8};
      p.window_halves = true;
      p.host_known = known;
      if (known) {
        for (const Row& row : p.segments) p.host.insert(p.host.end(), row.begin(), row.end());
      }
      out.push_back(std::move(p));
    }
  }
  Problem half = out.front();
  half.name = "a window before pieces of documents, one half is empty";
  for (std::size_t row = 0; row < 4; ++row) half.segments[row] = {};
  out.push_back(half);
  return out;
}

}  // namespace hawser::ops::testing

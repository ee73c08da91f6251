// Forward passes of generation: their shape buckets, layouts and memory.
//
// A pass computes new rows of sequences whose earlier K and V are in the KV cache (nn/kv_cache.h): either a chunk of
// one prompt, or the newest token of each running sequence. Passes are planned for a few numbers of rows (shape
// buckets). A pass runs in the smallest bucket that holds it, padded. All buckets share one arena, of the size of the
// largest, and one state: the weights, and a KV cache of `sequences` * `positions` tokens. Prompts are computed in
// chunks, so that only the KV cache grows with their length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "plan/layout.h"

namespace hawser::generate {

struct CacheSize {
  std::int64_t sequences = 1;  // concurrent sequences; each has a slot
  std::int64_t positions = 1;  // maximum tokens of a sequence, prompt and answer
};

// Maximum rows of a prompt in one pass.
constexpr std::int64_t kChunkRows = 256;

struct ShapeBucket {
  std::int64_t rows = 1;
  std::int64_t sequences = 1;  // maximum number; also the number of logit positions
};

// Buckets of one sequence with 1, 8, 16, ... rows up to the chunk size or the rounded-up positions; buckets of 2, 4,
// ... up to all sequences, with one row each.
std::vector<ShapeBucket> shape_buckets(const CacheSize& size);

// Index of the smallest bucket of one sequence with at least `rows` rows; of `sequences` sequences with one row each.
std::size_t bucket_for_rows(const std::vector<ShapeBucket>& buckets, std::int64_t rows);
std::size_t bucket_for_sequences(const std::vector<ShapeBucket>& buckets, std::int64_t sequences);

// One layout per bucket. `recipe`: precision and memory; its data and mesh are ignored.
std::vector<plan::Layout> pass_layouts(const Recipe& recipe, const models::Model& model, const CacheSize& size,
                                       int threads, DeviceKind device);

// All device memory of a session for these layouts, planned on meta.
std::int64_t planned_bytes(const models::Model& model, const std::vector<plan::Layout>& layouts);

}  // namespace hawser::generate

// The passes that generation is made of, and what they need, before anything is taken.
//
// A pass computes new rows of sequences whose earlier keys and values are kept (nn/kv_cache.h). Rows come in two ways:
// a piece of one prompt, or the newest token of each sequence that runs. Passes are planned for a few numbers of rows
// each (forms); one runs in the smallest form that holds it, the rest is padding. All forms share one arena, which is
// as large as the largest needs, and one state: the weights, and the KV cache of
// `sequences` * `positions` tokens. Prompts go through in chunks, so that memory does not grow with them otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "plan/layout.h"

namespace hawser::generate {

struct CacheSize {
  std::int64_t sequences = 1;  // that run at once: each has a slot
  std::int64_t positions = 1;  // tokens of a sequence at most, prompt and answer
};

// Rows of a prompt that go through at once, at most.
constexpr std::int64_t kChunkRows = 256;

struct ShapeBucket {
  std::int64_t rows = 1;
  std::int64_t sequences = 1;  // at most; as many rows of logits
};

// Of one sequence: 1 row, then 8, 16, ... up to the chunk, at most the positions rounded up. Of several: 2, 4, ... up
// to all of them, a row each.
std::vector<ShapeBucket> shape_buckets(const CacheSize& size);

// The smallest form of one sequence with `rows` rows or more; of `sequences` with a row each.
std::size_t bucket_for_rows(const std::vector<ShapeBucket>& buckets, std::int64_t rows);
std::size_t bucket_for_sequences(const std::vector<ShapeBucket>& buckets, std::int64_t sequences);

// `recipe`: precision and memory; its data and mesh do not count. A layout each form.
std::vector<plan::Layout> pass_layouts(const Recipe& recipe, const models::Model& model, const CacheSize& size,
                                       int threads, DeviceKind device);

// All that a session for these reserves on the device, planned on meta.
std::int64_t planned_bytes(const models::Model& model, const std::vector<plan::Layout>& layouts);

}  // namespace hawser::generate

// Forward steps of generation (step::Purpose::logits): their shape buckets, layouts and memory.
//
// A forward step runs the model once over new tokens (rows) of sequences whose earlier K and V are in the KV cache
// (nn/kv_cache.h): either over a chunk of one prompt, or over the newest token of each running sequence. A shape bucket
// is a number of rows that forward steps are planned for. A forward step runs in the smallest bucket that holds its
// rows, padded to the bucket's. All buckets share one arena, of the size of the largest, and one state: the weights,
// and a KV cache of `sequences` * `positions` slots in each layer. A prompt is computed in chunks, so that only the KV
// cache grows with its length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "config/recipe.h"
#include "plan/layout.h"

namespace hawser::generate {

struct CacheSize {
  std::int64_t sequences = 1;  // concurrent sequences; each has `positions` slots of the KV cache
  std::int64_t positions = 1;  // maximum tokens of a sequence, prompt and answer
};

// The ranks that hold a model together: tensor ranks have slices of it, and with shards each gathers the weights of a
// layer in every pass. The default: this process alone. All ranks compute all sequences: they make the same calls with
// the same arguments. The KV cache of a rank has its key-value heads.
struct Ranks {
  comm::World* world = nullptr;  // null if this process is alone. It outlives what is made with it
  comm::MeshSizes mesh = {};     // without context parallelism and pipeline stages
};

// Maximum tokens of a prompt in one forward step.
constexpr std::int64_t kChunkRows = 256;

struct ShapeBucket {
  std::int64_t rows = 1;       // of all sequences together
  std::int64_t sequences = 1;  // maximum number; also the number of logit positions
};

// All shape buckets, in this order:
//   one sequence       rows 1, 8, 16, 32, ... (doubling) up to the first number >= size.positions, at most kChunkRows
//   several sequences  2, 4, 8, ... (doubling) below n = size.sequences, then n; one row each; none if n is 1
std::vector<ShapeBucket> shape_buckets(const CacheSize& size);

// Index of the smallest bucket for one sequence with at least `rows` rows. InternalError if there is none.
std::size_t bucket_for_rows(const std::vector<ShapeBucket>& buckets, std::int64_t rows);

// Index of the smallest bucket for at least `sequences` sequences with one row each. InternalError if there is none.
std::size_t bucket_for_sequences(const std::vector<ShapeBucket>& buckets, std::int64_t sequences);

// The layout of each bucket, in the same order. `model`: this rank's part. `recipe`: precision and memory; its data and
// mesh are ignored.
std::vector<plan::Layout> pass_layouts(const Recipe& recipe, const models::Model& model, const CacheSize& size,
                                       int threads, DeviceKind device, const Ranks& ranks = {});

// What a session with these layouts reserves on a rank, planned on meta.
struct PassMemory {
  std::int64_t device = 0;  // bytes; on the CPU with `pinned`, which is the same memory there
  std::int64_t pinned = 0;  // of host memory
};
PassMemory planned_memory(const models::Model& model, const std::vector<plan::Layout>& layouts);

}  // namespace hawser::generate

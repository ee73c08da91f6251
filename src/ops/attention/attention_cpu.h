// CPU backend of attention. Arguments are already checked.
//
// Forward: a work item is a block of query rows of one segment, with all heads of one group. It iterates over blocks of
// kKeyBlock keys. K is transposed into column panels; then each strip of query rows computes scores, online softmax and
// the product with V while its scores are in the L1 cache.
// Backward: a work item is a block of kKeyBlock key rows of one kv head. It iterates over blocks of kGradientRows query
// rows; dK and dV stay in its scratch. Contributions to dQ are added in the order of key blocks, so that the sums do
// not depend on the number of threads. A counter per (head, query block) enforces that order.
// Calls with bf16 operands and bf16 results use the CPU's bf16 units, if it has any (attention_bf16_cpu.h), except
// those with softcap, slopes or dropout.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/attention/attention.h"

namespace hawser::ops {

constexpr std::int64_t kAttentionMaxHeadDim = 256;

namespace cpu {

constexpr std::int64_t kKeyBlock = 192;     // a multiple of every level's strip and panel
constexpr std::int64_t kGradientRows = 48;  // likewise
constexpr std::int64_t kHeadPad = 16;       // head dims are padded with zeros to this

struct Segment {
  std::int64_t q_begin, q_count, k_begin, k_count, q_position, k_position;
};

// The visible keys [begin, end) of a segment's query rows, as indices in the segment. Both ends increase with the row.
struct Visible {
  const Segment& segment;
  bool causal;
  std::int64_t window;

  std::int64_t begin(std::int64_t row) const {
    if (window == 0) return 0;
    return std::clamp<std::int64_t>(segment.q_position + row - window + 1 - segment.k_position, 0, segment.k_count);
  }
  std::int64_t end(std::int64_t row) const {
    if (!causal) return segment.k_count;
    return std::clamp<std::int64_t>(segment.q_position + row + 1 - segment.k_position, 0, segment.k_count);
  }
};

// Reads the table and sorts it by q_begin. Throws if a segment is outside the tensors, a query row is covered twice, or
// form, blocks or window_halves do not hold.
std::vector<Segment> read_segments(const char* op, const AttentionCall& args);

// Visible keys of a block's rows in a block of keys. Row r sees keys [max(first, low + r), min(last, high + r)) of the
// key block. Without a mask, low or high is out of reach.
struct Band {
  std::int64_t first = 0, last = 0;
  std::int64_t low = 0, high = 0;
};
Band band_of(const Segment& segment, bool causal, std::int64_t window, std::int64_t row, std::int64_t key,
             std::int64_t keys);

// AttentionCall::softcap and slopes for a block of query rows of one head and a block of keys. Scores, cap and slope
// are multiplied by log2(e). With row r and key j of the blocks, a score x becomes
//   cap * tanh(x / cap) - slope * |distance + r - j|
struct ScoreChange {
  float cap = 0;    // 0: none
  float slope = 0;  // 0: none
  float distance = 0;

  bool any() const { return cap > 0 || slope != 0; }
};
// row, key: the block's first ones, as indices in the segment.
ScoreChange change_of(const AttentionCall& args, std::int64_t head, const Segment& segment, std::int64_t row,
                      std::int64_t key);

// AttentionCall::dropout for a block of query rows of one head and a block of keys.
struct DropoutBlock {
  PhiloxKey key = {};  // of the head
  std::int32_t step = 0;
  std::uint64_t below = 0;                // u < p exactly if word < below; 0: no dropout
  float kept = 1;                         // 1 / (1 - p)
  const std::int32_t* queries = nullptr;  // [rows, 2]: ids of the block's query rows
  const std::int32_t* keys = nullptr;     // [kKeyBlock, 2]: of its keys
  std::int64_t rows = 0;                  // later rows of the block are padding

  bool any() const { return below > 0; }
  // Writes factors[j], begin <= j < end: 0, or 1 / (1 - p). Of a row of padding it writes nothing.
  void draw(std::int64_t row, std::int64_t begin, std::int64_t end, float* factors) const;
};
// query_row, key_row: the block's first ones, as rows of q and k.
DropoutBlock dropout_of(const AttentionCall& args, std::int64_t head, std::int64_t query_row, std::int64_t rows,
                        std::int64_t key_row);

// The bf16 units have no kernels for these calls.
inline bool needs_float32(const AttentionCall& args) {
  return args.softcap > 0 || !args.slopes.empty() || args.dropout.probability > 0;
}

struct ForwardBlock {
  const float* q;       // [rows, width], multiplied by scale and log2(e)
  const float* panels;  // K, transposed into panels
  const float* v;       // [kKeyBlock, width]
  float* o;             // [rows, width], running sum
  float* max;           // [rows], running maximum of the scores
  float* sums;          // [rows, kHeadPad], running sums of exponentials, one per lane
  float* scores;        // one strip
  std::int64_t rows;    // a multiple of every level's strip
  std::int64_t width;   // padded head dim
  Band band;
  ScoreChange change;
  DropoutBlock dropout;
};

struct BackwardBlock {
  const float* q;    // [kGradientRows, width]
  const float* d_o;  // likewise
  const float* k;    // [kKeyBlock, width]
  const float* k_panels;
  const float* v_panels;
  const float* lse;  // [kGradientRows], multiplied by log2(e); +inf for rows without gradient
  const float* delta;
  float* p;  // [kGradientRows, kKeyBlock]
  float* ds;
  float* dq;  // [kGradientRows, width], written
  float* dk;  // [kKeyBlock, width], added to
  float* dv;
  std::int64_t width;
  float scale;
  Band band;
  ScoreChange change;
  DropoutBlock dropout;
};

}  // namespace cpu
}  // namespace hawser::ops

// CPU backend of attention; arguments are checked.
//
// forward   One item of work is a block of query rows of one segment with all heads of one group. It walks over blocks
// of
//           kKeyBlock keys: K is brought into columns (panels), then strips of query rows take scores, online softmax
//           and the product with V while a strip's scores lie in the first cache.
// backward  One item is a block of kKeyBlock key rows of one kv head. It walks over blocks of kGradientRows query rows;
// dK
//           and dV stay in its scratch. Its share of dQ is added to dQ when the share of the block of keys before it
//           has been: a counter per (head, query block) keeps that order, so that the sums do not depend on threads.
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

// The visible keys [begin, end) of a segment's query rows, as key indices in the segment. Both ends rise with the row.
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

// Reads the table, sorted by q_begin; throws where it leaves the tensors, covers a query row twice or breaks a promise.
std::vector<Segment> read_segments(const char* op, const TensorView& table, const TensorView& count,
                                   std::int64_t query_rows, std::int64_t key_rows, SegmentForm form,
                                   const std::vector<SegmentBatch>& batches, bool causal);

// Visible keys of the rows of a block against a block of keys: row r sees keys
// [max(first, low + r), min(last, high + r)) of the block; where a mask is absent low or high is out of reach.
struct Band {
  std::int64_t first = 0, last = 0;
  std::int64_t low = 0, high = 0;
};
Band band_of(const Segment& segment, bool causal, std::int64_t window, std::int64_t row, std::int64_t key,
             std::int64_t keys);

struct ForwardBlock {
  const float* q;       // [rows, width], times scale and log2(e)
  const float* panels;  // K in columns
  const float* v;       // [kKeyBlock, width]
  float* o;             // [rows, width], sum so far
  float* max;           // [rows] largest score so far
  float* sums;          // [rows, kHeadPad] sums of exponentials so far, a lane each
  float* scores;        // one strip
  std::int64_t rows;    // a multiple of every level's strip
  std::int64_t width;   // padded head dim
  Band band;
};

struct BackwardBlock {
  const float* q;    // [kGradientRows, width]
  const float* d_o;  // likewise
  const float* k;    // [kKeyBlock, width]
  const float* k_panels;
  const float* v_panels;
  const float* lse;  // [kGradientRows] times log2(e); +inf where a row counts for nothing
  const float* delta;
  float* p;  // [kGradientRows, kKeyBlock]
  float* ds;
  float* dq;  // [kGradientRows, width], written
  float* dk;  // [kKeyBlock, width], added to
  float* dv;
  std::int64_t width;
  float scale;
  Band band;
};

void attention_forward(const AttentionForward& args);
void attention_backward(const AttentionBackward& args);
void attention_combine(const AttentionCombine& args);

}  // namespace cpu
}  // namespace hawser::ops

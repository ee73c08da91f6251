// One call of cuDNN's attention as a graph, and its plan. No cuDNN header is needed to read this one.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/cuda/native.h"

namespace hawser::ops::cuda {

// Everything that a plan depends on. Rows are [entry, row, head, D] in memory, heads side by side; `..._row` is the
// elements from row to row. dense: entries of query_rows (key_rows) each begin every query_step (key_step; dk_step and
// dv_step) rows; log-sum-exps are [batch, heads, query_rows]. ragged: entries of at most query_rows and
// key_rows lie where tables say, in tensors of query_total and key_total rows; the log-sum-exps are [rows, heads].
struct AttentionGraph {
  bool backward = false, ragged = false, causal = false, deterministic = false;
  std::int64_t window = 0;
  float scale = 1.0f;
  std::int64_t batch = 1, query_rows = 0, key_rows = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t query_step = 0, key_step = 0, dk_step = 0, dv_step = 0;  // dense
  std::int64_t query_total = 0, key_total = 0;                          // ragged, backward
  std::int64_t q_row = 0, k_row = 0, v_row = 0, o_row = 0, d_o_row = 0, dq_row = 0, dk_row = 0, dv_row = 0;

  auto operator<=>(const AttentionGraph&) const = default;
};

struct AttentionBuffers {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *d_o = nullptr;
  void *o = nullptr, *stats = nullptr;  // forward writes them, backward reads them
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  // ragged: lengths [batch] int32, first elements [batch + 1] int64. dk and dv share one.
  const void *query_length = nullptr, *key_length = nullptr;
  const void *q_offset = nullptr, *k_offset = nullptr, *v_offset = nullptr, *o_offset = nullptr,
             *stats_offset = nullptr;
  const void *d_o_offset = nullptr, *dq_offset = nullptr, *dkv_offset = nullptr;
  void* workspace = nullptr;
};

// Makes the graph's plan (a third of a second) where the device does not keep it yet. Empty, or why cuDNN has none.
std::string prepare_attention(const CudaNative& native, const AttentionGraph& graph);
// Enqueues it, preparing it where that has not been done. Throws where cuDNN has no plan, or one that asks for more
// than workspace_bytes.
void run_attention(const CudaNative& native, const AttentionGraph& graph, const AttentionBuffers& buffers,
                   std::int64_t workspace_bytes);

}  // namespace hawser::ops::cuda

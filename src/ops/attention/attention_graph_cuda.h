// One call of cuDNN's attention as a graph with its plan. Does not include cuDNN headers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/native.h"

namespace hawser::ops::cuda {

// Key of a plan: everything it depends on. Tensors are [batch, row, head, D] in memory, heads side by side; `..._row`
// is the row stride in elements.
// - dense: batch entries have query_rows (key_rows) rows each, at distances of query_step (key_step; dk_step and
//   dv_step) rows; log-sum-exps are [batch, heads, query_rows].
// - ragged: tables give the offset and length of each batch entry, of at most query_rows and key_rows rows, in tensors
//   of query_total and key_total rows; log-sum-exps are [rows, heads].
struct AttentionGraph {
  bool backward = false, ragged = false, causal = false, deterministic = false;
  // Of each batch entry: key b is visible to query a if b + window > a (0: no window) and, if causal, b <= a.
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
  void *o = nullptr, *stats = nullptr;  // written by forward, read by backward
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  // ragged: lengths [batch] int32, offsets in elements [batch + 1] int64. dk and dv share one offset table.
  const void *query_length = nullptr, *key_length = nullptr;
  const void *q_offset = nullptr, *k_offset = nullptr, *v_offset = nullptr, *o_offset = nullptr,
             *stats_offset = nullptr;
  const void *d_o_offset = nullptr, *dq_offset = nullptr, *dkv_offset = nullptr;
  void* workspace = nullptr;
};

// Builds the graph's plan (about 0.3 s) unless the per-device cache has it. Returns the reason if cuDNN has no plan,
// otherwise an empty string.
std::string prepare_attention(const CudaNative& native, const AttentionGraph& graph);
// Enqueues the graph, and prepares it first if needed. Throws if cuDNN has no plan, or one that requires more than
// workspace_bytes.
void run_attention(const CudaNative& native, const AttentionGraph& graph, const AttentionBuffers& buffers,
                   std::int64_t workspace_bytes);
// The graphs for which cuDNN had no plan, with the reasons, one line each.
std::vector<std::string> rejected_graphs(const CudaNative& native);

}  // namespace hawser::ops::cuda

#include "ops/attention/attention_graph_cuda.h"

#include <cudnn_frontend.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace hawser::ops::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

#define HAWSER_CUDNN_CHECK(call)                                                                          \
  do {                                                                                                    \
    const cudnnStatus_t hawser_status = (call);                                                           \
    HAWSER_CHECK(hawser_status == CUDNN_STATUS_SUCCESS, #call, ": ", cudnnGetErrorString(hawser_status)); \
  } while (false)

void check(const fe::error_t& status, const char* during) {
  HAWSER_CHECK(status.is_good(), "cuDNN, ", during, ": ", status.err_msg);
}

enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kDo,
  kDq,
  kDk,
  kDv,
  kQueryLength,
  kKeyLength,
  kQOffset,
  kKOffset,
  kVOffset,
  kOOffset,
  kStatsOffset,
  kDoOffset,
  kDqOffset,
  kDkvOffset,
};

class Builder {
 public:
  // right_bound: a window without a causal mask gets a bound on the right that masks nothing.
  // sm_version: the GPU's compute capability, as in 90.
  Builder(const AttentionGraph& a, int sm_version, bool right_bound) : a_(a), right_bound_(right_bound) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(sm_version);  // nodes copy it when they are added
  }

  std::shared_ptr<fe::graph::Graph> build() {
    const Tensor q = queries("q", kQ, a_.q_row, kQOffset), k = keys("k", kK, a_.k_row, kKOffset),
                 v = keys("v", kV, a_.v_row, kVOffset);
    if (a_.backward) {
      const Tensor o = queries("o", kO, a_.o_row, kOOffset), d_o = queries("d_o", kDo, a_.d_o_row, kDoOffset);
      auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_attn_scale(a_.scale);
      mask(options);
      if (a_.ragged) options.set_max_total_seq_len_q(a_.query_total).set_max_total_seq_len_kv(a_.key_total);
      options.set_deterministic_algorithm(a_.deterministic);
      auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, o, d_o, stats(graph_->tensor(named("stats"))), options);
      result(dq, kDq, a_.query_heads, a_.query_rows, a_.query_step, a_.dq_row, kDqOffset);
      result(dk, kDk, a_.kv_heads, a_.key_rows, a_.dk_step, a_.dk_row, kDkvOffset);
      result(dv, kDv, a_.kv_heads, a_.key_rows, a_.dv_step, a_.dv_row, kDkvOffset);
    } else {
      auto options = fe::graph::SDPA_attributes().set_name("attention").set_attn_scale(a_.scale);
      options.set_generate_stats(true);
      mask(options);
      auto [o, lse] = graph_->sdpa(q, k, v, options);
      result(o, kO, a_.query_heads, a_.query_rows, a_.query_step, a_.o_row, kOOffset);
      stats(lse)->set_output(true);
    }
    return graph_;
  }

 private:
  static fe::graph::Tensor_attributes named(const char* name) { return fe::graph::Tensor_attributes().set_name(name); }

  Tensor table(const char* name, Uid uid, std::int64_t entries, fe::DataType_t type) {
    Tensor& made = tables_[uid];
    if (made == nullptr) {
      made = graph_->tensor(
          named(name).set_uid(uid).set_dim({entries, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type));
    }
    return made;
  }

  // step: rows between the starts of two batch entries.
  void place(fe::graph::Tensor_attributes& t, std::int64_t uid, std::int64_t heads, std::int64_t rows,
             std::int64_t step, std::int64_t row, Uid offset) {
    t.set_uid(uid)
        .set_dim({a_.batch, heads, rows, a_.head_dim})
        .set_stride({(a_.ragged ? rows : step) * row, a_.head_dim, row, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
    if (a_.ragged) t.set_ragged_offset(table("offset", offset, a_.batch + 1, fe::DataType_t::INT64));
  }

  Tensor queries(const char* name, Uid uid, std::int64_t row, Uid offset) {
    auto t = named(name);
    place(t, uid, a_.query_heads, a_.query_rows, a_.query_step, row, offset);
    return graph_->tensor(t);
  }
  Tensor keys(const char* name, Uid uid, std::int64_t row, Uid offset) {
    auto t = named(name);
    place(t, uid, a_.kv_heads, a_.key_rows, a_.key_step, row, offset);
    return graph_->tensor(t);
  }
  void result(const Tensor& t, Uid uid, std::int64_t heads, std::int64_t rows, std::int64_t step, std::int64_t row,
              Uid offset) {
    place(*t, uid, heads, rows, step, row, offset);
    t->set_output(true);
  }

  Tensor stats(const Tensor& t) {
    const std::int64_t h = a_.query_heads, s = a_.query_rows;
    t->set_uid(kStats).set_dim({a_.batch, h, s, 1}).set_data_type(fe::DataType_t::FLOAT);
    if (a_.ragged) {
      t->set_stride({h * s, 1, h, 1})
          .set_ragged_offset(table("stats_offset", kStatsOffset, a_.batch + 1, fe::DataType_t::INT64));
    } else {
      t->set_stride({h * s, s, 1, 1});
    }
    return t;
  }

  template <class Options>
  void mask(Options& options) {
    if (a_.ragged) {
      options.set_padding_mask(true)
          .set_seq_len_q(table("query_length", kQueryLength, a_.batch, fe::DataType_t::INT32))
          .set_seq_len_kv(table("key_length", kKeyLength, a_.batch, fe::DataType_t::INT32));
    }
    if (a_.causal) {
      // In backward, only this form of mask skips the masked tiles.
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    } else if (a_.window > 0) {
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
      if (right_bound_) options.set_diagonal_band_right_bound(static_cast<int>(a_.key_rows));
    }
    if (a_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(a_.window));
  }

  const AttentionGraph& a_;
  bool right_bound_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
  std::map<Uid, Tensor> tables_;
};

// Before 9.15.1, each backward call copies from the host if the number of keys is not a multiple of 128; 9.14 computes
// wrong results with a window.
constexpr std::size_t kMinVersion = 91501;

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;  // null: not built yet, or rejected
  std::int64_t workspace = 0;
  std::string rejected;
};

// In the per-device cache.
struct Cudnn {
  cudnnHandle_t handle = nullptr;
  int sm_version = 0;
  std::mutex mutex;
  std::map<AttentionGraph, Plan> plans;

  Cudnn() {
    HAWSER_CHECK(cudnnGetVersion() >= kMinVersion, "cuDNN ", cudnnGetVersion(), " is loaded, expected ", kMinVersion,
                 " or later; put the folder of a newer libcudnn.so.9 first in LD_LIBRARY_PATH");
    HAWSER_CUDNN_CHECK(cudnnCreate(&handle));
    int device = 0, major = 0, minor = 0;
    HAWSER_CUDA_CHECK(cudaGetDevice(&device));
    HAWSER_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    HAWSER_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    sm_version = 10 * major + minor;
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn() { cudnnDestroy(handle); }
};

// Builds the plan. Returns the reason if there is none, otherwise an empty string.
std::string make(Plan& plan, const AttentionGraph& a, const Cudnn& cudnn, bool right_bound) {
  const cudnnHandle_t handle = cudnn.handle;
  const auto graph = Builder(a, cudnn.sm_version, right_bound).build();
  const std::pair<const char*, std::function<fe::error_t()>> steps[] = {
      {"validation", [&] { return graph->validate(); }},
      {"graph", [&] { return graph->build_operation_graph(handle); }},
      {"plans", [&] { return graph->create_execution_plans({fe::HeurMode_t::A}); }},
      {"support", [&] { return graph->check_support(); }},
      {"build", [&] { return graph->build_plans(); }},
      {"workspace", [&] { return graph->get_workspace_size(plan.workspace); }}};
  for (const auto& [during, step] : steps) {
    const fe::error_t status = step();
    if (!status.is_good()) return cat("cuDNN, ", during, ": ", status.err_msg);
  }
  plan.graph = graph;
  return "";
}

Plan& plan_of(Cudnn& cudnn, const AttentionGraph& a) {
  Plan& plan = cudnn.plans[a];
  if (plan.graph != nullptr || !plan.rejected.empty()) return plan;
  plan.rejected = make(plan, a, cudnn, false);
  if (!plan.rejected.empty() && a.window > 0 && !a.causal && make(plan, a, cudnn, true).empty()) {
    plan.rejected.clear();
  }
  return plan;
}

}  // namespace

std::vector<std::string> rejected_graphs(const CudaNative& native) {
  auto& cudnn = native.cache->get<Cudnn>();
  const std::lock_guard lock(cudnn.mutex);
  std::vector<std::string> out;
  for (const auto& [graph, plan] : cudnn.plans) {
    if (plan.rejected.empty()) continue;
    out.push_back(cat(graph.backward ? "attention_backward" : "attention_forward", ": tiled (",
                      graph.ragged ? "segments" : "blocks", graph.causal ? ", causal" : "",
                      graph.window > 0 ? ", window" : "", ", head dim ", graph.head_dim, ": ", plan.rejected, ")"));
  }
  return out;
}

std::string prepare_attention(const CudaNative& native, const AttentionGraph& a) {
  auto& cudnn = native.cache->get<Cudnn>();
  const std::lock_guard lock(cudnn.mutex);
  return plan_of(cudnn, a).rejected;
}

void run_attention(const CudaNative& native, const AttentionGraph& a, const AttentionBuffers& b,
                   std::int64_t workspace_bytes) {
  auto& cudnn = native.cache->get<Cudnn>();
  const std::lock_guard lock(cudnn.mutex);
  const Plan& plan = plan_of(cudnn, a);
  HAWSER_CHECK(plan.rejected.empty(), plan.rejected);
  HAWSER_CHECK(plan.workspace <= workspace_bytes, "cuDNN needs a workspace of ", plan.workspace,
               " bytes, the plan has ", workspace_bytes);
  std::unordered_map<std::int64_t, void*> pack;
  const auto add = [&](Uid uid, const void* data) {
    if (data != nullptr) pack[uid] = const_cast<void*>(data);
  };
  add(kQ, b.q);
  add(kK, b.k);
  add(kV, b.v);
  add(kO, b.o);
  add(kStats, b.stats);
  if (a.backward) {
    add(kDo, b.d_o);
    add(kDq, b.dq);
    add(kDk, b.dk);
    add(kDv, b.dv);
  }
  if (a.ragged) {
    add(kQueryLength, b.query_length);
    add(kKeyLength, b.key_length);
    add(kQOffset, b.q_offset);
    add(kKOffset, b.k_offset);
    add(kVOffset, b.v_offset);
    add(kOOffset, b.o_offset);
    add(kStatsOffset, b.stats_offset);
    if (a.backward) {
      add(kDoOffset, b.d_o_offset);
      add(kDqOffset, b.dq_offset);
      add(kDkvOffset, b.dkv_offset);
    }
  }
  HAWSER_CUDNN_CHECK(cudnnSetStream(cudnn.handle, static_cast<cudaStream_t>(native.stream)));
  check(plan.graph->execute(cudnn.handle, pack, b.workspace), "execution");
}

}  // namespace hawser::ops::cuda

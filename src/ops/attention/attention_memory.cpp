#include "ops/attention/attention_memory.h"

#include <algorithm>
#include <tuple>

#include "base/units.h"
#include "ops/attention/attention_cpu.h"

namespace hawser::ops {

namespace {

using Kernel = AttentionImplementation::Kernel;

// Workspace limit of one backward call of cuDNN; more key-value heads than fit are split over several calls. Fewer,
// larger calls are faster at short lengths; from 16K rows on, one key-value head keeps the GPU busy.
constexpr std::int64_t kCallBytes = std::int64_t{1} << 30;
// cuDNN's workspace beyond its accumulators: counters of segments and heads, alignment.
std::int64_t slack_bytes(const AttentionDims& n) {
  return (std::int64_t{1} << 20) + n.segments * (512 + 32 * n.hq);
}
// With fewer rows of queries, tiles of 64 rows compute mostly nothing.
constexpr std::int64_t kTiledQueries = 16;
// The recipe key that requests what is rejected here.
constexpr char kDeterministicKey[] = "run.deterministic";
// Segments that share keys: maximum key rows of one call, as a multiple of the tensor's key rows. Chunks assigned by
// work have twice the tensor's rows on average if one document fills the sequence.
constexpr std::int64_t kSharedKeys = 2;

bool starts_at_16(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0 &&
         (view.rank() < 3 || view.size(0) <= 1 || view.stride(0) * size_of(view.dtype()) % 16 == 0);
}

// The reason if cuDNN supports neither direction; otherwise empty.
std::string no_cudnn(const AttentionCall& args, std::initializer_list<TensorView> rows) {
  const AttentionDims n = dims_of(args);
  if (args.softcap > 0) return "soft-capped scores";
  if (!args.slopes.empty()) return "scores with a bias by distance";
  if (args.dropout.probability > 0) return "dropout of probabilities";
  if (args.q.dtype() != DType::bf16)
    return cat(to_string(args.q.dtype()), " operands; precision.compute: bf16 avoids it");
  if (args.o.dtype() != DType::bf16) return cat("o is ", to_string(args.o.dtype()), "; cuDNN takes bf16");
  if (n.d % 8 != 0) return cat("head dim ", n.d, "; cuDNN takes multiples of 8");
  if (n.tq == 0 || n.tk == 0 || n.segments == 0) return "no rows";
  for (const TensorView& view : rows) {
    if (!starts_at_16(view)) return "rows are not aligned to 16 bytes";
  }
  if (args.causal && args.form != SegmentForm::diagonal) return "causal segments may differ from diagonal blocks";
  if (args.window == 0 || args.causal || args.window_halves) return "";
  if (args.blocks.empty()) return "a window without a causal mask, and segments at different distances";
  for (const StridedBlocks& b : args.blocks) {
    if (b.q_rows > b.k_rows) return "a window without a causal mask, and more queries than keys";
  }
  return "";
}

// The kernel of our own for a call that cuDNN does not support, for this reason.
AttentionImplementation own_kernel(const AttentionCall& args, std::initializer_list<TensorView> rows, std::string why) {
  return {takes_tiles(args, rows) ? AttentionImplementation::tiled : AttentionImplementation::plain, std::move(why)};
}

bool dense(const AttentionCall& args) {
  return !args.blocks.empty();
}

// Allocates offsets in the order of the requests.
class Places {
 public:
  explicit Places(std::int64_t begin = 0) : bytes_(begin) {}
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(bytes, 256);
    return at;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
};

SegmentTables tables_for(Places& places, const AttentionDims& n, bool cudnn) {
  SegmentTables out;
  out.query_segment = places.take(4 * n.tq);
  out.key_covered = places.take(4 * n.tk);
  if (!cudnn) return out;
  out.query_length = places.take(4 * n.segments);
  out.key_length = places.take(4 * n.segments);
  out.offsets = places.take(8 * kOffsetTables * (n.segments + 1));
  return out;
}

// Workspace of cuDNN's backward: dq in float32, the dot products of o and d_o, and with grouped heads dk and dv of
// every query head (packed rows: space for float32).
std::int64_t dense_call_bytes(const AttentionBackward& args, const AttentionDims& n, std::int64_t kv_heads) {
  const std::int64_t heads = kv_heads * n.group();
  std::int64_t max = 0;
  for (const StridedBlocks& b : args.call.blocks) {
    std::int64_t bytes = heads * b.count * b.q_rows * 4;
    bytes += args.deterministic ? b.count * heads * round_up(b.q_rows, 128) * round_up(b.k_rows, 128) * 2
                                : heads * b.count * b.q_rows * n.d * 4;
    if (n.group() > 1) bytes += 2 * heads * b.count * b.k_rows * n.d * 2;
    max = std::max(max, bytes);
  }
  return max + slack_bytes(n);
}
std::int64_t ragged_call_bytes(const AttentionDims& n, std::int64_t keys, std::int64_t kv_heads) {
  const std::int64_t heads = kv_heads * n.group();
  return heads * n.tq * (4 + n.d * 4) + slack_bytes(n) + (n.group() > 1 ? 2 * heads * keys * n.d * 4 : 0);
}

std::int64_t stats_elements(const std::vector<StridedBlocks>& blocks, std::int64_t heads, std::int64_t rows) {
  return round_up(heads * rows, kStatsAlign) + static_cast<std::int64_t>(blocks.size()) * kStatsAlign;
}

}  // namespace

AttentionDims dims_of(const AttentionCall& args) {
  return {args.q.size(0), args.k.size(0), args.q.size(1), args.k.size(1), args.q.size(2), args.segments.size(0)};
}

AttentionCall partial_call(const AttentionCall& args, std::byte* part_o, std::byte* part_lse) {
  AttentionCall out = args;
  out.accumulate = false;
  out.o = TensorView(part_o, args.q.dtype(), args.q.shape(), args.q.device());
  out.lse = TensorView(part_lse, DType::f32, args.lse.shape(), args.q.device());
  return out;
}

SegmentBound bound_of(const AttentionCall& args) {
  const AttentionDims n = dims_of(args);
  if (args.host_segments == nullptr) {
    const std::int64_t rows = args.window_halves ? std::max<std::int64_t>(1, args.window - 1) : std::max(n.tq, n.tk);
    const std::int64_t keys = std::min(n.tk, rows);
    return {false, n.segments, std::min(n.tq, rows), keys, n.segments * keys};
  }
  SegmentBound out{.known = true};
  for (std::size_t row = 0; row < args.host_segments->size(); row += kSegmentFields) {
    ++out.segments;
    out.q_rows = std::max<std::int64_t>(out.q_rows, (*args.host_segments)[row + 1]);
    out.k_rows = std::max<std::int64_t>(out.k_rows, (*args.host_segments)[row + 3]);
    out.keys += (*args.host_segments)[row + 3];
  }
  return out;
}

std::vector<MaskedRows> masked_rows(const AttentionCall& args, const SegmentBound& bound) {
  const std::int64_t rows = args.segments.size(0);
  if (!args.window_halves) return {{0, bound.segments, rows, args.window}};
  std::vector<MaskedRows> out;
  for (const auto& [begin, end, window] :
       {std::tuple{std::int64_t{0}, rows / 2, std::int64_t{1}}, std::tuple{rows / 2, rows, std::int64_t{0}}}) {
    std::int64_t used = std::max<std::int64_t>(0, std::min(bound.segments, end) - begin);
    while (bound.known && used > 0 &&
           (*args.host_segments)[static_cast<std::size_t>((begin + used - 1) * kSegmentFields + 1)] == 0) {
      --used;
    }
    if (used > 0) out.push_back({begin, used, end, window});
  }
  return out;
}

std::int64_t rounded_size(std::int64_t size, std::int64_t min, std::int64_t max) {
  std::int64_t out = min;
  while (out < size) out *= 2;
  return std::min(out, max);
}

bool takes_tiles(const AttentionCall& args, std::initializer_list<TensorView> rows) {
  const AttentionDims n = dims_of(args);
  return args.q.dtype() == DType::bf16 && n.d % 8 == 0 && n.tq >= kTiledQueries &&
         std::all_of(rows.begin(), rows.end(), starts_at_16);
}

const char* AttentionImplementation::name() const {
  switch (kernel) {
    case cpu:
      return "cpu";
    case cudnn_dense:
      return "cudnn dense";
    case cudnn_ragged:
      return "cudnn ragged";
    case cudnn_shared:
      return "cudnn ragged, shared keys";
    case tiled:
      return "tiled";
    case plain:
      return "plain";
  }
  return "?";
}

AttentionImplementation attention_implementation(const AttentionCall& args, DeviceKind device) {
  if (device != DeviceKind::cuda) return {};
  if (args.accumulate) return attention_implementation(partial_call(args), device);
  if (const std::string why = no_cudnn(args, {args.q, args.k, args.v, args.o}); !why.empty()) {
    return own_kernel(args, {args.q, args.k, args.v}, why);
  }
  if (dense(args)) return {Kernel::cudnn_dense, ""};
  return {Kernel::cudnn_ragged, "segments may differ in length"};
}

AttentionImplementation attention_implementation(const AttentionBackward& args, DeviceKind device) {
  if (device != DeviceKind::cuda) return {};
  const AttentionDims n = dims_of(args.call);
  std::string why =
      no_cudnn(args.call, {args.call.q, args.call.k, args.call.v, args.call.o, args.d_o, args.dq, args.dk, args.dv});
  const auto own = [&](std::string reason) {
    return own_kernel(args.call, {args.call.q, args.call.k, args.call.v, args.d_o}, std::move(reason));
  };
  if (!why.empty()) return own(why);
  if (dense(args.call)) {
    for (const StridedBlocks& b : args.call.blocks) {
      if (b.q_rows == 1 || b.k_rows == 1) return own("blocks of one row");
    }
    if (args.deterministic && dense_call_bytes(args, n, 1) > kDeterministicBytes) {
      return own(cat("deterministic: cuDNN needs ", format_bytes(Bytes(dense_call_bytes(args, n, 1))),
                     " of workspace per key-value head; ", kDeterministicKey, ": false avoids it"));
    }
    return {Kernel::cudnn_dense, ""};
  }
  if (args.deterministic) {
    return own(cat("deterministic, and segments may differ in length; ", kDeterministicKey,
                   ": false or data.pack: chunks avoids it"));
  }
  if (n.d % 16 != 0) return own(cat("head dim ", n.d, "; for packed rows cuDNN takes multiples of 16"));
  if (n.tq == 1 && n.tk == 1) return own("one row");
  if (!args.call.window_halves && (args.call.form != SegmentForm::any || n.segments == 1)) {
    return {Kernel::cudnn_ragged, "segments may differ in length"};
  }
  return {Kernel::cudnn_shared, "segments may share keys"};
}

ForwardMemory forward_memory(const AttentionCall& args, Kernel kernel) {
  const AttentionDims n = dims_of(args);
  if (args.accumulate) {
    ForwardMemory out = forward_memory(partial_call(args), kernel);
    Places places(out.bytes);
    out.part_o = places.take(args.q.elements() * size_of(args.q.dtype()));
    out.part_lse = places.take(4 * n.hq * n.tq);
    out.bytes = places.bytes();
    return out;
  }
  Places places;
  ForwardMemory out;
  out.tables = tables_for(places, n, kernel == Kernel::cudnn_ragged);
  const auto in_order = [&] {  // cuDNN's layout of log-sum-exps is that of `lse`
    return args.blocks.size() == 1 && args.blocks.front().q_rows == n.tq && starts_at_16(args.lse) && args.lse.dense();
  };
  if (kernel == Kernel::cudnn_ragged || (kernel == Kernel::cudnn_dense && !in_order())) {
    out.stats = places.take(4 * stats_elements(args.blocks, n.hq, n.tq));
  }
  if (!AttentionImplementation::own(kernel)) {
    out.cudnn_bytes = slack_bytes(n);
    out.cudnn = places.take(out.cudnn_bytes);
  }
  out.bytes = places.bytes();
  return out;
}

namespace {

// Workspace with `kv_heads` key-value heads per cuDNN call and `keys` rows of key gradients.
BackwardMemory through_cudnn(const AttentionBackward& args, const AttentionDims& n, bool is_dense,
                             std::int64_t kv_heads, std::int64_t keys) {
  Places places;
  BackwardMemory out;
  out.tables = tables_for(places, n, !is_dense);
  out.kv_heads = kv_heads;
  out.keys = keys;
  const std::int64_t groups = n.hkv / kv_heads;
  out.stats_group = stats_elements(args.call.blocks, n.hq / groups, n.tq);
  out.stats = places.take(4 * groups * out.stats_group);
  out.delta = out.stats;  // if cuDNN rejects the call and a kernel of our own replaces it
  // Packed rows: cuDNN's frontend makes its accumulators as wide as the rows of its outputs, which may be rows of a
  // packed QKV.
  const auto partial = [&](const TensorView& view, bool accumulate) {
    return !is_dense || accumulate || view.dtype() != DType::bf16;
  };
  // The first cuDNN call may write key gradients in place; the others are added to them.
  const bool more = args.call.blocks.size() > 1;
  const std::int64_t q_columns = kv_heads * n.group() * n.d;
  // Packed rows: cuDNN accumulates dq at the offsets of q and reads the sums at those of dq, so both need rows of one
  // width.
  if (!is_dense && args.call.q.stride(0) != q_columns) out.q = places.take(2 * n.tq * q_columns);
  if (partial(args.dq, args.accumulate_q)) out.dq = places.take(2 * n.tq * q_columns);
  if (more || partial(args.dk, args.accumulate_kv)) out.dk = places.take(2 * keys * kv_heads * n.d);
  if (more || partial(args.dv, args.accumulate_kv)) out.dv = places.take(2 * keys * kv_heads * n.d);
  out.cudnn_bytes = is_dense ? dense_call_bytes(args, n, kv_heads) : ragged_call_bytes(n, keys, kv_heads);
  out.cudnn = places.take(out.cudnn_bytes);
  out.bytes = places.bytes();
  return out;
}

}  // namespace

BackwardMemory backward_memory(const AttentionBackward& args, Kernel kernel, std::int64_t max) {
  const AttentionDims n = dims_of(args.call);
  if (AttentionImplementation::own(kernel)) {
    Places places;
    BackwardMemory out;
    out.tables = tables_for(places, n, false);
    out.delta = places.take(4 * n.hq * n.tq);
    out.bytes = places.bytes();
    return out;
  }
  const bool is_dense = kernel == Kernel::cudnn_dense;
  std::int64_t keys = n.tk;
  if (kernel == Kernel::cudnn_shared) {
    AttentionCall unknown = args.call;
    unknown.host_segments = nullptr;
    keys = std::min(bound_of(unknown).keys, kSharedKeys * n.tk);
    const SegmentBound known = bound_of(args.call);
    if (max > 0 && known.known) keys = std::min(keys, rounded_size(known.keys, 1024, keys));
  }
  const std::int64_t call_bytes = args.deterministic ? kDeterministicBytes : kCallBytes;
  for (std::int64_t kv_heads = n.hkv;; --kv_heads) {
    if (n.hkv % kv_heads != 0) continue;
    const BackwardMemory out = through_cudnn(args, n, is_dense, kv_heads, keys);
    if (kv_heads == 1 || (out.cudnn_bytes <= call_bytes && (max == 0 || out.bytes <= max))) return out;
  }
}

namespace {

AttentionSizes cpu_sizes(const AttentionCall& args, int threads) {
  const AttentionDims n = dims_of(args);
  AttentionSizes out{.query_rows = n.tq,
                     .key_rows = n.tk,
                     .query_heads = n.hq,
                     .kv_heads = n.hkv,
                     .head_dim = n.d,
                     .segments = n.segments,
                     .threads = threads};
  return out;
}

}  // namespace

std::int64_t attention_workspace(const AttentionCall& args, DeviceKind device, int threads) {
  if (device != DeviceKind::cuda) return cpu_attention_forward_workspace(cpu_sizes(args, threads));
  return forward_memory(args, attention_implementation(args, device).kernel).bytes;
}

std::int64_t attention_workspace(const AttentionBackward& args, DeviceKind device, int threads) {
  if (device != DeviceKind::cuda) {
    AttentionSizes sizes = cpu_sizes(args.call, threads);
    sizes.dtype = args.dq.dtype();
    return cpu_attention_backward_workspace(sizes);
  }
  return backward_memory(args, attention_implementation(args, device).kernel).bytes;
}

std::int64_t attention_workspace_within(const AttentionBackward& args, DeviceKind device, std::int64_t bytes) {
  if (device != DeviceKind::cuda) return attention_workspace(args, device);
  return backward_memory(args, attention_implementation(args, device).kernel, bytes).bytes;
}

}  // namespace hawser::ops

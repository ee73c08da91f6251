#include "ops/attention/attention_memory.h"

#include <algorithm>

#include "base/units.h"
#include "ops/attention/attention_cpu.h"

namespace hawser::ops {

namespace {

using Kernel = AttentionImplementation::Kernel;

// What one backward call of cuDNN may ask for; more key-value heads than fit go through several calls. Fewer, larger
// calls are faster at short lengths; from 16K rows on one key-value head keeps the GPU busy.
constexpr std::int64_t kCallBytes = std::int64_t{1} << 30;
// What cuDNN asks for beyond its accumulators: counters of segments and heads, alignment.
std::int64_t slack_bytes(const AttentionDims& n) {
  return (std::int64_t{1} << 20) + n.segments * (512 + 32 * n.hq);
}
// Where a user asks for what is refused here.
constexpr char kDeterministicKey[] = "run.deterministic";
// A call for each segment costs a pass over all of dq each.
constexpr std::int64_t kMostCalls = 64;

bool starts_at_16(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0 &&
         (view.rank() < 3 || view.size(0) <= 1 || view.stride(0) * size_of(view.dtype()) % 16 == 0);
}

// Why cuDNN takes neither direction; empty where it does.
template <class Args>
std::string no_cudnn(const Args& args, std::initializer_list<TensorView> rows) {
  const AttentionDims n = dims_of(args);
  if (args.q.dtype() != DType::bf16) return cat(to_string(args.q.dtype()), " operands; cuDNN takes bf16");
  if (args.o.dtype() != DType::bf16) return cat("o is ", to_string(args.o.dtype()), "; cuDNN takes bf16");
  if (n.d % 8 != 0) return cat("head dim ", n.d, "; cuDNN takes multiples of 8");
  if (n.tq == 0 || n.tk == 0 || n.segments == 0) return "no rows";
  for (const TensorView& view : rows) {
    if (!starts_at_16(view)) return "rows that do not start at 16 bytes";
  }
  if (args.causal && args.form != SegmentForm::squares) return "causal segments that need not be squares";
  if (args.window > 0 && !args.causal) return "a window without a causal mask";
  return "";
}

template <class Args>
bool dense(const Args& args) {
  // Rows behind a sequence's end see it, and are cleared; without a causal mask it would see them.
  return args.uniform > 0 && args.causal;
}

// Hands out places in the order in which they are asked for.
class Places {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(bytes, 256);
    return at;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
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

// What cuDNN's backward needs: dq in float32, the products of o and d_o, and with grouped heads dk and dv of every
// query head (packed rows: room for float32).
std::int64_t backward_call_bytes(const AttentionBackward& args, const AttentionDims& n, bool ragged,
                                 std::int64_t kv_heads) {
  const std::int64_t heads = kv_heads * n.group();
  std::int64_t bytes = heads * n.tq * 4 + slack_bytes(n);
  if (args.deterministic) {
    const std::int64_t side = round_up(args.uniform, 128);
    bytes += n.tq / args.uniform * heads * side * side * 2;
  } else {
    bytes += heads * n.tq * n.d * 4;
  }
  if (n.group() > 1) bytes += 2 * heads * n.tk * n.d * (ragged ? 4 : 2);
  return bytes;
}

}  // namespace

AttentionDims dims_of(const AttentionForward& args) {
  return {args.q.size(0), args.k.size(0), args.q.size(1), args.k.size(1), args.q.size(2), args.segments.size(0)};
}
AttentionDims dims_of(const AttentionBackward& args) {
  return {args.q.size(0), args.k.size(0), args.q.size(1), args.k.size(1), args.q.size(2), args.segments.size(0)};
}

const char* AttentionImplementation::name() const {
  switch (kernel) {
    case cpu:
      return "cpu";
    case cudnn_dense:
      return "cudnn dense";
    case cudnn_ragged:
      return "cudnn ragged";
    case cudnn_each:
      return "cudnn, a call a segment";
    case plain:
      return "plain";
  }
  return "?";
}

AttentionImplementation attention_implementation(const AttentionForward& args, DeviceKind device) {
  if (device != DeviceKind::cuda) return {};
  if (const std::string why = no_cudnn(args, {args.q, args.k, args.v, args.o}); !why.empty()) {
    return {Kernel::plain, why};
  }
  if (dense(args)) return {Kernel::cudnn_dense, ""};
  return {Kernel::cudnn_ragged, "segments that need not be of one length"};
}

AttentionImplementation attention_implementation(const AttentionBackward& args, DeviceKind device) {
  if (device != DeviceKind::cuda) return {};
  const AttentionDims n = dims_of(args);
  std::string why = no_cudnn(args, {args.q, args.k, args.v, args.o, args.d_o, args.dq, args.dk, args.dv});
  if (!why.empty()) return {Kernel::plain, why};
  if (dense(args)) {
    if (args.uniform == 1) return {Kernel::plain, "sequences of one token"};
    if (args.deterministic && backward_call_bytes(args, n, false, 1) > kDeterministicBytes) {
      throw UserError(Problem{
          .what = "deterministic attention is beyond the lengths tested",
          .expected = cat("at most ", format_bytes(Bytes(kDeterministicBytes)), " of workspace for a key-value head"),
          .got = cat(format_bytes(Bytes(backward_call_bytes(args, n, false, 1))), " for ", args.uniform, " rows"),
          .at = kDeterministicKey,
          .hint = "run.deterministic: false, or shorter sequences"});
    }
    return {Kernel::cudnn_dense, ""};
  }
  if (args.deterministic) {
    if (n.tq > kDeterministicRows || n.tk > kDeterministicRows) {
      throw UserError(Problem{.what = "deterministic attention over packed documents is beyond the lengths tested",
                              .expected = cat("at most ", kDeterministicRows, " rows"),
                              .got = cat(std::max(n.tq, n.tk)),
                              .at = kDeterministicKey,
                              .hint = "run.deterministic: false, or one document a sequence"});
    }
    return {Kernel::plain, "deterministic, and segments that need not be of one length"};
  }
  if (n.d % 16 != 0) return {Kernel::plain, cat("head dim ", n.d, "; for packed rows cuDNN takes multiples of 16")};
  if (n.tq == 1 && n.tk == 1) return {Kernel::plain, "one row"};
  if (args.form != SegmentForm::any || n.segments == 1) {
    return {Kernel::cudnn_ragged, "segments that need not be of one length"};
  }
  if (n.segments <= kMostCalls) return {Kernel::cudnn_each, "segments that may share keys"};
  return {Kernel::plain, cat("up to ", n.segments, " segments that may share keys")};
}

ForwardMemory forward_memory(const AttentionForward& args, Kernel kernel) {
  const AttentionDims n = dims_of(args);
  Places places;
  ForwardMemory out;
  out.tables = tables_for(places, n, kernel == Kernel::cudnn_ragged);
  if (kernel == Kernel::cudnn_ragged ||
      (kernel == Kernel::cudnn_dense && (n.tq > args.uniform || !starts_at_16(args.lse)))) {
    out.stats = places.take(4 * n.hq * n.tq);
  }
  if (kernel != Kernel::plain) {
    out.cudnn_bytes = slack_bytes(n);
    out.cudnn = places.take(out.cudnn_bytes);
  }
  out.bytes = places.bytes();
  return out;
}

BackwardMemory backward_memory(const AttentionBackward& args, Kernel kernel) {
  const AttentionDims n = dims_of(args);
  const bool is_dense = kernel == Kernel::cudnn_dense;
  Places places;
  BackwardMemory out;
  out.tables = tables_for(places, n, !is_dense && kernel != Kernel::plain);
  if (kernel == Kernel::plain) {
    out.delta = places.take(4 * n.hq * n.tq);
    out.bytes = places.bytes();
    return out;
  }
  const std::int64_t most = args.deterministic ? kDeterministicBytes : kCallBytes;
  out.kv_heads = n.hkv;
  while (out.kv_heads > 1 &&
         (n.hkv % out.kv_heads != 0 || backward_call_bytes(args, n, !is_dense, out.kv_heads) > most)) {
    --out.kv_heads;
  }
  const std::int64_t groups = n.hkv / out.kv_heads;
  out.stats_group = round_up(n.hq / groups * n.tq, 64);
  out.stats = places.take(4 * groups * out.stats_group);
  // Packed rows: the frontend makes its accumulators as wide as the rows of what it writes, which may be a packed QKV.
  const auto partial = [&](const TensorView& view, bool accumulate) {
    return !is_dense || accumulate || view.dtype() != DType::bf16;
  };
  const std::int64_t q_columns = out.kv_heads * n.group() * n.d;
  // Packed rows: cuDNN adds dq up at the offsets of q, and reads the sums at those of dq: both must have rows of one
  // width.
  if (!is_dense && args.q.stride(0) != q_columns) out.q = places.take(2 * n.tq * q_columns);
  if (partial(args.dq, args.accumulate_q)) out.dq = places.take(2 * n.tq * q_columns);
  if (partial(args.dk, args.accumulate_kv)) out.dk = places.take(2 * n.tk * out.kv_heads * n.d);
  if (partial(args.dv, args.accumulate_kv)) out.dv = places.take(2 * n.tk * out.kv_heads * n.d);
  out.cudnn_bytes = backward_call_bytes(args, n, !is_dense, out.kv_heads);
  out.cudnn = places.take(out.cudnn_bytes);
  out.bytes = places.bytes();
  return out;
}

namespace {

template <class Args>
AttentionSizes cpu_sizes(const Args& args, int threads) {
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

std::int64_t attention_workspace(const AttentionForward& args, DeviceKind device, int threads) {
  if (device != DeviceKind::cuda) return attention_forward_workspace(cpu_sizes(args, threads));
  return forward_memory(args, attention_implementation(args, device).kernel).bytes;
}

std::int64_t attention_workspace(const AttentionBackward& args, DeviceKind device, int threads) {
  if (device != DeviceKind::cuda) {
    AttentionSizes sizes = cpu_sizes(args, threads);
    sizes.dtype = args.dq.dtype();
    return attention_backward_workspace(sizes);
  }
  return backward_memory(args, attention_implementation(args, device).kernel).bytes;
}

}  // namespace hawser::ops

// Benchmark of attention on a GPU with Llama-3.1-8B's heads (32 query, 8 key-value heads of 128), bf16, in the forms
// that training uses.
//
//   bench_attention_cuda [runs, default 7] [part of a line's name]
//   bench_attention_cuda table [runs, default 7]
//
// `table` prints a Markdown table instead: forms with and without a window, head dims 64, 128 and 256, with the kernel
// that ran. Each line is the median of the runs, after two warm-up runs. TFLOP/s count visible pairs, and backward as
// 2.5 times forward. Backward is also measured with `deterministic`.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "ops/attention/attention.h"
#include "ops/seed/init.h"

namespace hawser::ops {
namespace {

struct Shape2 {
  std::string name;
  std::int64_t query_rows, key_rows;
  std::vector<std::int32_t> table;  // 6 numbers a segment
  std::int64_t max_segments;        // N, the rows of the table
  SegmentForm form;
  std::vector<StridedBlocks> blocks;
  bool causal;
  bool host_known = false;  // host_segments is set
  std::int64_t heads = 32, kv_heads = 8, dim = 128;
  std::int64_t window = 0;
  bool window_halves = false;
  double softcap = 0;  // above 0: the tiled kernel
};

// What a line prints.
struct Measured {
  double ms = 0, tflops = 0;
  std::string kernel;
};

class Bench {
 public:
  Bench(int runs, std::string only) : runs_(runs), only_(std::move(only)) {}

  // A row of the table.
  void row(const Shape2& s) {
    measure(s, false);
    const auto cell = [](const Measured& m) {
      char text[64];
      std::snprintf(text, sizeof text, "%.3f | %.0f", m.ms, m.tflops);
      return cat(m.kernel, " | ", text);
    };
    std::printf("| %s | %lld | %lld | %s | %s |\n", s.name.c_str(), static_cast<long long>(s.window),
                static_cast<long long>(s.dim), cell(measured_.at(0)).c_str(), cell(measured_.at(1)).c_str());
    std::fflush(stdout);
  }

  void shape(const Shape2& s) {
    if (s.name.find(only_) != std::string::npos) measure(s, true);
  }

 private:
  // lines: prints them, also of `deterministic`.
  void measure(const Shape2& s, bool lines) {
    const std::int64_t heads = s.heads, kv_heads = s.kv_heads, dim = s.dim;
    measured_.clear();
    lines_ = lines;
    double pairs = 0;
    for (std::size_t i = 0; i < s.table.size(); i += 6) {
      pairs += visible_pairs(s.table[i + 1], s.table[i + 3], s.table[i + 4] - s.table[i + 5], s.causal, s.window);
    }
    const double work = 4.0 * static_cast<double>(heads * dim) * pairs;
    // Q, K and V are packed, as the projection writes them. Keys of an off-diagonal block are gathered and separate.
    const bool packed = s.causal;
    const std::int64_t width = packed ? (heads + 2 * kv_heads) * dim : heads * dim;
    const TensorView qkv = normal({s.query_rows, width}), dqkv = empty(DType::bf16, {s.query_rows, width});
    const auto part = [&](const TensorView& all, std::int64_t begin, std::int64_t count) {
      return all.columns(begin * dim, count * dim).split_last(count, dim);
    };
    const Shape keys{s.key_rows, kv_heads, dim};
    AttentionCall f{.q = part(qkv, 0, heads),
                    .k = packed ? part(qkv, heads, kv_heads) : normal(keys),
                    .v = packed ? part(qkv, heads + kv_heads, kv_heads) : normal(keys),
                    .segments = numbers(s.table, {s.max_segments, kSegmentFields}),
                    .segment_count = numbers({static_cast<std::int32_t>(s.table.size() / 6)}, {1}),
                    .form = s.form,
                    .blocks = s.blocks,
                    .host_segments = s.host_known ? &s.table : nullptr,
                    .causal = s.causal,
                    .window = s.window,
                    .window_halves = s.window_halves,
                    .scale = 1.0 / std::sqrt(static_cast<double>(dim)),
                    .softcap = s.softcap,
                    .o = empty(DType::bf16, {s.query_rows, heads, dim}),
                    .lse = empty(DType::f32, {heads, s.query_rows})};
    f.workspace = empty(DType::u8, {attention_workspace(f, DeviceKind::cuda)});
    line(s.name + " forward", work, attention_implementation(f, DeviceKind::cuda), f.workspace.bytes(),
         [&] { attention_forward(*stream_, f); });
    // dk and dv of gathered keys are float32, since they are reduced over ranks.
    AttentionBackward b{.call = f,
                        .d_o = normal({s.query_rows, heads, dim}),
                        .dq = part(dqkv, 0, heads),
                        .dk = packed ? part(dqkv, heads, kv_heads) : empty(DType::f32, keys),
                        .dv = packed ? part(dqkv, heads + kv_heads, kv_heads) : empty(DType::f32, keys)};
    b.call.workspace = empty(DType::u8, {attention_workspace(b, DeviceKind::cuda)});
    line(s.name + " backward", 2.5 * work, attention_implementation(b, DeviceKind::cuda), b.call.workspace.bytes(),
         [&] { attention_backward(*stream_, b); });
    if (lines) deterministic_line(s.name + " backward, deterministic", 2.5 * work, b);
    stream_->synchronize();
    kept_.clear();
  }

  void deterministic_line(const std::string& name, double work, AttentionBackward b) {
    b.deterministic = true;
    try {
      const AttentionImplementation how = attention_implementation(b, DeviceKind::cuda);
      b.call.workspace = empty(DType::u8, {attention_workspace(b, DeviceKind::cuda)});
      line(name, work, how, b.call.workspace.bytes(), [&] { attention_backward(*stream_, b); });
    } catch (const UserError&) {
      std::printf("%-58s rejected\n", name.c_str());
    }
  }

  TensorView empty(DType dtype, const Shape& shape) {
    kept_.emplace_back(*device_, dtype, shape);
    return kept_.back();
  }
  TensorView normal(const Shape& shape) {
    const TensorView view = empty(DType::bf16, shape);
    random_normal(*stream_, {.y = view, .seed = 1, .name = kept_.size(), .std = 1.0});
    return view;
  }
  TensorView numbers(const std::vector<std::int32_t>& values, const Shape& shape) {
    const TensorView view = empty(DType::i32, shape);
    transfer(*stream_, view.raw(), values.data(), static_cast<std::int64_t>(values.size() * sizeof(std::int32_t)));
    stream_->synchronize();
    return view;
  }

  void line(const std::string& name, double work, const AttentionImplementation& how, std::int64_t workspace,
            const std::function<void()>& run) {
    const auto stream = static_cast<cudaStream_t>(stream_->native()->stream);
    cudaEvent_t start{}, stop{};
    HAWSER_CUDA_CHECK(cudaEventCreate(&start));
    HAWSER_CUDA_CHECK(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int i = 0; i < runs_ + 2; ++i) {
      HAWSER_CUDA_CHECK(cudaEventRecord(start, stream));
      run();
      HAWSER_CUDA_CHECK(cudaEventRecord(stop, stream));
      stream_->synchronize();
      float ms = 0;
      HAWSER_CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
      if (i >= 2) times.push_back(ms);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    std::sort(times.begin(), times.end());
    const double ms = times[times.size() / 2];
    // cuDNN may have no plan for a call; the plain kernel ran instead.
    const std::size_t rejected = rejected_attention(*stream_).size();
    const std::string kernel = rejected > rejected_ ? cat("tiled (no plan for ", how.name(), ")") : how.name();
    rejected_ = rejected;
    measured_.push_back({ms, work / ms * 1e-9, kernel});
    if (!lines_) return;
    std::printf("%-58s %9.3f ms %8.1f TFLOP/s %8.1f MiB  %s\n", name.c_str(), ms, work / ms * 1e-9,
                static_cast<double>(workspace) / (1 << 20), kernel.c_str());
    std::fflush(stdout);
  }

  int runs_;
  std::string only_;
  std::unique_ptr<Device> device_ = make_cuda_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("bench");
  std::vector<Storage> kept_;
  std::vector<Measured> measured_;  // of the last shape: forward, backward
  bool lines_ = true;
  std::size_t rejected_ = 0;  // lines of rejected_attention()
};

Shape2 sequences(std::int64_t count, std::int64_t length, bool dense) {
  Shape2 s{.name = cat(count, " x ", length / 1024, "K causal", dense ? "" : ", as segments"),
           .query_rows = count * length,
           .key_rows = count * length,
           .max_segments = count,
           .form = SegmentForm::diagonal,
           .blocks = dense ? std::vector{equal_diagonal_blocks(count * length, length)} : std::vector<StridedBlocks>(),
           .causal = true};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int32_t>(i * length), rows = static_cast<std::int32_t>(length);
    s.table.insert(s.table.end(), {at, rows, at, rows, 0, 0});
  }
  return s;
}

// Document lengths from a fixed pseudo-random sequence with the given mean. max_count: rows of the table, of which most
// are unused, as when the host must reserve rows for many short documents.
Shape2 documents(std::int64_t total, std::int64_t mean, std::int64_t max_count) {
  Shape2 s{.name = cat("documents of ", mean / 1024, "K in ", total / 1024, "K"),
           .query_rows = total,
           .key_rows = total,
           .max_segments = 0,
           .form = SegmentForm::diagonal,
           .causal = true};
  std::uint64_t state = 12345;
  for (std::int64_t at = 0; at < total;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double u = static_cast<double>(state >> 11) / 9007199254740992.0;
    const auto wanted = static_cast<std::int64_t>(-std::log(1.0 - u) * static_cast<double>(mean)) + 16;
    const auto begin = static_cast<std::int32_t>(at), rows = static_cast<std::int32_t>(std::min(wanted, total - at));
    s.table.insert(s.table.end(), {begin, rows, begin, rows, 0, 0});
    at += rows;
  }
  const auto used = static_cast<std::int64_t>(s.table.size()) / 6;
  s.max_segments = std::max(used, max_count);
  s.name += cat(" (", used, ", table of ", s.max_segments, ")");
  return s;
}

Shape2 off_diagonal(std::int64_t queries, std::int64_t keys, SegmentForm form, std::int64_t max_count) {
  return {.name = cat("off-diagonal block ", queries / 1024, "K x ", keys / 1024, "K, table of ", max_count,
                      form == SegmentForm::any ? ", keys may be shared" : ""),
          .query_rows = queries,
          .key_rows = keys,
          .table = {0, static_cast<std::int32_t>(queries), 0, static_cast<std::int32_t>(keys),
                    static_cast<std::int32_t>(keys), 0},
          .max_segments = max_count,
          .form = form,
          .causal = false};
}

// The keys before a chunk of each of `count` sequences: context parallelism with a zig-zag layout.
Shape2 before_chunks(std::int64_t count, std::int64_t queries, std::int64_t keys) {
  Shape2 s = off_diagonal(queries, keys, SegmentForm::any, count);
  s.name = cat(count, " off-diagonal blocks ", queries / 1024, "K x ", keys / 1024, "K at equal distances");
  s.query_rows = count * queries;
  s.key_rows = count * keys;
  s.blocks = {{count, 0, queries, queries, 0, keys, keys}};
  s.table.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::int64_t field : {i * queries, queries, i * keys, keys, keys, std::int64_t{0}}) {
      s.table.push_back(static_cast<std::int32_t>(field));
    }
  }
  return s;
}

// The other ranks' keys that a rank of a context-parallel group attends to: those before its two chunks of each of
// `count` sequences.
Shape2 remote_keys(std::int64_t rank, std::int64_t ranks, std::int64_t count, std::int64_t chunk) {
  const std::int64_t length = 2 * ranks * chunk;
  Shape2 s = off_diagonal(2 * chunk, length, SegmentForm::any, 2 * count);
  s.name = cat("rank ", rank, " of ", ranks, ", ", count, " x ", length / 1024, "K, remote keys");
  s.query_rows = count * 2 * chunk;
  s.key_rows = count * length;
  s.table.clear();
  for (const auto& [place, keys] :
       {std::pair{chunk, (2 * ranks - 1 - rank) * chunk}, {std::int64_t{0}, rank * chunk}}) {
    if (keys == 0) continue;
    s.blocks.push_back({count, place, chunk, 2 * chunk, 0, keys, length});
    for (std::int64_t i = 0; i < count; ++i) {
      for (const std::int64_t field : {i * 2 * chunk + place, chunk, i * length, keys, keys, std::int64_t{0}}) {
        s.table.push_back(static_cast<std::int32_t>(field));
      }
    }
  }
  return s;
}

// Four pieces of a long document on one rank, which share its first key rows.
Shape2 shared_off_diagonal(std::int64_t rows, std::int64_t keys) {
  Shape2 s = off_diagonal(rows, keys, SegmentForm::any, 16);
  s.name = cat("4 off-diagonal blocks that share keys, ", rows / 1024, "K x up to ", keys / 1024, "K");
  s.table.clear();
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t position = keys * (i + 1) / 4;
    for (const std::int64_t field : {i * rows / 4, rows / 4, std::int64_t{0}, position, position, std::int64_t{0}}) {
      s.table.push_back(static_cast<std::int32_t>(field));
    }
  }
  return s;
}

Shape2 host_known(Shape2 s) {
  s.host_known = true;
  s.name += ", host_segments";
  return s;
}

Shape2 capped(Shape2 s) {
  s.softcap = 50;
  s.name += ", capped scores";
  return s;
}

void add_row(Shape2& s, const std::array<std::int64_t, 6>& row) {
  for (const std::int64_t field : row) s.table.push_back(static_cast<std::int32_t>(field));
}

// Keys before both chunks of a sequence, of rank 1 of 4 in a zig-zag, with a window.
Shape2 windowed_chunks(std::int64_t chunk, std::int64_t window) {
  Shape2 s = off_diagonal(2 * chunk, 8 * chunk, SegmentForm::any, 2);
  s.name = cat("off-diagonal, dense, chunks of ", chunk / 1024, "K");
  s.table.clear();
  s.window = window;
  for (const auto& [place, number] : {std::pair{1, 6}, {0, 1}}) {
    const std::int64_t position = number * chunk, keys = window > 0 ? std::min(window - 1, position) : position;
    const std::int64_t queries = window > 0 ? std::min(window - 1, chunk) : chunk;
    s.blocks.push_back({1, place * chunk, queries, 2 * chunk, position - keys, keys, 8 * chunk});
    add_row(s, {place * chunk, queries, position - keys, keys, position, position - keys});
  }
  return s;
}

// Four pieces of 4K rows at different positions of their documents, as halves of the table if there is a window. The
// last piece begins within a window of its document's start.
Shape2 windowed_pieces(std::int64_t window) {
  constexpr std::int64_t kPiece = 4096;
  Shape2 s = off_diagonal(4 * kPiece, 16 * kPiece, SegmentForm::any, window > 0 ? 8 : 4);
  s.name = "off-diagonal, segments of 4K";
  s.table.clear();
  s.window = window;
  s.window_halves = window > 0;
  s.host_known = true;
  const std::int64_t positions[] = {3 * kPiece, 2 * kPiece, kPiece + 100, window > 0 ? window / 2 : kPiece};
  std::int64_t begin = 0;  // of the document, in the gathered keys
  std::vector<std::array<std::int64_t, 6>> band, complete;
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t p = positions[i], q = i * kPiece, distance = window - 1;
    if (window == 0) {
      band.push_back({q, kPiece, begin, p, p, 0});
    } else {
      const std::int64_t end = p + std::min(kPiece, distance), middle = std::clamp(distance, p, end);
      if (p < middle) complete.push_back({q, middle - p, begin, p, p, 0});
      if (middle < end) {
        const std::int64_t first = middle - distance;
        band.push_back({q + middle - p, end - middle, begin + first, p - first, middle, first});
      }
    }
    begin += p + kPiece;
  }
  if (window > 0) band.resize(4);
  for (const auto& row : band) add_row(s, row);
  for (const auto& row : complete) add_row(s, row);
  return s;
}

void print_table(int runs) {
  Bench bench(runs, "");
  std::printf(
      "| form | window | head dim | forward kernel | ms | TFLOP/s | backward kernel | ms | TFLOP/s |\n"
      "| --- | ---: | ---: | --- | ---: | ---: | --- | ---: | ---: |\n");
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const std::int64_t window : {0, 1024, 4096}) {
      Shape2 dense = sequences(1, 16384, true), segments = host_known(documents(16384, 8192, 0));
      dense.name = "diagonal, dense, 16K";
      segments.name = "diagonal, documents of 8K in 16K";
      dense.window = segments.window = window;
      for (Shape2 s : {dense, segments, windowed_chunks(8192, window), windowed_pieces(window)}) {
        s.dim = dim;
        s.heads = 4096 / dim;
        s.kv_heads = 1024 / dim;
        bench.row(s);
      }
    }
  }
}

}  // namespace
}  // namespace hawser::ops

int main(int argc, char** argv) {
  using namespace hawser::ops;
  if (argc > 1 && std::string(argv[1]) == "table") {
    print_table(argc > 2 ? std::atoi(argv[2]) : 7);
    return 0;
  }
  Bench bench(argc > 1 ? std::atoi(argv[1]) : 7, argc > 2 ? argv[2] : "");
  for (const std::int64_t length : {4096, 8192, 16384, 65536}) bench.shape(sequences(1, length, true));
  bench.shape(documents(4096, 1024, 0));
  bench.shape(sequences(4, 4096, true));
  bench.shape(sequences(1, 16384, false));
  bench.shape(sequences(4, 4096, false));
  for (const std::int64_t mean : {1024, 8192}) {
    bench.shape(documents(16384, mean, 0));
    bench.shape(documents(16384, mean, 64));
    bench.shape(documents(16384, mean, 256));
  }
  for (const std::int64_t mean : {1024, 8192}) {
    bench.shape(documents(32768, mean, 2048));
    bench.shape(host_known(documents(32768, mean, 2048)));
  }
  for (const std::int64_t length : {1024, 4096, 16384}) bench.shape(capped(sequences(1, length, true)));
  for (const std::int64_t dim : {64, 256}) {
    for (Shape2 s : {sequences(1, 16384, true), capped(sequences(1, 16384, true))}) {
      s.name += hawser::cat(", head dim ", dim);
      s.dim = dim;
      s.heads = 4096 / dim;
      s.kv_heads = 1024 / dim;
      bench.shape(s);
    }
  }
  bench.shape(before_chunks(4, 2048, 14336));
  bench.shape(before_chunks(4, 2048, 8192));
  bench.shape(before_chunks(1, 16384, 114688));
  for (std::int64_t rank = 0; rank < 2; ++rank) bench.shape(remote_keys(rank, 2, 2, 4096));
  for (std::int64_t rank = 0; rank < 4; ++rank) bench.shape(remote_keys(rank, 4, 4, 2048));
  for (std::int64_t rank = 0; rank < 2; ++rank) bench.shape(remote_keys(rank, 2, 1, 16384));
  bench.shape(shared_off_diagonal(32768, 114688));
  bench.shape(host_known(shared_off_diagonal(32768, 114688)));
  bench.shape(host_known(shared_off_diagonal(32768, 8192)));
  bench.shape(off_diagonal(16384, 49152, SegmentForm::disjoint_keys, 1));
  bench.shape(off_diagonal(16384, 49152, SegmentForm::any, 4));
  return 0;
}

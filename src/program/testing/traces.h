// Traces for tests: random ones, and one that resembles a training step.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "program/placement.h"

namespace hawser::program::testing {

// Categories of buffers that are in the spaces `persistent` and `persistent_host`.
inline const std::string kPersistent = "persistent", kPersistentHost = "persistent on the host";

// Writes a trace through the meta device, as a step does.
class Recorder {
 public:
  explicit Recorder(const std::vector<std::string>& streams) {
    for (const std::string& name : streams) streams_.push_back(device_.make_stream(name));
  }

  int buffer(const std::string& name, const std::string& category, std::int64_t bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(device_.allocate(bytes));
    buffers_.push_back({.name = name,
                        .category = category,
                        .address = address,
                        .bytes = bytes,
                        .space = category == kPersistent       ? Space::persistent
                                 : category == kPersistentHost ? Space::persistent_host
                                                               : Space::device});
    return static_cast<int>(buffers_.size()) - 1;
  }
  Access read(int buffer) const { return whole(buffer, false); }
  Access write(int buffer) const { return whole(buffer, true); }
  // One op that reads and writes complete buffers.
  void work(int stream, const char* name, const std::vector<int>& reads, const std::vector<int>& writes,
            CollectiveNote note = {}) {
    OpRecord record{.name = name, .kind = OpKind::communication, .collective = std::move(note)};
    for (const int b : reads) record.accesses.push_back(read(b));
    for (const int b : writes) record.accesses.push_back(write(b));
    launch(stream, std::move(record));
  }
  void launch(int stream, OpRecord record) { at(stream).launch(std::move(record), {}); }
  Event record_event(int stream) { return at(stream).record_event(); }
  void wait(int stream, const Event& event) { at(stream).wait(event); }
  // `later` waits for the work that `earlier` has enqueued so far.
  void after(int later, int earlier) { wait(later, record_event(earlier)); }
  void instruction(int instruction) { device_.set_instruction(instruction); }

  const Trace& trace() const { return device_.trace(); }
  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  Stream& at(int stream) { return *streams_[static_cast<std::size_t>(stream)]; }
  Access whole(int buffer, bool write) const {
    const Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
    return {.address = b.address, .row_bytes = b.bytes, .write = write};
  }

  MetaDevice device_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Buffer> buffers_;
};

inline int pick(std::mt19937& random, int begin, int end) {  // in [begin, end)
  return std::uniform_int_distribution<int>(begin, end - 1)(random);
}

// Random items on a few streams; most buffers are short-lived, like temps, and none is larger than `max_bytes`. With
// `slices`, accesses are parts of buffers.
inline std::unique_ptr<Recorder> random_trace(unsigned seed, int streams, int items, int buffers, bool slices = false,
                                              int max_bytes = 4999) {
  std::mt19937 random(seed);
  std::vector<std::string> names;
  for (int s = 0; s < streams; ++s) names.push_back("stream" + std::to_string(s));
  auto out = std::make_unique<Recorder>(names);
  for (int b = 0; b < buffers; ++b) {
    out->buffer("buffer " + std::to_string(b), pick(random, 0, 10) == 0 ? kPersistent : "temp",
                pick(random, 1, max_bytes + 1));
  }
  std::vector<Event> events;
  for (int i = 0; i < items; ++i) {
    const int stream = pick(random, 0, streams), what = pick(random, 0, 10);
    if (what < 2) {
      events.push_back(out->record_event(stream));
    } else if (what < 5 && !events.empty()) {
      const int back = std::min(static_cast<int>(events.size()), 6);
      out->wait(stream, events[events.size() - static_cast<std::size_t>(pick(random, 1, back + 1))]);
    } else {
      OpRecord record{.name = "work", .kind = OpKind::copy};
      const int count = pick(random, 1, 4);
      for (int k = 0; k < count; ++k) {
        // Mostly a buffer from a window that moves with the items, sometimes any buffer.
        const int at = pick(random, 0, 8) == 0 ? pick(random, 0, buffers)
                                               : std::min(buffers - 1, i * buffers / items + pick(random, 0, 4));
        Access access = pick(random, 0, 2) == 0 ? out->read(at) : out->write(at);
        if (slices && access.row_bytes > 1) {
          const int begin = pick(random, 0, static_cast<int>(access.row_bytes));
          access.address += static_cast<std::uint64_t>(begin);
          access.row_bytes = pick(random, 1, static_cast<int>(access.row_bytes) - begin + 1);
        }
        record.accesses.push_back(access);
      }
      out->launch(stream, std::move(record));
    }
  }
  return out;
}

// A step of sharded data parallel training with context parallelism, as step/ writes it: weights are gathered one unit
// ahead into a fixed number of buffers, K and V are exchanged inside attention, gradients are reduced after backward.
struct StepSizes {
  int layers = 8, micro_batches = 1;
  std::int64_t rows = 1024, width = 512, inner = 1536, vocabulary = 16000, ranks = 4;
  std::int64_t kv = 128;  // width of K and of V
  bool full = false;      // full checkpointing: only x is saved
  int weight_buffers = 2;
  std::int64_t weight_bytes = 2;  // per element of gathered weights
};

enum StepStream { kCompute, kExchange, kGather, kReduce };

class StepTrace {
 public:
  explicit StepTrace(const StepSizes& sizes) : s_(sizes), r_({"compute", "exchange", "gather", "reduce"}) {
    for (int u = 0; u < units(); ++u) {
      shards_.push_back(r_.buffer(name("shard", u), kPersistent, 4 * parameters(u) / s_.ranks));
      gradients_.push_back(r_.buffer(name("gradient shard", u), kPersistent, 4 * parameters(u) / s_.ranks));
    }
    batch_ = r_.buffer("batch", kPersistent, 4 * s_.rows * 3);
    loss_ = r_.buffer("loss", "state", 4);
    r_.work(kCompute, "zero", {}, {loss_});
    for (int m = 0; m < s_.micro_batches; ++m) micro_batch(m);
    r_.after(kCompute, kReduce);
    const int norm = r_.buffer("norm", "state", 4);
    r_.work(kCompute, "sum_squares", gradients_, {norm});
    r_.work(kCompute, "all_reduce", {norm}, {norm}, note(CollectiveKind::all_reduce, "data", 4));
    for (int u = 0; u < units(); ++u) {
      r_.work(kCompute, "adamw", {shards_[static_cast<std::size_t>(u)], gradients_[static_cast<std::size_t>(u)], norm},
              {shards_[static_cast<std::size_t>(u)]});
    }
    r_.work(kCompute, "all_reduce", {loss_}, {loss_}, note(CollectiveKind::all_reduce, "data", 4));
  }

  Recorder& recorder() { return r_; }

 private:
  // Unit 0 is the embedding, the last is the head, the others are blocks of attention and MLP.
  int units() const { return s_.layers + 2; }
  std::int64_t parameters(int unit) const {
    if (unit == 0 || unit == units() - 1) return s_.vocabulary * s_.width;
    return s_.width * (2 * s_.width + 2 * s_.kv + 3 * s_.inner);
  }
  static std::string name(const char* what, int unit) { return std::string(what) + " " + std::to_string(unit); }
  static CollectiveNote note(CollectiveKind kind, const char* group, std::int64_t bytes) {
    return {.kind = kind, .communicator = group, .bytes = bytes};
  }
  int temp(const char* what, std::int64_t bytes) { return r_.buffer(what, "temp", bytes); }
  std::int64_t wide(std::int64_t columns) const { return 4 * s_.rows * columns; }

  struct Saved {
    int rstd = -1, normed = -1, qkv = -1, out = -1, lse = -1, rstd2 = -1, normed2 = -1, gate_up = -1, inner = -1;
    int x = -1, middle = -1;
  };

  // Gathers run one unit ahead; a gather waits until the unit whose buffer it overwrites is done.
  int gather(int unit) {
    const int whole = r_.buffer(name("weights", unit), "weights", s_.weight_bytes * parameters(unit));
    const auto kept = static_cast<std::size_t>(s_.weight_buffers - 1);
    if (turns_.size() >= kept) r_.wait(kGather, turns_[turns_.size() - kept]);
    r_.work(kGather, "all_gather", {shards_[static_cast<std::size_t>(unit)]}, {whole},
            note(CollectiveKind::all_gather, "shard/gather", s_.weight_bytes * parameters(unit) / s_.ranks));
    gathered_ = r_.record_event(kGather);
    return whole;
  }
  void use_gathered(const Event& event) { r_.wait(kCompute, event); }
  void done_with_unit() { turns_.push_back(r_.record_event(kCompute)); }

  void attention(const Saved& s) {
    const int keys = temp("gathered keys", wide(2 * s_.kv) * 2);
    const int packed = temp("packed keys", wide(2 * s_.kv));
    r_.work(kCompute, "pack", {s.qkv}, {packed});
    r_.after(kExchange, kCompute);
    r_.work(kExchange, "all_gather", {packed}, {keys}, note(CollectiveKind::all_gather, "context", wide(2 * s_.kv)));
    const Event arrived = r_.record_event(kExchange);
    const int workspace = temp("attention workspace", 4 * 128 * 128 * 4);
    r_.work(kCompute, "attention_local", {s.qkv}, {s.out, s.lse, workspace});
    r_.wait(kCompute, arrived);
    const int part = temp("part", wide(s_.width)), part_lse = temp("part lse", wide(8));
    r_.work(kCompute, "attention_remote", {s.qkv, keys}, {part, part_lse, workspace});
    r_.work(kCompute, "attention_combine", {s.out, s.lse, part, part_lse}, {s.out, s.lse});
  }

  Saved slots(int layer) {
    const auto keep = [&](const char* what, std::int64_t bytes) {
      return r_.buffer(name(what, layer), "saved", bytes);
    };
    return {.rstd = keep("rstd", wide(1)),
            .normed = keep("normed", wide(s_.width)),
            .qkv = keep("qkv", wide(s_.width + 2 * s_.kv)),
            .out = keep("out", wide(s_.width)),
            .lse = keep("lse", wide(8)),
            .rstd2 = keep("rstd2", wide(1)),
            .normed2 = keep("normed2", wide(s_.width)),
            .gate_up = keep("gate_up", wide(2 * s_.inner)),
            .inner = keep("inner", wide(s_.inner))};
  }

  void forward(Saved& s, int weights, int y) {
    r_.work(kCompute, "rms_norm", {s.x, weights}, {s.normed, s.rstd});
    r_.work(kCompute, "gemm", {s.normed, weights}, {s.qkv});
    attention(s);
    r_.work(kCompute, "gemm", {s.out, weights}, {s.middle});
    r_.work(kCompute, "add", {s.x, s.middle}, {s.middle});
    r_.work(kCompute, "rms_norm", {s.middle, weights}, {s.normed2, s.rstd2});
    r_.work(kCompute, "gemm", {s.normed2, weights}, {s.gate_up});
    r_.work(kCompute, "swiglu", {s.gate_up}, {s.inner});
    if (y < 0) return;
    r_.work(kCompute, "gemm", {s.inner, weights}, {y});
    r_.work(kCompute, "add", {s.middle, y}, {y});
  }

  void backward(const Saved& s, int weights, int gradient, int dy, int dx) {
    const int dinner = temp("dinner", wide(s_.inner));
    r_.work(kCompute, "gemm", {dy, s.inner}, {gradient});
    r_.work(kCompute, "gemm", {dy, weights}, {dinner});
    r_.work(kCompute, "swiglu_backward", {s.gate_up, dinner}, {s.gate_up});
    r_.work(kCompute, "gemm", {s.gate_up, s.normed2, gradient}, {gradient});
    const int dnormed = temp("dnormed", wide(s_.width)), workspace = temp("norm workspace", 4 * 64 * s_.width);
    const int dmiddle = temp("dmiddle", wide(s_.width));
    r_.work(kCompute, "gemm", {s.gate_up, weights}, {dnormed});
    r_.work(kCompute, "rms_norm_backward", {s.middle, dnormed, dy, s.rstd2, gradient}, {dmiddle, gradient, workspace});
    const int d_o = temp("d_o", wide(s_.width)), dqkv = temp("dqkv", wide(s_.width + 2 * s_.kv));
    r_.work(kCompute, "gemm", {dmiddle, s.out, gradient}, {gradient});
    r_.work(kCompute, "gemm", {dmiddle, weights}, {d_o});
    const int packed = temp("packed keys", wide(2 * s_.kv)), keys = temp("gathered keys", wide(2 * s_.kv) * 2);
    r_.work(kCompute, "pack", {s.qkv}, {packed});
    r_.after(kExchange, kCompute);
    r_.work(kExchange, "all_gather", {packed}, {keys}, note(CollectiveKind::all_gather, "context", wide(2 * s_.kv)));
    r_.after(kCompute, kExchange);
    const int dkeys = temp("dkeys", wide(2 * s_.kv) * 2), dlocal = temp("dlocal", wide(2 * s_.kv));
    const int workspace2 = temp("attention workspace", 4 * 128 * 128 * 16);
    r_.work(kCompute, "attention_backward", {s.qkv, keys, s.out, s.lse, d_o}, {dqkv, dkeys, workspace2});
    r_.after(kExchange, kCompute);
    r_.work(kExchange, "reduce_scatter", {dkeys}, {dlocal},
            note(CollectiveKind::reduce_scatter, "context", wide(2 * s_.kv)));
    r_.after(kCompute, kExchange);
    r_.work(kCompute, "unpack", {dlocal}, {dqkv});
    r_.work(kCompute, "gemm", {dqkv, s.normed, gradient}, {gradient});
    const int dnormed1 = temp("dnormed", wide(s_.width)), workspace3 = temp("norm workspace", 4 * 64 * s_.width);
    r_.work(kCompute, "gemm", {dqkv, weights}, {dnormed1});
    r_.work(kCompute, "rms_norm_backward", {s.x, dnormed1, dmiddle, s.rstd, gradient}, {dx, gradient, workspace3});
  }

  // Gradients are reduced after backward; a new one waits for the reduction two before.
  int new_gradient(int unit) {
    if (reduced_.size() >= 2) r_.wait(kCompute, reduced_[reduced_.size() - 2]);
    return r_.buffer(name("gradients", unit), "gradients", 4 * parameters(unit));
  }
  void reduce(int unit, int gradient, bool accumulate) {
    r_.after(kReduce, kCompute);
    const int workspace = temp("reduce workspace", std::min<std::int64_t>(4 * parameters(unit), 6 << 20));
    const int shard = gradients_[static_cast<std::size_t>(unit)];
    r_.work(kReduce, "reduce_scatter", accumulate ? std::vector<int>{gradient, shard} : std::vector<int>{gradient},
            {shard, workspace}, note(CollectiveKind::reduce_scatter, "shard/reduce", 4 * parameters(unit) / s_.ranks));
    reduced_.push_back(r_.record_event(kReduce));
  }

  void micro_batch(int m) {
    std::vector<Saved> saved(static_cast<std::size_t>(s_.layers));
    const auto instruction = [&](int unit, int phase) { r_.instruction((m * 2 + phase) * units() + unit); };
    instruction(0, 0);
    int weights = gather(0);
    Event ready = gathered_;
    int x = r_.buffer("x 0", "saved", wide(s_.width));
    for (int u = 0; u < units() - 1; ++u) {
      instruction(u, 0);
      const int next = gather(u + 1);
      const Event next_ready = gathered_;
      use_gathered(ready);
      if (u == 0) {
        r_.work(kCompute, "embedding", {batch_, weights}, {x});
      } else {
        Saved& s = saved[static_cast<std::size_t>(u - 1)];
        Saved now = slots(u);
        now.x = x;
        now.middle = r_.buffer(name("middle", u), s_.full ? "temp" : "saved", wide(s_.width));
        x = r_.buffer(name("x", u), "saved", wide(s_.width));
        forward(now, weights, x);
        s = now;
      }
      done_with_unit();
      weights = next, ready = next_ready;
    }
    // Head.
    instruction(units() - 1, 0);
    int next = gather(units() - 2);
    Event next_ready = gathered_;
    use_gathered(ready);
    const int h = temp("h", wide(s_.width)), dh = temp("dh", wide(s_.width)), hr = temp("hr", wide(1));
    r_.work(kCompute, "rms_norm", {x, weights}, {h, hr});
    const int logits = temp("logits", std::min<std::int64_t>(wide(s_.vocabulary), 64 << 20));
    int gradient = new_gradient(units() - 1);
    r_.work(kCompute, "linear_cross_entropy", {h, weights, batch_, loss_}, {dh, gradient, logits, loss_});
    int dy = temp("dy", wide(s_.width));
    r_.work(kCompute, "rms_norm_backward", {dh, x, hr, gradient}, {dy, gradient});
    done_with_unit();
    reduce(units() - 1, gradient, m > 0);
    for (int u = units() - 2; u >= 0; --u) {
      instruction(u, 1);
      weights = next, ready = next_ready;
      if (u > 1) {
        next = gather(u - 1);
        next_ready = gathered_;
      }
      gradient = new_gradient(u);
      if (u > 0) use_gathered(ready);
      if (u == 0) {
        r_.work(kCompute, "embedding_backward", {dy, batch_}, {gradient});
      } else {
        Saved s = saved[static_cast<std::size_t>(u - 1)];
        if (s_.full) {  // recompute everything but x
          const int kept = s.x;
          s = slots(u);
          s.x = kept;
          s.middle = temp("middle again", wide(s_.width));
          forward(s, weights, -1);
        }
        const int dx = temp("dx", wide(s_.width));
        backward(s, weights, gradient, dy, dx);
        dy = dx;
      }
      done_with_unit();
      reduce(u, gradient, m > 0);
    }
  }

  StepSizes s_;
  Recorder r_;
  std::vector<int> shards_, gradients_;
  int batch_ = -1, loss_ = -1;
  Event gathered_;
  std::vector<Event> turns_, reduced_;
};

}  // namespace hawser::program::testing

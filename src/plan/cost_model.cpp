#include "plan/cost_model.h"

#include <algorithm>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "base/for_each_index.h"
#include "program/conversation.h"

namespace hawser::plan {

Members members_of(const std::string& communicator, int ranks_per_node) {
  Members out{.count = 0, .on_first_node = 0};
  const char* at = communicator.c_str() + std::min(communicator.size(), communicator.find(':') + 1);
  const auto number = [&] {
    char* end = nullptr;
    const long value = std::strtol(at, &end, 10);
    at = end;
    return static_cast<int>(value);
  };
  while (*at >= '0' && *at <= '9') {
    const int first = number();
    int last = first, step = 1;
    if (*at == '-') {
      ++at;
      last = number();
    }
    if (*at == ':') {
      ++at;
      step = std::max(1, number());
    }
    if (out.count == 0) out.first = first;
    out.count += (last - first) / step + 1;
    out.last = std::max(out.last, last);
    if (ranks_per_node > 0) {
      const int end = std::min(last, (out.first / ranks_per_node + 1) * ranks_per_node - 1);
      if (end >= first && first / ranks_per_node == out.first / ranks_per_node)
        out.on_first_node += (end - first) / step + 1;
    }
    if (*at == ',') ++at;
  }
  out.count = std::max(out.count, 1);
  return out;
}

std::string group_kind(const std::string& communicator) {
  return communicator.substr(0, communicator.find(':'));
}

double bytes_sent(const CollectiveNote& note, int count, bool counted) {
  const double bytes = static_cast<double>(note.bytes), others = count - 1;
  switch (note.kind) {
    case CollectiveKind::all_gather:      // a member's shard, to each of the others
    case CollectiveKind::reduce_scatter:  // one shard to each of the others
      return others * bytes;
    case CollectiveKind::all_reduce:
      return 2 * others / count * bytes;
    case CollectiveKind::all_to_all:  // of equal parts, to each of the others one
      return others / count * bytes;
    case CollectiveKind::all_to_all_v:
      return others / count * (counted ? note.expected_bytes : bytes);
    case CollectiveKind::broadcast:
    case CollectiveKind::send:
    case CollectiveKind::exchange:
      return bytes;
    case CollectiveKind::none:
    case CollectiveKind::receive:
    case CollectiveKind::barrier:
      break;
  }
  return 0;
}

namespace {

struct Duration {
  double seconds = 0;
  const char* what = "other work";
  const Link* link = nullptr;
};

class Pricer {
 public:
  Pricer(const Target& target, DType compute, double rate_scale)
      : target_(target), rates_(target.rates(compute)), rate_scale_(rate_scale) {}

  Duration price(const OpRecord& record) {
    if (record.collective.kind != CollectiveKind::none) return message(record.collective);
    if (record.kind == OpKind::transfer && target_.host.rate > 0) return transfer(record);
    const auto [rate, what] = rate_of(record.kind);
    Duration out{.what = what};
    double bytes = record.bytes;
    if (bytes == 0) {
      for (const Access& a : record.accesses) bytes += static_cast<double>(a.row_bytes * a.rows);
    }
    // FLOPs determine the time of a large GEMM, whose tiles are read from cache; bytes, that of a small one.
    out.seconds = bytes / (target_.copy * rate_scale_);
    if (rate > 0) out.seconds = std::max(out.seconds, record.flops / (rate * rate_scale_));
    out.seconds = std::max(out.seconds, target_.launch);
    return out;
  }

 private:
  struct Route {
    const Link* link;
    double rate, pair_rate;
    int count;
    bool counted;
  };

  // Rates of the tiled kernel of attention (ops/attention/attention_tiled_cuda.cu) as parts of cuDNN's, measured with
  // bench_attention_cuda on an H200.
  static constexpr double kTiledForward = 0.12, kTiledBackward = 0.11;

  struct Rate {
    double flops = 0;  // a second; 0: the time is that of the bytes
    const char* what = "other work";
  };

  Rate rate_of(OpKind kind) const {
    switch (bound_of(kind)) {
      case Bound::gemm:
        return {rates_.gemm, "GEMM"};
      case Bound::gemm_fp8:
        return {target_.gemm_fp8 > 0 ? target_.gemm_fp8 : rates_.gemm, "GEMM"};
      case Bound::gemm_fp8_block:
        return {target_.gemm_fp8_block > 0 ? target_.gemm_fp8_block : rates_.gemm, "GEMM"};
      case Bound::attention_forward:
        return {rates_.attention.forward, "attention"};
      case Bound::attention_backward:
        return {rates_.attention.backward, "attention"};
      case Bound::attention_tiled_forward:
        return {kTiledForward * rates_.attention.forward, "attention"};
      case Bound::attention_tiled_backward:
        return {kTiledBackward * rates_.attention.backward, "attention"};
      case Bound::attention_plain_forward:  // computes in float32
        return {target_.float32.attention.forward, kSlowAttention};
      case Bound::attention_plain_backward:
        return {target_.float32.attention.backward, kSlowAttention};
      case Bound::attention_combine:  // few FLOPs a byte
      case Bound::bytes:
        break;
    }
    return {};
  }

  // A record lists what it reads and what it writes, or only the one that the plan knows: both have the same size.
  Duration transfer(const OpRecord& record) const {
    double bytes = record.bytes;
    for (const Access& a : record.accesses) bytes = std::max(bytes, static_cast<double>(a.row_bytes * a.rows));
    return {.seconds = std::max(bytes / target_.host.rate, target_.host.latency), .what = "host transfers"};
  }

  Duration message(const CollectiveNote& note) {
    const auto [it, added] = routes_.try_emplace(note.communicator);
    if (added) it->second = route(note.communicator);
    const Route& route = it->second;
    const bool pair = note.kind == CollectiveKind::send || note.kind == CollectiveKind::receive ||
                      note.kind == CollectiveKind::exchange;
    const double seconds = pair ? static_cast<double>(note.bytes) / route.pair_rate
                                : bytes_sent(note, route.count, route.counted) / route.rate;
    return {route.link->latency + seconds, "communication", route.link};
  }

  Route route(const std::string& communicator) const {
    const Members all = members_of(communicator, 0);
    const Link& link = target_.link(all.first, all.last);
    const auto index = static_cast<std::size_t>(&link - target_.links.data());
    const bool counted = target_.sends_counted_rows(all.first, all.last);
    if (index == 0) return {&link, link.rate, link.rate, all.count, counted};
    const Link& near = target_.links[index - 1];
    const int inside = members_of(communicator, near.ranks).on_first_node;
    return {&link, std::min(near.rate, inside * link.rate), std::min(near.rate, link.rate), all.count, counted};
  }

  const Target& target_;
  const ComputeRates& rates_;
  double rate_scale_;
  std::unordered_map<std::string, Route> routes_;
};

}  // namespace

std::vector<double> item_seconds(const Trace& trace, const Target& target, DType compute, double rate_scale) {
  Pricer pricer(target, compute, rate_scale);
  std::vector<double> out;
  for (const TraceItem& item : trace.items) {
    out.push_back(item.kind == TraceItem::Kind::work ? pricer.price(item.record).seconds : 0);
  }
  return out;
}

std::vector<StepTime> step_times(const std::vector<program::RankTrace>& ranks, const Target& target, DType compute,
                                 double rate_scale) {
  std::vector<StepTime> out(ranks.size());
  std::vector<std::vector<double>> seconds(ranks.size());  // by rank and item
  std::vector<double> sums(ranks.size(), 0), links(ranks.size(), 0);
  Pricer pricer(target, compute, rate_scale);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::unordered_map<const Link*, double> carried;
    for (const TraceItem& item : ranks[r].trace->items) {
      seconds[r].push_back(0);
      if (item.kind != TraceItem::Kind::work) continue;
      const Duration duration = pricer.price(item.record);
      seconds[r].back() = duration.seconds;
      sums[r] += duration.seconds;
      out[r].busy[duration.what] += duration.seconds;
      if (duration.link != nullptr) carried[duration.link] += duration.seconds;
    }
    for (const auto& [link, of_link] : carried) links[r] = std::max(links[r], of_link);
  }
  const auto no_less = [&](std::size_t r, double end) { return std::max(end, target.overlap ? links[r] : sums[r]); };
  const auto seconds_of_item = [&](std::size_t rank, int item) {
    return seconds[rank][static_cast<std::size_t>(item)];
  };
  const std::vector<double> ends = program::end_times(ranks, seconds_of_item);
  for (std::size_t r = 0; r < ranks.size(); ++r) out[r].seconds = out[r].alone = no_less(r, ends[r]);
  if (ranks.size() == 1) return out;
  for_each_index(ranks.size(), [&](std::size_t r) {
    const auto own = program::end_times({ranks[r]}, [&](std::size_t, int item) { return seconds_of_item(r, item); });
    out[r].alone = no_less(r, own.front());
  });
  return out;
}

StepTime step_time(const Trace& trace, const Target& target, DType compute, double rate_scale) {
  return step_times({{.trace = &trace}}, target, compute, rate_scale).front();
}

double seconds_of(const std::vector<StepTime>& stages) {
  return std::ranges::max(stages, {}, &StepTime::seconds).seconds;
}

double bubble_of(const std::vector<StepTime>& stages) {
  double alone = 0;
  for (const StepTime& stage : stages) alone += stage.alone;
  return 1 - alone / (static_cast<double>(stages.size()) * seconds_of(stages));
}

}  // namespace hawser::plan

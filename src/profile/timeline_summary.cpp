#include "profile/timeline_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace hawser::profile {

namespace {

struct Stretch {
  std::int64_t begin = 0, end = 0;
};
using Stretches = std::vector<Stretch>;  // in order, disjoint

double seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

Stretches united(Stretches all) {
  std::sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  Stretches out;
  for (const Stretch& one : all) {
    if (one.end <= one.begin) continue;
    if (!out.empty() && one.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, one.end);
    } else {
      out.push_back(one);
    }
  }
  return out;
}

std::int64_t length(const Stretches& stretches) {
  std::int64_t sum = 0;
  for (const Stretch& one : stretches) sum += one.end - one.begin;
  return sum;
}

// Length of the part of [begin, end) that the stretches cover.
std::int64_t covered(const Stretches& stretches, std::int64_t begin, std::int64_t end) {
  auto it = std::partition_point(stretches.begin(), stretches.end(), [&](const Stretch& s) { return s.end <= begin; });
  std::int64_t sum = 0;
  for (; it != stretches.end() && it->begin < end; ++it) sum += std::min(it->end, end) - std::max(it->begin, begin);
  return sum;
}

// "forward block 3 mlp" -> "forward block # mlp": instructions that do the same work.
std::string kind_of_instruction(const std::string& instruction) {
  std::string out;
  for (const char c : instruction) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) out += c;
    if (digit && !out.ends_with('#')) out += '#';
  }
  return out;
}

std::string place_of(const RankTimeline& timeline, const TimelineSpan& span) {
  const std::string instruction =
      span.instruction >= 0 ? timeline.instructions[static_cast<std::size_t>(span.instruction)] : "no instruction";
  return instruction + ": " + (span.op_name.empty() ? span.name : span.op_name);
}

struct Lanes {
  std::vector<Stretches> all;  // by lane; the host's is empty
  std::vector<Stretches> communication;
  Stretches compute_work;  // of the compute stream, without communication
};

Lanes lanes_of(const RankTimeline& timeline, int compute) {
  Lanes out{.all = std::vector<Stretches>(timeline.lanes.size()),
            .communication = std::vector<Stretches>(timeline.lanes.size())};
  for (const TimelineSpan& span : timeline.spans) {
    if (span.kind == TimelineSpan::Kind::host) continue;
    const auto lane = static_cast<std::size_t>(span.lane);
    out.all[lane].push_back({span.begin, span.end});
    if (span.communication) out.communication[lane].push_back({span.begin, span.end});
    if (!span.communication && span.lane == compute) out.compute_work.push_back({span.begin, span.end});
  }
  for (Stretches& lane : out.all) lane = united(std::move(lane));
  for (Stretches& lane : out.communication) lane = united(std::move(lane));
  out.compute_work = united(std::move(out.compute_work));
  return out;
}

std::vector<TimelineGap> gaps_of(const RankTimeline& timeline, const Lanes& lanes, int compute, std::int64_t begin,
                                 std::int64_t end, std::size_t max) {
  struct Gap {
    std::int64_t begin, end;
    const TimelineSpan *before, *after;
  };
  std::vector<Gap> gaps;
  std::int64_t reached = begin;
  const TimelineSpan* last = nullptr;
  for (const TimelineSpan& span : timeline.spans) {
    if (span.lane != compute) continue;
    if (span.begin > reached) gaps.push_back({reached, span.begin, last, &span});
    if (span.end >= reached) reached = span.end, last = &span;
  }
  if (end > reached) gaps.push_back({reached, end, last, nullptr});
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const Gap& a, const Gap& b) { return a.end - a.begin > b.end - b.begin; });
  if (gaps.size() > max) gaps.resize(max);
  std::vector<TimelineGap> out;
  for (const Gap& gap : gaps) {
    TimelineGap one{.at_s = seconds(gap.begin - begin),
                    .seconds = seconds(gap.end - gap.begin),
                    .before = gap.before != nullptr ? place_of(timeline, *gap.before) : "start",
                    .after = gap.after != nullptr ? place_of(timeline, *gap.after) : "end"};
    std::int64_t max_busy = 0;
    for (std::size_t lane = 0; lane < lanes.all.size(); ++lane) {
      const std::int64_t busy = covered(lanes.all[lane], gap.begin, gap.end);
      if (busy <= max_busy) continue;
      max_busy = busy;
      one.meanwhile = fmt::format("{} {:.0f}%", timeline.lanes[lane],
                                  100 * static_cast<double>(busy) / static_cast<double>(gap.end - gap.begin));
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<FamilyUse> families_of(const RankTimeline& timeline, const Stretches& communication, int compute) {
  // The same work: the n-th span of instructions of one kind.
  struct Same {
    std::string family;
    double alone = 0, overlapped = 0;
    std::int64_t count_alone = 0, count_overlapped = 0;
  };
  std::map<std::pair<std::string, std::size_t>, Same> same;
  std::map<std::string, FamilyUse> families;
  for (const TimelineGroup& group : groups_by_instruction(timeline)) {
    if (group.lane != compute) continue;
    for (std::size_t i = 0; i < group.count; ++i) {
      const TimelineSpan& span = timeline.spans[group.first + i];
      if (span.communication || span.kind == TimelineSpan::Kind::host || span.end == span.begin) continue;
      const std::string family = span.family.empty() ? span.name : span.family;
      const double took = seconds(span.end - span.begin);
      const double overlapped = seconds(covered(communication, span.begin, span.end));
      FamilyUse& use = families[family];
      use.busy_s += took;
      use.overlapped_s += overlapped;
      Same& work = same[{kind_of_instruction(timeline.instructions[static_cast<std::size_t>(span.instruction)]), i}];
      work.family = family;
      if (overlapped < 0.02 * took) work.alone += took, ++work.count_alone;
      if (overlapped > 0.9 * took) work.overlapped += took, ++work.count_overlapped;
    }
  }
  std::map<std::string, std::pair<double, double>> pairs;  // overlapped time; time of the same work without overlap
  for (const auto& [place, work] : same) {
    if (work.count_alone == 0 || work.count_overlapped == 0) continue;
    auto& [overlapped, alone] = pairs[work.family];
    overlapped += work.overlapped;
    alone += work.alone / static_cast<double>(work.count_alone) * static_cast<double>(work.count_overlapped);
  }
  std::vector<FamilyUse> out;
  for (auto& [family, use] : families) {
    use.family = family;
    if (const auto found = pairs.find(family); found != pairs.end()) {
      use.slowdown = found->second.first / found->second.second;
    }
    out.push_back(use);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.busy_s > b.busy_s; });
  return out;
}

}  // namespace

TimelineSummary summarize(const RankTimeline& timeline, std::size_t max_gaps) {
  TimelineSummary out{.rank = timeline.rank};
  const auto found = std::find(timeline.lanes.begin(), timeline.lanes.end(), "compute");
  const int compute = found == timeline.lanes.end() ? -1 : static_cast<int>(found - timeline.lanes.begin());
  std::int64_t begin = INT64_MAX, end = INT64_MIN;
  std::vector<std::int64_t> counts(timeline.lanes.size());
  for (const TimelineSpan& span : timeline.spans) {
    if (span.kind == TimelineSpan::Kind::host) continue;
    begin = std::min(begin, span.begin), end = std::max(end, span.end);
    ++counts[static_cast<std::size_t>(span.lane)];
    if (span.instruction < 0) ++out.unknown_spans;
  }
  if (begin >= end) return out;
  out.seconds = seconds(end - begin);
  const Lanes lanes = lanes_of(timeline, compute);
  Stretches communication, elsewhere;
  for (std::size_t lane = 0; lane < lanes.all.size(); ++lane) {
    if (counts[lane] > 0) out.lanes.push_back({timeline.lanes[lane], seconds(length(lanes.all[lane])), counts[lane]});
    const Stretches& talks = lanes.communication[lane];
    communication.insert(communication.end(), talks.begin(), talks.end());
    if (static_cast<int>(lane) != compute) elsewhere.insert(elsewhere.end(), talks.begin(), talks.end());
  }
  communication = united(std::move(communication));
  out.communication_s = seconds(length(communication));
  std::int64_t hidden = 0;
  for (const Stretch& one : communication) hidden += covered(lanes.compute_work, one.begin, one.end);
  out.exposed_communication_s = out.communication_s - seconds(hidden);
  if (compute < 0) return out;
  out.compute_idle_s = out.seconds - seconds(length(lanes.all[static_cast<std::size_t>(compute)]));
  out.gaps = gaps_of(timeline, lanes, compute, begin, end, max_gaps);
  out.families = families_of(timeline, united(std::move(elsewhere)), compute);
  return out;
}

double idle_of(const std::vector<RankTimeline>& ranks) {
  std::int64_t begin = INT64_MAX, end = 0, computing = 0;
  for (const RankTimeline& rank : ranks) {
    Stretches work;
    for (const TimelineSpan& span : rank.spans) {
      if (span.kind == TimelineSpan::Kind::host) continue;
      begin = std::min(begin, span.begin), end = std::max(end, span.end);
      const bool computes = rank.lanes[static_cast<std::size_t>(span.lane)] == "compute" && !span.communication;
      if (computes) work.push_back({span.begin, span.end});
    }
    computing += length(united(std::move(work)));
  }
  if (end <= begin) return 0;
  return 1 - static_cast<double>(computing) / (static_cast<double>(ranks.size()) * static_cast<double>(end - begin));
}

std::string summary_text(const std::vector<TimelineSummary>& ranks) {
  if (ranks.empty()) return {};
  const TimelineSummary& first = ranks.front();
  std::string out;
  const auto line = [&](const std::string& text) { out += text + "\n"; };
  const auto share = [&](double part) { return first.seconds > 0 ? 100 * part / first.seconds : 0.0; };
  line(fmt::format("timeline of rank {}: {:.3f} ms from the first span to the end of the last", first.rank,
                   1e3 * first.seconds));
  line(fmt::format("  {:<24} {:>10} {:>7} {:>8}", "stream", "busy ms", "share", "spans"));
  for (const LaneUse& lane : first.lanes) {
    line(fmt::format("  {:<24} {:>10.3f} {:>6.1f}% {:>8}", lane.name, 1e3 * lane.busy_s, share(lane.busy_s),
                     lane.spans));
  }
  line(
      fmt::format("  compute idle {:.3f} ms ({:.1f}%); communication {:.3f} ms, {:.3f} ms of it exposed "
                  "({:.1f}% of the step)",
                  1e3 * first.compute_idle_s, share(first.compute_idle_s), 1e3 * first.communication_s,
                  1e3 * first.exposed_communication_s, share(first.exposed_communication_s)));
  if (first.unknown_spans > 0) line(fmt::format("  {} spans belong to no instruction", first.unknown_spans));
  if (!first.gaps.empty()) {
    line("  longest gaps of the compute stream");
    line(fmt::format("  {:>9} {:>10}  {}", "ms", "at ms", "after -> before (busiest stream meanwhile)"));
    for (const TimelineGap& gap : first.gaps) {
      line(fmt::format("  {:>9.3f} {:>10.3f}  {} -> {}{}", 1e3 * gap.seconds, 1e3 * gap.at_s, gap.before, gap.after,
                       gap.meanwhile.empty() ? "" : " (" + gap.meanwhile + ")"));
    }
  }
  if (!first.families.empty()) {
    line("  work of the compute stream (0.1% or more), and its slowdown during communication");
    line(fmt::format("  {:<24} {:>10} {:>7} {:>10} {:>8}", "family", "ms", "share", "overlap ms", "slower"));
    for (const FamilyUse& use : first.families) {
      if (use.busy_s < 1e-3 * first.seconds) continue;
      line(fmt::format("  {:<24} {:>10.3f} {:>6.1f}% {:>10.3f} {:>8}", use.family, 1e3 * use.busy_s, share(use.busy_s),
                       1e3 * use.overlapped_s,
                       use.slowdown > 0 ? fmt::format("{:+.1f}%", 100 * (use.slowdown - 1)) : std::string("-")));
    }
  }
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const TimelineSummary& one = ranks[i];
    line(fmt::format("rank {}: {:.3f} ms, compute idle {:.3f} ms, communication {:.3f} ms, exposed {:.3f} ms", one.rank,
                     1e3 * one.seconds, 1e3 * one.compute_idle_s, 1e3 * one.communication_s,
                     1e3 * one.exposed_communication_s));
  }
  return out;
}

}  // namespace hawser::profile

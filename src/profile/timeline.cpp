#include "profile/timeline.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "io/json.h"

namespace hawser::profile {

namespace {

using Json = nlohmann::ordered_json;
using Kind = TimelineSpan::Kind;

constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::kernel, "kernel"}, {Kind::copy, "copy"}, {Kind::work, "work"}, {Kind::host, "host"}};

const char* name_of(Kind kind) {
  for (const auto& [one, name] : kKinds) {
    if (one == kind) return name;
  }
  return "?";
}

template <class Same>
std::vector<TimelineGroup> groups(const RankTimeline& timeline, Same same) {
  std::vector<TimelineGroup> out;
  const auto& spans = timeline.spans;
  for (std::size_t i = 0; i < spans.size();) {
    std::size_t next = i + 1;
    std::int64_t end = spans[i].end;
    for (; next < spans.size() && spans[next].lane == spans[i].lane && same(spans[next], spans[i]); ++next)
      end = std::max(end, spans[next].end);
    out.push_back({.begin = spans[i].begin, .end = end, .lane = spans[i].lane, .first = i, .count = next - i});
    i = next;
  }
  return out;
}

double microseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e3;
}

Json slice(const char* category, const std::string& name, int rank, int lane, std::int64_t begin, std::int64_t end) {
  return {{"ph", "X"},
          {"cat", category},
          {"name", name},
          {"pid", rank},
          {"tid", lane},
          {"ts", microseconds(begin)},
          {"dur", microseconds(end - begin)}};
}

Json label(const char* what, int rank, int lane, const char* key, const Json& value) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{key, value}}}};
}

void add_rank(const RankTimeline& rank, std::int64_t base, Json& events) {
  events.push_back(label("process_name", rank.rank, 0, "name", cat("rank ", rank.rank)));
  events.push_back(label("process_sort_index", rank.rank, 0, "sort_index", rank.rank));
  for (int lane = 0; lane < static_cast<int>(rank.lanes.size()); ++lane) {
    events.push_back(label("thread_name", rank.rank, lane, "name", rank.lanes[static_cast<std::size_t>(lane)]));
    events.push_back(label("thread_sort_index", rank.rank, lane, "sort_index", lane));
  }
  for (const TimelineCounter& counter : rank.counters) {
    for (const TimelineCounter::Point& point : counter.points) {
      events.push_back({{"ph", "C"},
                        {"name", counter.name},
                        {"pid", rank.rank},
                        {"ts", microseconds(point.at - base)},
                        {"args", {{counter.unit, point.value}}}});
    }
  }
  // Outer slices precede inner ones: a viewer nests slices of equal begin in file order.
  const auto instructions = groups_by_instruction(rank), ops = groups_by_op(rank);
  std::size_t instruction = 0, op = 0;
  for (std::size_t i = 0; i < rank.spans.size(); ++i) {
    const TimelineSpan& span = rank.spans[i];
    const bool leaf_is_instruction = span.kind == Kind::host;
    while (instruction < instructions.size() && instructions[instruction].first < i) ++instruction;
    if (!leaf_is_instruction && instruction < instructions.size() && instructions[instruction].first == i) {
      events.push_back(slice("instruction", rank.instructions[static_cast<std::size_t>(span.instruction)], rank.rank,
                             span.lane, instructions[instruction].begin - base, instructions[instruction].end - base));
    }
    while (op < ops.size() && ops[op].first < i) ++op;
    if (span.kind != Kind::work && !leaf_is_instruction && op < ops.size() && ops[op].first == i) {
      events.push_back(slice("op", span.op_name, rank.rank, span.lane, ops[op].begin - base, ops[op].end - base));
    }
    Json event = slice(name_of(span.kind), span.name, rank.rank, span.lane, span.begin - base, span.end - base);
    event["args"] = {
        {"instruction", span.instruction}, {"op", span.op}, {"work", span.op_name}, {"family", span.family}};
    if (span.communication) event["args"]["communication"] = true;
    events.push_back(std::move(event));
  }
}

}  // namespace

void put_in_order(RankTimeline& timeline) {
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(), [](const TimelineSpan& a, const TimelineSpan& b) {
    return std::tie(a.lane, a.begin, a.end) < std::tie(b.lane, b.begin, b.end);
  });
  for (std::size_t i = 1; i < timeline.spans.size(); ++i) {
    TimelineSpan& span = timeline.spans[i];
    if (timeline.spans[i - 1].lane != span.lane) continue;
    span.begin = std::max(span.begin, timeline.spans[i - 1].end);
    span.end = std::max(span.end, span.begin);
  }
}

std::vector<TimelineGroup> groups_by_instruction(const RankTimeline& timeline) {
  auto out =
      groups(timeline, [](const TimelineSpan& a, const TimelineSpan& b) { return a.instruction == b.instruction; });
  std::erase_if(out, [&](const TimelineGroup& group) { return timeline.spans[group.first].instruction < 0; });
  return out;
}

std::vector<TimelineGroup> groups_by_op(const RankTimeline& timeline) {
  auto out = groups(timeline, [](const TimelineSpan& a, const TimelineSpan& b) {
    return a.instruction == b.instruction && a.op == b.op;
  });
  std::erase_if(out, [&](const TimelineGroup& group) { return timeline.spans[group.first].op < 0; });
  return out;
}

std::string to_chrome_trace(const std::vector<RankTimeline>& ranks) {
  std::int64_t base = INT64_MAX;
  for (const RankTimeline& rank : ranks) {
    for (const TimelineSpan& span : rank.spans) base = std::min(base, span.begin);
  }
  if (base == INT64_MAX) base = 0;
  Json instructions = Json::object();
  for (const RankTimeline& rank : ranks) instructions[std::to_string(rank.rank)] = rank.instructions;
  Json file{{"displayTimeUnit", "ms"},
            {"otherData", {{"program", "hawser"}, {"base_ns", base}, {"instructions", std::move(instructions)}}},
            {"traceEvents", Json::array()}};
  for (const RankTimeline& rank : ranks) add_rank(rank, base, file["traceEvents"]);
  return file.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

namespace {

std::int64_t nanoseconds(const Json& value) {
  return static_cast<std::int64_t>(std::llround(value.get<double>() * 1e3));
}

void read_counter(const Json& event, std::int64_t base, RankTimeline& rank) {
  const auto name = event.at("name").get<std::string>();
  auto counter = std::ranges::find(rank.counters, name, &TimelineCounter::name);
  for (const auto& [unit, value] : event.at("args").items()) {
    if (counter == rank.counters.end()) {
      rank.counters.push_back({.name = name, .unit = unit});
      counter = std::prev(rank.counters.end());
    }
    counter->points.push_back({.at = base + nanoseconds(event.at("ts")), .value = value.get<double>()});
  }
}

}  // namespace

std::vector<RankTimeline> read_chrome_trace(const std::string& text, const std::string& file) {
  std::map<int, RankTimeline> ranks;
  try {
    const Json json = io::read_json<Json>(text).json;  // null is no trace
    const Json& data = json.at("otherData");
    if (data.at("program") != "hawser") throw UserError(Problem{.file = file, .what = "a trace of another program"});
    const bool old = data.contains("rows");  // version 0.1 called instructions rows
    const auto base = data.at("base_ns").get<std::int64_t>();
    for (const auto& [rank, instructions] : data.at(old ? "rows" : "instructions").items()) {
      RankTimeline& one = ranks[std::stoi(rank)];
      one.rank = std::stoi(rank);
      one.instructions = instructions.get<std::vector<std::string>>();
    }
    for (const Json& event : json.at("traceEvents")) {
      RankTimeline& rank = ranks.at(event.at("pid").get<int>());
      if (event.at("ph") == "C") {
        read_counter(event, base, rank);
        continue;
      }
      const auto lane = event.at("tid").get<std::size_t>();
      if (event.at("name") == "thread_name" && event.at("ph") == "M") {
        if (rank.lanes.size() <= lane) rank.lanes.resize(lane + 1);
        rank.lanes[lane] = event.at("args").at("name").get<std::string>();
      }
      if (event.at("ph") != "X") continue;
      const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                      [&](const auto& one) { return event.at("cat") == one.second; });
      if (kind == std::end(kKinds)) continue;  // an instruction or an op, rebuilt from the spans
      const Json& args = event.at("args");
      const std::int64_t begin = base + nanoseconds(event.at("ts"));
      rank.spans.push_back(
          {.kind = kind->first,
           .begin = begin,
           .end = begin + nanoseconds(event.at("dur")),
           .lane = static_cast<int>(lane),
           .instruction = args.at(old ? "row" : "instruction").get<int>(),
           .op = args.at("op").get<int>(),
           .name = event.at("name").get<std::string>(),
           .op_name = args.at("work").get<std::string>(),
           .family = args.value("family", args.at("work").get<std::string>()),  // earlier versions have none
           .communication = args.contains("communication")});
      if (lane >= rank.lanes.size() || rank.spans.back().instruction >= static_cast<int>(rank.instructions.size()))
        throw UserError(
            Problem{.file = file, .what = "a span of a stream or instruction that the trace does not name"});
    }
  } catch (const nlohmann::json::exception&) {
    throw UserError(Problem{.file = file, .what = "not a trace of hawser bench step --trace"});
  } catch (const std::logic_error&) {  // a malformed number, or a rank without instructions
    throw UserError(Problem{.file = file, .what = "not a trace of hawser bench step --trace"});
  }
  std::vector<RankTimeline> out;
  for (auto& [number, rank] : ranks) {
    put_in_order(rank);
    out.push_back(std::move(rank));
  }
  return out;
}

}  // namespace hawser::profile

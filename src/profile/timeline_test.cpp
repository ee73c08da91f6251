#include <gtest/gtest.h>

#include "base/error.h"
#include "profile/timeline_summary.h"
#include "profile/timeline_svg.h"
#include "profile/work_family.h"

namespace hawser::profile {
namespace timeline_test {

using Kind = TimelineSpan::Kind;
constexpr std::int64_t kStart = 1'790'000'000'000'000'001;  // a moment of these years, in ns

TimelineSpan span(int lane, std::int64_t begin, std::int64_t end, int instruction, int op, const std::string& name,
                  const std::string& op_name, bool communication = false) {
  return {.begin = kStart + begin,
          .end = kStart + end,
          .lane = lane,
          .instruction = instruction,
          .op = op,
          .name = name,
          .op_name = op_name,
          .family = op_name == "attention_forward" ? "attention" : op_name,
          .communication = communication};
}

// compute  |gemm 0-100|   |gemm 150-280|  |attention 400-500|
// gather        |50------------------300|             |600-650|
RankTimeline two_streams() {
  RankTimeline out{.rank = 3,
                   .lanes = {"host", "compute", "gather"},
                   .instructions = {"forward block 0 mlp", "forward block 1 mlp", "gather block 1", "gather head"}};
  out.spans = {span(1, 400, 500, 1, 4, "sdpa", "attention_forward"), span(1, 0, 40, 0, 0, "nvjet", "gemm"),
               span(1, 40, 100, 0, 0, "epilogue", "gemm"),           span(1, 150, 200, 1, 2, "nvjet", "gemm"),
               span(1, 200, 280, 1, 2, "epilogue", "gemm"),          span(2, 50, 300, 2, 1, "copy", "all_gather", true),
               span(2, 600, 650, 3, 5, "copy", "all_gather", true)};
  out.spans.push_back({.kind = Kind::host,
                       .begin = kStart - 20,
                       .end = kStart - 10,
                       .lane = 0,
                       .instruction = 0,
                       .name = out.instructions[0]});
  out.counters = {{"power", "W", {{kStart, 650.5}, {kStart + 300, 698}}}, {"SM clock", "MHz", {{kStart + 20, 1545}}}};
  put_in_order(out);
  return out;
}

TEST(Timeline, SpansOfALaneFollowOneAnother) {
  RankTimeline timeline{.lanes = {"a", "b"}};
  timeline.spans = {span(1, 5, 9, 0, 0, "", ""), span(0, 10, 20, 0, 0, "", ""), span(0, 0, 12, 0, 0, "", ""),
                    span(0, 11, 12, 0, 0, "", "")};
  put_in_order(timeline);
  std::vector<std::vector<std::int64_t>> got;
  for (const TimelineSpan& s : timeline.spans) got.push_back({s.lane, s.begin - kStart, s.end - kStart});
  EXPECT_EQ(got, (std::vector<std::vector<std::int64_t>>{{0, 0, 12}, {0, 12, 20}, {0, 20, 20}, {1, 5, 9}}));
}

TEST(Timeline, GroupsByInstructionAndOp) {
  const RankTimeline timeline = two_streams();
  const auto instructions = groups_by_instruction(timeline), ops = groups_by_op(timeline);
  ASSERT_EQ(instructions.size(), 5u);
  EXPECT_EQ(instructions[1].begin, kStart);
  EXPECT_EQ(instructions[1].end, kStart + 100);
  EXPECT_EQ(instructions[2].end, kStart + 500);
  ASSERT_EQ(ops.size(), 5u);  // the host's span belongs to none
  EXPECT_EQ(ops[1].begin, kStart + 150);
  EXPECT_EQ(ops[1].count, 2u);
}

TEST(Timeline, AChromeTraceReadsBackAsItWas) {
  const RankTimeline first = two_streams();
  RankTimeline second = first;
  second.rank = 4;
  const std::vector<RankTimeline> back = read_chrome_trace(to_chrome_trace({first, second}), "t.json");
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1].rank, 4);
  EXPECT_EQ(back[0].lanes, first.lanes);
  EXPECT_EQ(back[0].instructions, first.instructions);
  ASSERT_EQ(back[1].counters.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const TimelineCounter &a = back[1].counters[i], &b = first.counters[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.unit, b.unit);
    ASSERT_EQ(a.points.size(), b.points.size());
    for (std::size_t j = 0; j < a.points.size(); ++j) {
      EXPECT_EQ(a.points[j].at, b.points[j].at);
      EXPECT_EQ(a.points[j].value, b.points[j].value);
    }
  }
  ASSERT_EQ(back[0].spans.size(), first.spans.size());
  for (std::size_t i = 0; i < first.spans.size(); ++i) {
    const TimelineSpan &a = back[0].spans[i], &b = first.spans[i];
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.begin, b.begin);
    EXPECT_EQ(a.end, b.end);
    EXPECT_EQ(a.instruction, b.instruction);
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.op_name, b.op_name);
    EXPECT_EQ(a.family, b.family);
    EXPECT_EQ(a.communication, b.communication);
  }
}

TEST(Timeline, RejectsOtherTraces) {
  const std::string whole = to_chrome_trace({two_streams()});
  std::string foreign = whole;
  foreign.replace(foreign.find("\"hawser\""), 8, "\"others\"");
  for (const std::string& text : {std::string(), std::string("[]"), std::string("{}"),
                                  std::string(R"({"traceEvents":[]})"), whole.substr(0, whole.size() / 2), foreign}) {
    EXPECT_THROW(read_chrome_trace(text, "t.json"), UserError) << text.substr(0, 60);
  }
  const std::size_t instruction = whole.find("\"instruction\":3");
  std::string beyond = whole;
  beyond.replace(instruction, 15, "\"instruction\":7");
  EXPECT_THROW(read_chrome_trace(beyond, "t.json"), UserError);
}

// Traces of version 0.1 have "row" and "rows" for "instruction" and "instructions".
TEST(Timeline, ReadsTheKeysOfVersion01) {
  const std::string written = to_chrome_trace({two_streams()});
  std::string old = written;
  for (std::size_t at; (at = old.find("\"instructions\":")) != std::string::npos;) old.replace(at, 14, "\"rows\"");
  for (std::size_t at; (at = old.find("\"instruction\":")) != std::string::npos;) old.replace(at, 13, "\"row\"");
  ASSERT_NE(old, written);
  EXPECT_EQ(to_chrome_trace(read_chrome_trace(old, "t.json")), written);
}

TEST(TimelineSummary, CountsBusyIdleAndExposedTime) {
  const TimelineSummary got = summarize(two_streams());
  EXPECT_EQ(got.rank, 3);
  EXPECT_NEAR(got.seconds, 650e-9, 1e-15);  // host time does not count
  ASSERT_EQ(got.lanes.size(), 2u);
  EXPECT_EQ(got.lanes[0].name, "compute");
  EXPECT_NEAR(got.lanes[0].busy_s, 330e-9, 1e-15);
  EXPECT_EQ(got.lanes[0].spans, 5);
  EXPECT_NEAR(got.lanes[1].busy_s, 300e-9, 1e-15);
  EXPECT_NEAR(got.compute_idle_s, 320e-9, 1e-15);
  EXPECT_NEAR(got.communication_s, 300e-9, 1e-15);
  EXPECT_NEAR(got.exposed_communication_s, (50 + 20 + 50) * 1e-9, 1e-15);
  EXPECT_EQ(got.unknown_spans, 0);

  ASSERT_EQ(got.gaps.size(), 3u);
  EXPECT_NEAR(got.gaps[0].seconds, 150e-9, 1e-15);  // after the last span
  EXPECT_EQ(got.gaps[0].after, "end");
  EXPECT_EQ(got.gaps[0].meanwhile, "gather 33%");
  EXPECT_EQ(got.gaps[1].before, "forward block 1 mlp: gemm");
  EXPECT_EQ(got.gaps[1].after, "forward block 1 mlp: attention_forward");
  EXPECT_NEAR(got.gaps[1].at_s, 280e-9, 1e-15);
  EXPECT_EQ(summarize(two_streams(), 1).gaps.size(), 1u);
}

TEST(TimelineSummary, SlowdownDuringCommunication) {
  const TimelineSummary got = summarize(two_streams());
  ASSERT_EQ(got.families.size(), 2u);
  EXPECT_EQ(got.families[0].family, "gemm");
  EXPECT_NEAR(got.families[0].busy_s, 230e-9, 1e-15);
  EXPECT_NEAR(got.families[0].overlapped_s, 180e-9, 1e-15);
  // The first kernel takes 40 alone and 50 overlapped; the second always overlaps.
  EXPECT_NEAR(got.families[0].slowdown, 50.0 / 40, 1e-9);
  EXPECT_EQ(got.families[1].family, "attention");
  EXPECT_EQ(got.families[1].slowdown, 0);
}

// The same kernel in three blocks: 40 and 60 alone, 100 during a transfer.
TEST(TimelineSummary, SlowdownComparesMeansOfTheSameWork) {
  RankTimeline timeline{
      .lanes = {"compute", "gather"},
      .instructions = {"forward block 0 mlp", "forward block 1 mlp", "forward block 2 mlp", "gather block 1"}};
  timeline.spans = {span(0, 0, 40, 0, 0, "nvjet", "gemm"), span(0, 1000, 1060, 1, 1, "nvjet", "gemm"),
                    span(0, 2000, 2100, 2, 2, "nvjet", "gemm"), span(1, 1990, 2110, 3, 3, "copy", "all_gather", true)};
  put_in_order(timeline);
  const TimelineSummary got = summarize(timeline);
  ASSERT_EQ(got.families.size(), 1u);
  EXPECT_NEAR(got.families[0].slowdown, 100.0 / 50, 1e-9);
}

TEST(TimelineSummary, TextHasEveryRank) {
  RankTimeline second = two_streams();
  second.rank = 4;
  const std::string text = summary_text({summarize(two_streams()), summarize(second)});
  for (const char* word : {"timeline of rank 3: 0.001 ms", "  gather ", "-> forward block 1 mlp: gemm (gather 100%)",
                           "  gemm ", " +25.0%", "rank 4: 0.001 ms"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
  EXPECT_EQ(summary_text({}), "");
  EXPECT_EQ(summarize(RankTimeline{}).seconds, 0);
}

TEST(TimelineSvg, DrawsTheRequestedWindow) {
  RankTimeline timeline = two_streams();
  timeline.lanes[2] = "gather <&>";
  const auto count = [](const std::string& text, const std::string& what) {
    int n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  const std::string whole = to_svg({timeline});
  EXPECT_NE(whole.find(">gather &lt;&amp;&gt;</text>"), std::string::npos) << whole;
  EXPECT_EQ(count(whole, "\"#d9534f\""), 3);  // two transfers, and the legend
  EXPECT_EQ(count(whole, "\"#f28e2b\""), 2);
  EXPECT_EQ(count(whole, "rank 3"), 0);
  const std::string part = to_svg({timeline, timeline}, {.begin_s = 390e-9, .end_s = 590e-9});
  EXPECT_EQ(count(part, "\"#d9534f\""), 0);
  EXPECT_EQ(count(part, "\"#f28e2b\""), 3);
  EXPECT_EQ(count(part, "rank 3"), 2);
  EXPECT_EQ(count(part, ">forward block 1 mlp</text>"), 2);
  EXPECT_NE(part.find(">0.0004 ms</text>"), std::string::npos) << part;
  EXPECT_TRUE(to_svg({}).ends_with("</svg>\n"));
}

TEST(WorkFamily, IsThatOfTheKindOrElseTheName) {
  EXPECT_EQ(family_of({.name = "rms_norm_backward", .kind = OpKind::norm}), "norm");
  EXPECT_EQ(family_of({.name = "all_gather", .kind = OpKind::communication}), "communication");
  EXPECT_EQ(family_of({.name = "read_loss", .kind = OpKind::transfer}), "read_loss");
}

}  // namespace timeline_test
}  // namespace hawser::profile

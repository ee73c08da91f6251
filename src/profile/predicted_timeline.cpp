#include "profile/predicted_timeline.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/cat.h"
#include "plan/cost_model.h"
#include "plan/plan.h"
#include "profile/work_family.h"
#include "program/conversation.h"

namespace hawser::profile {

namespace {

std::string name_of(const program::Instruction& instruction, const program::Program& program,
                    const models::Model& model) {
  std::string name = program::to_string(instruction.op);
  std::replace(name.begin(), name.end(), '_', ' ');
  if (instruction.layer >= 0) {
    std::string kind = model.kind_of(instruction.layer);
    std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return std::tolower(c); });
    name += cat(" block ", model.block_of(instruction.layer), " ", kind);
  } else if (instruction.flat >= 0) {
    name += " " + model.flat(instruction.flat).name();
  }
  if (program.micro_batches > 1 && instruction.micro_batch >= 0) name += cat(", micro-batch ", instruction.micro_batch);
  return name;
}

std::int64_t nanoseconds(double seconds) {
  return std::llround(1e9 * seconds);
}

}  // namespace

std::vector<std::string> instruction_names(const program::Program& program, const models::Model& model) {
  std::vector<std::string> out;
  for (const program::Instruction& instruction : program.instructions) {
    out.push_back(name_of(instruction, program, model));
  }
  return out;
}

std::vector<RankTimeline> predicted_timeline(const models::Model& model, const plan::Layout& layout,
                                             const plan::Target& target, double rate_scale) {
  const std::vector<plan::RankPlan> plans = plan::plan_stages(model, layout, step::Purpose::train, 0, true);
  const std::vector<program::RankTrace> traces = plan::traces_of(plans, layout);
  std::vector<std::vector<double>> seconds;
  for (const plan::RankPlan& plan : plans) {
    seconds.push_back(plan::item_seconds(plan.trace, target, layout.compute, rate_scale));
  }
  const auto ends = program::item_end_times(
      traces, [&](std::size_t rank, int item) { return seconds[rank][static_cast<std::size_t>(item)]; });
  std::vector<RankTimeline> out;
  for (std::size_t s = 0; s < plans.size(); ++s) {
    const Trace& trace = plans[s].trace;
    RankTimeline timeline{.rank = traces[s].rank,
                          .lanes = trace.streams,
                          .instructions = instruction_names(plans[s].program, model),
                          .spans = {},
                          .counters = {}};
    for (std::size_t i = 0; i < trace.items.size(); ++i) {
      const TraceItem& item = trace.items[i];
      if (item.kind != TraceItem::Kind::work || seconds[s][i] <= 0) continue;
      timeline.spans.push_back({.kind = TimelineSpan::Kind::work,
                                .begin = nanoseconds(ends[s][i] - seconds[s][i]),
                                .end = nanoseconds(ends[s][i]),
                                .lane = item.stream,
                                .instruction = item.instruction,
                                .op = static_cast<int>(i),
                                .name = item.record.name,
                                .op_name = item.record.name,
                                .family = family_of(item.record),
                                .communication = item.record.collective.kind != CollectiveKind::none});
    }
    put_in_order(timeline);
    out.push_back(std::move(timeline));
  }
  return out;
}

}  // namespace hawser::profile

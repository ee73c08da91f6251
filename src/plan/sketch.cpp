// Estimates of memory and time with few blocks and few micro-batches, for searches that look at many settings.
#include <algorithm>
#include <tuple>

#include "plan/forecast.h"
#include "plan/pipeline_form.h"

namespace hawser::plan {
namespace {

constexpr int kFew = 2;  // blocks

// By how many passes of a micro-batch a stage waits for the first and the last one, for each other stage: the bubbles
// of the papers (step/pipeline_passes.h).
double bubble_passes(const Parallelism& parallelism) {
  if (parallelism.schedule.delays_weights) return 1.0 / 3;
  return static_cast<double>(parallelism.partition.stages) / parallelism.partition.model_chunks();
}

}  // namespace

std::optional<Forecaster::FewBlocks> Forecaster::few_blocks(const Recipe& recipe, const Candidate& candidate) const {
  const models::PipelinePartition& own = candidate.parallelism.partition;
  const int each = own.model_chunks() / own.stages;
  if (2 * own.model_chunks() > model_.blocks()) return std::nullopt;
  const auto with_blocks = [&](int blocks) {
    Candidate equal = candidate;
    equal.parallelism.partition = equal_partition(own.stages, each, blocks);
    return forecast(recipe, equal, blocks, program::Placing::estimate);
  };
  // The second block of a model chunk needs gathered weights of its own: they are prefetched.
  const int few = 3 * own.model_chunks() <= model_.blocks() ? 2 : 1;
  const Forecast less = with_blocks(few * own.model_chunks()), more = with_blocks((few + 1) * own.model_chunks());
  const auto line = [&](double a, double b) { return std::pair(a - few * (b - a), (b - a) / each); };
  FewBlocks out;
  std::tie(out.base, out.per_block) = line(less.seconds, more.seconds);
  for (std::size_t s = 0; s < less.stages.size(); ++s) {
    const auto [base, per_block] =
        line(static_cast<double>(less.needed(less.stages[s])), static_cast<double>(more.needed(more.stages[s])));
    out.memory.push_back({base, per_block});
  }
  return out;
}

namespace {

std::vector<int> blocks_of_stages(const models::PipelinePartition& partition) {
  std::vector<int> out(static_cast<std::size_t>(partition.stages));
  const std::vector<int> blocks = blocks_of(partition);
  for (int c = 0; c < partition.model_chunks(); ++c) {
    out[static_cast<std::size_t>(partition.stage_of(c))] += blocks[static_cast<std::size_t>(c)];
  }
  return out;
}

}  // namespace

double Forecaster::FewBlocks::needed(const models::PipelinePartition& partition) const {
  const std::vector<int> blocks = blocks_of_stages(partition);
  double out = 0;
  for (std::size_t s = 0; s < memory.size(); ++s) out = std::max(out, memory[s].base + memory[s].per_block * blocks[s]);
  return out;
}

double Forecaster::FewBlocks::seconds(const models::PipelinePartition& partition) const {
  return base + per_block * std::ranges::max(blocks_of_stages(partition));
}

Forecaster::Sketch Forecaster::sketch(const Recipe& recipe, const Candidate& candidate) const {
  const bool alike = std::ranges::adjacent_find(candidate.blocks, std::not_equal_to()) == candidate.blocks.end();
  if (stages(candidate) > 1 && alike) return sketch_of_stages(recipe, candidate);
  const int micro_batches = layout_of(recipe, candidate).micro_batches, period = Forecaster::period(recipe, candidate);
  const Recipe one = shortened(recipe, candidate, period), two = shortened(recipe, candidate, 2 * period);
  const auto at = [&](int blocks) {
    const Forecast f = forecast(two, candidate, blocks, program::Placing::estimate);
    Sketch out{static_cast<double>(f.needed()), f.seconds};
    if (micro_batches <= 2 * period) return out;
    const double first = forecast(one, candidate, blocks, program::Placing::estimate).seconds;
    out.seconds += static_cast<double>(micro_batches - 2 * period) / period * (out.seconds - first);
    return out;
  };
  const int blocks = model_.blocks();
  if (blocks <= 2 * kFew || stages(candidate) > 1 || !alike) return at(blocks);
  const Sketch a = at(kFew), b = at(2 * kFew);
  const double more = static_cast<double>(blocks - 2 * kFew) / kFew;
  return {b.needed + more * (b.needed - a.needed), b.seconds + more * (b.seconds - a.seconds)};
}

// A stage computes like one rank with its blocks that has as many micro-batches in flight. So the memory is that of a
// stage with the embedding and the head, and the time that of stages of equal time, with the bubble of the schedule.
Forecaster::Sketch Forecaster::sketch_of_stages(const Recipe& recipe, const Candidate& candidate) const {
  const Parallelism& own = candidate.parallelism;
  const int stages = own.partition.stages, micro_batches = layout_of(recipe, candidate).micro_batches;
  const int chunks = own.partition.model_chunks() / stages;  // of a stage
  const int in_flight =
      std::min(own.schedule.in_flight(stages, std::min(micro_batches, 2 * stages * chunks)), 2 * stages);
  Candidate one_stage = candidate;
  one_stage.parallelism.partition = {};
  one_stage.parallelism.mesh.pipeline = 1;
  one_stage.parallelism.schedule = {
      .name = "", .passes = {}, .group = in_flight, .delays_weights = own.schedule.delays_weights};
  struct Point {
    double needed, one, all;  // seconds of a step with one micro-batch, and with as many as are in flight
  };
  const int together = std::min(std::max(in_flight, 2), micro_batches);
  const Recipe one = shortened(recipe, one_stage, 1), all = shortened(recipe, one_stage, together);
  const auto at = [&](int blocks) {
    const Forecast f = forecast(all, one_stage, blocks, program::Placing::estimate);
    const Forecast first = forecast(one, one_stage, blocks, program::Placing::estimate);
    return Point{static_cast<double>(f.needed()), first.seconds, f.seconds};
  };
  const int few = std::min(kFew, std::max(1, model_.blocks() / 2));
  const Point a = at(few), b = at(2 * few);
  const auto extended = [&](double blocks, double Point::*value) {
    return a.*value + (blocks - few) / few * (b.*value - a.*value);
  };
  const double blocks = model_.blocks();
  const double single = extended(blocks, &Point::one);
  const double pass = together > 1 ? (extended(blocks, &Point::all) - single) / (together - 1) : single;
  const double passes = micro_batches + (stages - 1) * bubble_passes(own);
  return {extended(blocks / stages, &Point::needed), (single + pass * (passes - 1)) / stages};
}

}  // namespace hawser::plan

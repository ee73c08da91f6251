// Estimates of memory and time with few blocks and few micro-batches, for searches that look at many settings.
#include <algorithm>

#include "plan/forecast.h"

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

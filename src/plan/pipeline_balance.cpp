#include "plan/pipeline_balance.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/cost_model.h"
#include "plan/pipeline_form.h"
#include "plan/plan.h"

namespace hawser::plan {

PassTimes& PassTimes::operator+=(const PassTimes& other) {
  forward += other.forward;
  backward += other.backward;
  weights += other.weights;
  return *this;
}

ModelTimes model_times(const models::Model& model, const Layout& layout, const Target& target, double rate_scale) {
  using program::Op;
  const RankPlan plan = plan_rank(model, layout, step::Purpose::train, 0, false, program::Placing::estimate);
  const std::vector<double> seconds = item_seconds(plan.trace, target, layout.compute, rate_scale);
  ModelTimes out;
  out.blocks.resize(static_cast<std::size_t>(model.blocks()));
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const TraceItem& item = plan.trace.items[i];
    if (item.instruction < 0) continue;
    const program::Instruction& instruction = plan.program.instructions[static_cast<std::size_t>(item.instruction)];
    if (plan.trace.streams[static_cast<std::size_t>(item.stream)] != to_string(program::StreamId::compute)) continue;
    const auto of_block = [&]() -> PassTimes& {
      return out.blocks[static_cast<std::size_t>(model.block_of(instruction.layer))];
    };
    switch (instruction.op) {
      case Op::embed:
        out.embedding.forward += seconds[i];
        break;
      case Op::embed_backward:
        out.embedding.backward += seconds[i];
        break;
      case Op::loss_gradient:
        out.head.forward += seconds[i];
        break;
      case Op::forward:
        of_block().forward += seconds[i];
        break;
      case Op::recompute:
      case Op::backward:
        of_block().backward += seconds[i];
        break;
      case Op::backward_weight:
        of_block().weights += seconds[i];
        break;
      default:
        break;
    }
  }
  return out;
}

std::vector<PassTimes> chunk_times(const models::PipelinePartition& partition, const ModelTimes& times) {
  std::vector<PassTimes> out(static_cast<std::size_t>(partition.model_chunks()));
  std::size_t block = 0;
  for (std::size_t c = 0; c < out.size(); ++c) {
    const auto end = partition.ends.empty() ? times.blocks.size() : static_cast<std::size_t>(partition.ends[c]);
    for (; block < end; ++block) out[c] += times.blocks[block];
  }
  out.front() += times.embedding;
  out.back() += times.head;
  return out;
}

namespace {

// The clocks of stages that run their passes in order.
class PassClock {
 public:
  PassClock(std::vector<std::vector<step::Pass>> passes, int model_chunks, int micro_batches)
      : passes_(std::move(passes)), model_chunks_(model_chunks), micro_batches_(micro_batches) {}

  double run(const std::vector<PassTimes>& chunks) {
    const auto size = static_cast<std::size_t>(model_chunks_ * micro_batches_);
    forward_.assign(size, -1);
    backward_.assign(size, -1);
    std::vector<std::size_t> next(passes_.size(), 0);
    std::vector<double> now(passes_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < passes_.size(); ++s) {
        for (; next[s] < passes_[s].size(); ++next[s], moved = true) {
          const double ready = ready_of(passes_[s][next[s]]);
          if (ready < 0) break;
          now[s] = end_of(passes_[s][next[s]], std::max(now[s], ready), chunks);
        }
      }
    }
    for (std::size_t s = 0; s < passes_.size(); ++s) {
      if (next[s] < passes_[s].size()) return std::numeric_limits<double>::infinity();
    }
    return *std::ranges::max_element(now);
  }

 private:
  std::size_t at(int model_chunk, int micro_batch) const {
    return static_cast<std::size_t>(model_chunk * micro_batches_ + micro_batch);
  }

  // When its input is there; negative: the pass that writes it has not run.
  double ready_of(const step::Pass& pass) const {
    const int c = pass.model_chunk, mb = pass.micro_batch;
    switch (pass.kind) {
      case step::Pass::Kind::forward:
        return c == 0 ? 0 : forward_[at(c - 1, mb)];
      case step::Pass::Kind::backward:
        return c + 1 == model_chunks_ ? forward_[at(c, mb)] : backward_[at(c + 1, mb)];
      case step::Pass::Kind::weight_gradients:
        return backward_[at(c, mb)];
    }
    return 0;
  }

  double end_of(const step::Pass& pass, double start, const std::vector<PassTimes>& chunks) {
    const PassTimes& times = chunks[static_cast<std::size_t>(pass.model_chunk)];
    const std::size_t place = at(pass.model_chunk, pass.micro_batch);
    switch (pass.kind) {
      case step::Pass::Kind::forward:
        return forward_[place] = start + times.forward;
      case step::Pass::Kind::backward:
        return backward_[place] = start + times.backward;
      case step::Pass::Kind::weight_gradients:
        return start + times.weights;
    }
    return start;
  }

  std::vector<std::vector<step::Pass>> passes_;  // by stage
  int model_chunks_, micro_batches_;
  std::vector<double> forward_, backward_;  // by model chunk and micro-batch: when it ends; negative: it has not
};

PassClock clock_of(const Schedule& schedule, const models::PipelinePartition& partition, int micro_batches) {
  std::vector<std::vector<step::Pass>> passes;
  for (int stage = 0; stage < partition.stages; ++stage) {
    passes.push_back(schedule.of_stage(partition, stage, micro_batches));
  }
  return {std::move(passes), partition.model_chunks(), micro_batches};
}

// The cuts with the smallest largest model chunk, by dynamic programming; at least one block in each.
models::PipelinePartition most_equal(int stages, int model_chunks, const ModelTimes& times) {
  const auto blocks = static_cast<int>(times.blocks.size());
  std::vector<double> sums(1, 0);
  for (const PassTimes& block : times.blocks) sums.push_back(sums.back() + block.all());
  const auto cost = [&](int c, int begin, int end) {
    double out = sums[static_cast<std::size_t>(end)] - sums[static_cast<std::size_t>(begin)];
    if (c == 0) out += times.embedding.all();
    if (c + 1 == model_chunks) out += times.head.all();
    return out;
  };
  // By model chunk and end: the smallest maximum up to there, and where its last model chunk begins.
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<std::vector<std::pair<double, int>>> best(static_cast<std::size_t>(model_chunks),
                                                        std::vector<std::pair<double, int>>(sums.size(), {kNone, 0}));
  for (int c = 0; c < model_chunks; ++c) {
    for (int end = c + 1; end <= blocks - (model_chunks - 1 - c); ++end) {
      auto& found = best[static_cast<std::size_t>(c)][static_cast<std::size_t>(end)];
      for (int begin = c; begin < (c == 0 ? 1 : end); ++begin) {
        const double before = c == 0 ? 0 : best[static_cast<std::size_t>(c) - 1][static_cast<std::size_t>(begin)].first;
        const double all = std::max(before, cost(c, begin, end));
        if (all < found.first) found = {all, begin};
      }
    }
  }
  models::PipelinePartition out{.stages = stages, .ends = std::vector<int>(static_cast<std::size_t>(model_chunks))};
  for (int c = model_chunks - 1, end = blocks; c >= 0; --c) {
    out.ends[static_cast<std::size_t>(c)] = end;
    end = best[static_cast<std::size_t>(c)][static_cast<std::size_t>(end)].second;
  }
  return out;
}

// Moves one block at a time from a model chunk to another one, while that is better.
class Search {
 public:
  // Bytes beyond the capacity, or of the stage that needs the most; then seconds.
  using Score = std::tuple<double, double, double>;

  Search(const Schedule& schedule, models::PipelinePartition start, int micro_batches, const ModelTimes& times,
         const Balance& balance)
      : times_(times),
        balance_(balance),
        best_(std::move(start)),
        clock_(clock_of(schedule, best_, std::min(micro_batches, std::max(kMicroBatches, 2 * best_.stages)))) {
    score_ = score_of(best_);
  }

  const Score& score() const { return score_; }

  models::PipelinePartition run() {
    const int model_chunks = best_.model_chunks();
    for (bool moved = true; moved;) {
      moved = false;
      const models::PipelinePartition from_here = best_;
      for (int from = 0; from < model_chunks; ++from) {
        if (!is_heavy(from_here, from)) continue;
        for (int to = 0; to < model_chunks; ++to) moved = try_move(from_here, from, to) || moved;
      }
    }
    return best_;
  }

 private:
  static constexpr int kMicroBatches = 32;  // further ones take as long for any cuts
  static constexpr int kFewChunks = 16;

  Score score_of(const models::PipelinePartition& partition) {
    double most = 0, beyond = 0;
    const std::vector<int> blocks = blocks_of(partition);
    for (int stage = 0; stage < partition.stages && !balance_.memory.empty(); ++stage) {
      int own = 0;
      for (const int c : partition.chunks_of(stage)) own += blocks[static_cast<std::size_t>(c)];
      const StageMemory& memory = balance_.memory[static_cast<std::size_t>(stage)];
      const double needed = memory.base + memory.per_block * own;
      most = std::max(most, needed);
      beyond += std::pow(std::max(0.0, needed - balance_.capacity), 2);
    }
    const bool by_memory = balance_.optimize == PipelineOptimize::memory;
    const std::vector<PassTimes> chunks = chunk_times(partition, times_);
    return {by_memory ? most : beyond, clock_.run(chunks), slowest(partition, chunks)};
  }

  // Of the stage that computes the longest: what many more micro-batches take.
  static double slowest(const models::PipelinePartition& partition, const std::vector<PassTimes>& chunks) {
    double out = 0;
    for (int stage = 0; stage < partition.stages; ++stage) {
      double own = 0;
      for (const int c : partition.chunks_of(stage)) own += chunks[static_cast<std::size_t>(c)].all();
      out = std::max(out, own);
    }
    return out;
  }

  // Of many model chunks only these are made smaller: without memory, those of the slowest stage.
  bool is_heavy(const models::PipelinePartition& partition, int model_chunk) const {
    if (!balance_.memory.empty() || partition.model_chunks() <= kFewChunks) return true;
    const std::vector<PassTimes> chunks = chunk_times(partition, times_);
    double own = 0;
    for (const int c : partition.chunks_of(partition.stage_of(model_chunk))) {
      own += chunks[static_cast<std::size_t>(c)].all();
    }
    return own >= 0.999 * slowest(partition, chunks);
  }

  bool try_move(const models::PipelinePartition& start, int from, int to) {
    if (from == to) return false;
    models::PipelinePartition other = start;
    for (int c = std::min(from, to); c < std::max(from, to); ++c) {
      other.ends[static_cast<std::size_t>(c)] += from < to ? -1 : 1;
    }
    if (blocks_of(other)[static_cast<std::size_t>(from)] < 1) return false;
    const Score score = score_of(other);
    if (!(score < score_)) return false;
    score_ = score;
    best_ = std::move(other);
    return true;
  }

  const ModelTimes& times_;
  const Balance& balance_;
  models::PipelinePartition best_;
  PassClock clock_;
  Score score_;
};

}  // namespace

double pipeline_seconds(const Schedule& schedule, const models::PipelinePartition& partition, int micro_batches,
                        const ModelTimes& times) {
  return clock_of(schedule, partition, micro_batches).run(chunk_times(partition, times));
}

models::PipelinePartition balanced(const Schedule& schedule, int stages, int virtual_stages, int micro_batches,
                                   const ModelTimes& times, const Balance& balance) {
  const int model_chunks = stages * virtual_stages;
  HAWSER_CHECK(model_chunks <= static_cast<int>(times.blocks.size()), model_chunks, " model chunks of ",
               times.blocks.size(), " blocks");
  const auto blocks = static_cast<int>(times.blocks.size());
  Search by_time(schedule, most_equal(stages, model_chunks, times), micro_batches, times, balance);
  Search by_blocks(schedule, equal_partition(stages, virtual_stages, blocks), micro_batches, times, balance);
  models::PipelinePartition first = by_time.run(), second = by_blocks.run();
  return by_blocks.score() < by_time.score() ? second : first;
}

}  // namespace hawser::plan

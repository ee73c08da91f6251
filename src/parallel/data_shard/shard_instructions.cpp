#include "parallel/data_shard/shard_instructions.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace hawser::parallel {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::StreamId;
using program::WeightForm;

// A run of computations that use the same weights: gathered or loaded once, freed together.
struct Use {
  std::vector<FlatUse> flats;
  int last = 0;                   // the last computation
  std::vector<int> gathers;       // gather or load_weights instructions, one per flat, once written
  std::vector<int> loaded_until;  // the last gather of a shard that was loaded, if there is one
};

// What is gathered has every flat that is needed, in the form that is needed.
bool covers(const std::vector<FlatUse>& gathered, const std::vector<FlatUse>& needed) {
  return std::ranges::all_of(needed, [&](const FlatUse& need) {
    return std::ranges::any_of(gathered, [&](const FlatUse& has) {
      return has.flat == need.flat && (has.form == need.form || has.form == WeightForm::both);
    });
  });
}

class Writer {
 public:
  Writer(Program& program, const std::vector<Computation>& computations, const ShardOptions& options)
      : program_(program), computations_(computations), options_(options), instruction_of_(computations.size(), -1) {
    find_uses();
    for (std::size_t i = 0; i < computations.size(); ++i) {
      for (const int flat : computations[i].gradients) {
        const Group group = group_of(computations[i], flat);
        first_.try_emplace(group, static_cast<int>(i));
        last_[group] = static_cast<int>(i);
      }
    }
  }

  std::vector<GradientEnd> write() {
    for (std::size_t i = 0; i < computations_.size(); ++i) write_computation(static_cast<int>(i));
    return ends_;
  }

 private:
  // One gradient buffer: a flat, and the micro-batch unless gradients accumulate locally.
  using Group = std::pair<int, int>;

  Group group_of(const Computation& computation, int flat) const {
    const bool apart = reduces(flat) && options_.accumulation == GradientAccumulation::sharded;
    return {flat, apart ? computation.instruction.micro_batch : 0};
  }

  bool reduces(int flat) const { return options_.reduce && options_.sharded(flat); }

  // An instruction brings its weights before each use.
  bool brings(int flat) const { return options_.streams(flat) || (options_.gather && options_.sharded(flat)); }

  void find_uses() {
    use_of_.assign(computations_.size(), -1);
    for (std::size_t i = 0; i < computations_.size(); ++i) {
      std::vector<FlatUse> flats = computations_[i].weights;
      std::erase_if(flats, [&](const FlatUse& use) { return !brings(use.flat); });
      if (flats.empty()) continue;
      if (uses_.empty() || !covers(uses_.back().flats, flats)) uses_.push_back({.flats = std::move(flats)});
      uses_.back().last = static_cast<int>(i);
      use_of_[i] = static_cast<int>(uses_.size()) - 1;
    }
  }

  void write_gathers(int up_to_use) {
    const int end = std::min(up_to_use + 1, static_cast<int>(uses_.size()));
    for (; gathered_ < end; ++gathered_) {
      Use& use = uses_[static_cast<std::size_t>(gathered_)];
      std::vector<int> after;
      const int gives_up = gathered_ - options_.prefetch - 1;
      if (gives_up >= 0)
        after.push_back(instruction_of_[static_cast<std::size_t>(uses_[static_cast<std::size_t>(gives_up)].last)]);
      for (const FlatUse& flat : use.flats) use.gathers.push_back(write_gather(flat, after, use));
    }
  }

  // `after`: what frees the buffer of the weights. Returns the instruction that fills it.
  int write_gather(const FlatUse& flat, const std::vector<int>& after, Use& use) {
    Instruction gather{
        .op = Op::gather, .stream = StreamId::gather, .flat = flat.flat, .form = flat.form, .after = after};
    if (!options_.streams(flat.flat)) return program_.add(std::move(gather));
    Instruction load{.op = Op::load_weights, .stream = StreamId::copy_in, .flat = flat.flat};
    if (!reduces(flat.flat)) {
      load.form = flat.form;
      load.after = after;
      return program_.add(std::move(load));
    }
    load.shard = true;
    if (gathered_ >= 2) load.after = uses_[static_cast<std::size_t>(gathered_) - 2].loaded_until;
    gather.staged = program_.add(std::move(load));
    gather.after.push_back(gather.staged);
    use.loaded_until = {program_.add(std::move(gather))};
    return use.loaded_until.front();
  }

  void write_computation(int i) {
    const Computation& computation = computations_[static_cast<std::size_t>(i)];
    Instruction instruction = computation.instruction;
    for (int& other : instruction.after) other = instruction_of_[static_cast<std::size_t>(other)];
    for (int* const operand : {&instruction.x, &instruction.residual, &instruction.dy, &instruction.saved}) {
      if (*operand < 0) continue;
      *operand = instruction_of_[static_cast<std::size_t>(*operand)];
      const Instruction& owner = program_.instructions[static_cast<std::size_t>(*operand)];
      const bool waits = std::ranges::find(instruction.after, owner.id) != instruction.after.end();
      if (owner.stream != instruction.stream && !waits) instruction.after.push_back(owner.id);
    }
    if (use_of_[static_cast<std::size_t>(i)] >= 0) {
      const int use = use_of_[static_cast<std::size_t>(i)];
      write_gathers(use + options_.prefetch);
      instruction.gathered = uses_[static_cast<std::size_t>(use)].gathers;
      instruction.after.insert(instruction.after.end(), instruction.gathered.begin(), instruction.gathered.end());
    }
    for (const int flat : computation.gradients) {
      if (!reduces(flat) || first_.at(group_of(computation, flat)) != i || reductions_.size() < 2) continue;
      instruction.after.push_back(reductions_[reductions_.size() - 2].last);
    }
    const int id = program_.add(std::move(instruction));
    instruction_of_[static_cast<std::size_t>(i)] = id;
    for (const int flat : computation.gradients) write_reductions(i, flat, id);
  }

  void write_reductions(int i, int flat, int id) {
    const Computation& computation = computations_[static_cast<std::size_t>(i)];
    const Group group = group_of(computation, flat);
    if (last_.at(group) != i) return;
    const int micro_batch = computation.instruction.micro_batch;
    int end = id;
    if (reduces(flat)) {
      end = program_.add(
          {.op = Op::reduce, .stream = StreamId::reduce, .flat = flat, .micro_batch = micro_batch, .after = {id}});
      if (reductions_.empty() || reductions_.back().computation != i) reductions_.push_back({.computation = i});
      reductions_.back().last = end;
    }
    // The groups of a flat are adjacent.
    auto other = last_.lower_bound({flat, std::numeric_limits<int>::min()});
    for (; other != last_.end() && other->first.first == flat; ++other) {
      if (other->second > i) return;
    }
    if (options_.replicas) {
      end = program_.add({.op = Op::reduce_replicas, .stream = StreamId::reduce, .flat = flat, .after = {end}});
    }
    ends_.push_back({flat, end});
  }

  Program& program_;
  const std::vector<Computation>& computations_;
  const ShardOptions& options_;
  std::vector<int> instruction_of_;
  std::vector<Use> uses_;
  std::vector<int> use_of_;
  int gathered_ = 0;
  std::map<Group, int> first_, last_;
  // The reductions that follow one computation, as those of a block's flats do. They are on one stream.
  struct Reductions {
    int computation = -1;
    int last = -1;  // instruction
  };
  std::vector<Reductions> reductions_;
  std::vector<GradientEnd> ends_;
};

}  // namespace

std::vector<GradientEnd> write_sharded(Program& program, const std::vector<Computation>& computations,
                                       const ShardOptions& options) {
  return Writer(program, computations, options).write();
}

}  // namespace hawser::parallel

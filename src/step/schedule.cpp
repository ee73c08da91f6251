#include "step/schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include "step/computations.h"

namespace hawser::step {

namespace {

using program::Op;
using program::StreamId;

bool gathers_updated(const parallel::ShardOptions& shard, int flat) {
  return shard.gather_updated && shard.sharded(flat) && !shard.streams(flat);
}

// The flats, ascending.
std::vector<int> flats_of(const std::vector<parallel::GradientEnd>& ends) {
  std::vector<int> flats;
  for (const parallel::GradientEnd& end : ends) flats.push_back(end.flat);
  std::ranges::sort(flats);
  return flats;
}

// Writes the copies of state in host memory to the device and back. Two sets of buffers are used in turn: a copy waits
// until the set that is free longest is free.
class StateCopies {
 public:
  // `on_host`: by flat, whether an update changes anything in host memory. `start`: what the first copies wait for.
  StateCopies(program::Program& program, std::vector<bool> on_host, int start)
      : program_(program), on_host_(std::move(on_host)), sets_(2, Set{.freed_by = start}) {}

  // Returns the id of the flat's state_in; -1 if its state and its weights are on the device.
  int in(int flat, bool weights_only = false) {
    if (!on_host_[static_cast<std::size_t>(flat)]) return -1;
    const auto set = std::ranges::min_element(sets_, {}, [](const Set& s) { return std::pair(s.owner, s.freed_by); });
    HAWSER_CHECK(set->owner < 0, "the state of more than two flats on the device");
    program::Instruction copy{.op = Op::state_in,
                              .stream = StreamId::copy_in,
                              .flat = flat,
                              .weights_only = weights_only,
                              .after = {set->freed_by}};
    if (const auto written = written_.find(flat); written != written_.end()) copy.after.push_back(written->second);
    set->owner = program_.add(std::move(copy));
    return set->owner;
  }
  // After the last instruction that changes the state that `staged` has copied. weights_only: only what layers read.
  void out(int flat, int staged, int last, bool weights_only = false) {
    if (staged < 0) return;
    written_[flat] = program_.add({.op = Op::state_out,
                                   .stream = StreamId::copy_out,
                                   .flat = flat,
                                   .staged = staged,
                                   .weights_only = weights_only,
                                   .after = {last}});
    free(staged, written_[flat]);
  }
  // `last`: the last instruction that accesses what `staged` has copied.
  void free(int staged, int last) {
    if (staged < 0) return;
    const auto set = std::ranges::find(sets_, staged, &Set::owner);
    *set = {.freed_by = last};
  }

 private:
  struct Set {
    int owner = -1;  // the state_in whose copies are in use; -1: none
    int freed_by = 0;
  };

  program::Program& program_;
  std::vector<bool> on_host_;
  std::vector<Set> sets_;
  std::map<int, int> written_;  // by flat: its state_out
};

// Writes the updates of all trainable flats. Those with quantized weights are gathered later.
class Updates {
 public:
  Updates(program::Program& program, const models::Model& model, const parallel::ShardOptions& shard,
          StateCopies& copies)
      : program_(program), model_(model), shard_(shard), copies_(copies) {}

  void add(int flat, std::vector<optim::Phase> phases) {
    Update update{.flat = flat, .phases = std::move(phases)};
    write_phase(update);
    if (update.ended()) return;
    finish();
    begun_ = std::move(update);
  }
  // Writes the phases that are left of the update before.
  void finish() {
    while (!begun_.ended()) write_phase(begun_);
  }

 private:
  struct Update {
    int flat = 0;
    std::vector<optim::Phase> phases;
    int next = 0;
    int staged = -1;             // Instruction::staged
    std::vector<int> exchanges;  // of the phase before `next`
    bool ended() const { return next == static_cast<int>(phases.size()); }
  };

  void write_phase(Update& update) {
    const int flat = update.flat, phase = update.next++;
    std::vector<int> after = std::exchange(update.exchanges, {});
    if (phase == 0) {
      update.staged = copies_.in(flat);
      if (update.staged >= 0) after.push_back(update.staged);
    }
    const int id = program_.add(
        {.op = Op::update, .flat = flat, .phase = phase, .staged = update.staged, .after = std::move(after)});
    if (update.ended()) {
      copies_.out(flat, update.staged, id);
      if (!gathers_updated(shard_, flat) || quantizes_weights(model_.flat(flat).spec())) return;
      program_.add({.op = Op::gather_updated, .stream = StreamId::gather, .flat = flat, .after = {id}});
      return;
    }
    const optim::Phase& sends = update.phases[static_cast<std::size_t>(phase)];
    const auto exchange = [&](Op op, StreamId stream) {
      update.exchanges.push_back(
          program_.add({.op = op, .stream = stream, .flat = flat, .phase = phase, .after = {id}}));
    };
    if (sends.sums > 0) exchange(Op::optimizer_sum, StreamId::compute);
    if (sends.gathers) exchange(Op::optimizer_gather, StreamId::gather);
    if (sends.scatters) exchange(Op::optimizer_scatter, StreamId::reduce);
  }

  program::Program& program_;
  const models::Model& model_;
  const parallel::ShardOptions& shard_;
  StateCopies& copies_;
  Update begun_;  // the last one with several phases, unless it has ended
};

// `ends`: of the flats that this stage trains.
void write_updates(program::Program& program, const models::Model& model, const ScheduleOptions& options,
                   const parallel::ShardOptions& shard, const std::vector<parallel::GradientEnd>& ends,
                   StateCopies& copies) {
  const optim::Optimizer* const optimizer = options.optimizer;
  Updates updates(program, model, shard, copies);
  for (const int f : flats_of(ends)) {
    const nn::Flat& flat = model.flat(f);
    HAWSER_CHECK(options.quantizes || !quantizes_weights(flat.spec()), flat.name(),
                 ": trainable weights with scales need a quantizer");
    std::vector<optim::Phase> phases = optimizer != nullptr ? optimizer->phases(flat) : std::vector<optim::Phase>(1);
    for (std::size_t p = 0; p < phases.size(); ++p) {
      const optim::Phase& phase = phases[p];
      HAWSER_CHECK(!(phase.gathers && phase.scatters), flat.name(), ": a phase of its update gathers and scatters");
      HAWSER_CHECK(p + 1 < phases.size() || !(phase.gathers || phase.scatters || phase.sums > 0), flat.name(),
                   ": the last phase of its update exchanges what no phase reads");
    }
    HAWSER_CHECK(!phases.empty(), flat.name(), ": an update without a phase");
    updates.add(f, std::move(phases));
  }
  updates.finish();
}

// Writes what follows the last update: new scales, and the weights that are quantized with them.
void write_scales(program::Program& program, const models::Model& model, const parallel::ShardOptions& shard,
                  const std::vector<parallel::GradientEnd>& ends, StateCopies& copies) {
  program.add({.op = Op::scale_update});
  for (const int flat : flats_of(ends)) {
    if (!quantizes_weights(model.flat(flat).spec())) continue;
    const int staged = copies.in(flat, /*weights_only=*/true);
    const int rounded = program.add({.op = Op::quantize_weights,
                                     .flat = flat,
                                     .staged = staged,
                                     .after = staged < 0 ? std::vector<int>() : std::vector{staged}});
    if (shard.streams(flat)) {
      copies.out(flat, staged, rounded, /*weights_only=*/true);
    } else {
      copies.free(staged, rounded);
    }
    if (!gathers_updated(shard, flat)) continue;
    program.add({.op = Op::gather_updated, .stream = StreamId::gather, .flat = flat, .after = {rounded}});
  }
}

}  // namespace

bool quantizes_weights(const nn::FlatSpec& spec) {
  return spec.trainable && spec.scaled;
}

bool quantizes_loaded_weights(const nn::FlatSpec& spec) {
  return !spec.trainable && (spec.packed() || (spec.scaled && spec.gathered == DType::f8e4m3));
}

namespace {

// Replaces the ends of flats that several tensor ranks hold as copies, each with the whole gradient.
void divide_copies(program::Program& program, const models::Model& model, const ScheduleOptions& options,
                   std::vector<parallel::GradientEnd>& ends) {
  for (parallel::GradientEnd& end : ends) {
    const nn::FlatSpec& spec = model.flat(end.flat).spec();
    if (options.copies == 1 || spec.domain == Domain::sliced || spec.partial_gradient) continue;
    const StreamId stream = program.instructions[static_cast<std::size_t>(end.instruction)].stream;
    end.instruction =
        program.add({.op = Op::divide_copies, .stream = stream, .flat = end.flat, .after = {end.instruction}});
  }
}

// Replaces the ends of flats that several stages hold, each with the gradient of its own uses. All stages add flats in
// one order, because flats may have the same group.
void sum_tied(program::Program& program, const models::Model& model, const ScheduleOptions& options,
              std::vector<parallel::GradientEnd>& ends) {
  const auto stages = models::flat_stages(model, options.partition);
  const auto sets = models::tied_stages(model, options.partition);
  for (const int flat : flats_of(ends)) {
    const std::vector<int>& of = stages[static_cast<std::size_t>(flat)];
    if (of.size() == 1) continue;
    const auto end = std::ranges::find(ends, flat, &parallel::GradientEnd::flat);
    const auto tied = static_cast<int>(std::ranges::find(sets, of) - sets.begin());
    end->instruction = program.add(
        {.op = Op::reduce_tied, .stream = StreamId::reduce, .flat = flat, .tied = tied, .after = {end->instruction}});
    std::rotate(end, end + 1, ends.end());  // ends stay in program order
  }
}

// Its statistics and loss are complete after it; the compute stream need not have waited for it so far.
std::vector<int> last_auxiliary_loss(const program::Program& program) {
  std::vector<int> last;
  for (const program::Instruction& instruction : program.instructions) {
    if (instruction.op == Op::auxiliary_loss) last = {instruction.id};
  }
  return last;
}

// Reads the gradients of all flats.
program::Instruction parameter_norms(const program::Program& program, const std::vector<parallel::GradientEnd>& ends) {
  // divide_copies and sum_tied have added instructions after those of other flats: ends do not ascend.
  std::map<StreamId, int> last;
  for (const parallel::GradientEnd& end : ends) {
    int& of_stream = last[program.instructions[static_cast<std::size_t>(end.instruction)].stream];
    of_stream = std::max(of_stream, end.instruction);
  }
  program::Instruction norms{.op = Op::parameter_norms};
  for (const auto& [stream, end] : last) norms.after.push_back(end);
  return norms;
}

}  // namespace

program::Program make_program(const models::Model& model, const ScheduleOptions& options) {
  HAWSER_CHECK(static_cast<int>(options.policies.size()) == model.layers(), options.policies.size(), " policies for ",
               model.layers(), " layers");
  program::Program program;
  program.micro_batches = options.micro_batches;
  program.add({.op = Op::begin_step});
  parallel::ShardOptions shard = options.shard;
  for (const nn::Flat& flat : model.flats()) {
    shard.unsharded.push_back(options.unsharded[static_cast<std::size_t>(flat.spec().domain)]);
  }
  std::vector<bool> staged;  // by flat: its updates change what is in host memory
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    shard.streamed.push_back(options.host.streams(model, f));
    staged.push_back(shard.streamed.back() || options.host.has_state(f));
  }
  auto ends = parallel::write_sharded(program, list_computations(model, options), shard);
  const std::vector<int> auxiliary = last_auxiliary_loss(program);
  divide_copies(program, model, options, ends);
  sum_tied(program, model, options, ends);
  if (options.purpose == Purpose::train) {
    const auto stages = models::flat_stages(model, options.partition);
    // In the order in which gradients are complete, so that only the last one's norm remains after its reduction.
    // It changes the loss scale, which auxiliary losses read.
    program::Instruction norm{.op = Op::gradient_norm, .after = auxiliary};
    for (const parallel::GradientEnd& end : ends) {
      if (stages[static_cast<std::size_t>(end.flat)].front() == options.stage) {
        program.add({.op = Op::grad_norm_partial, .flat = end.flat, .after = {end.instruction}});
      } else {  // another stage counts it; the updates are after this instruction
        norm.after.push_back(end.instruction);
      }
    }
    if (options.verification != Verification::none) program.add(parameter_norms(program, ends));
    program.add(std::move(norm));
    // Staged state takes memory: it is not copied earlier than while the last flat's gradient is computed or reduced.
    StateCopies copies(program, std::move(staged),
                       ends.empty() ? 0 : ends[ends.size() > 1 ? ends.size() - 2 : 0].instruction);
    write_updates(program, model, options, shard, ends, copies);
    if (options.quantizes) write_scales(program, model, shard, ends, copies);
  }
  if (measures_gradients(options.purpose)) program.add(parameter_norms(program, ends));
  program.add({.op = Op::end_step, .after = auxiliary});
  return program;
}

}  // namespace hawser::step

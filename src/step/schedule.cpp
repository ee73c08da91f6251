#include "step/schedule.h"

#include <algorithm>
#include <utility>

namespace hawser::step {

namespace {

using parallel::Computation;
using program::Instruction;
using program::Op;
using program::StreamId;
using program::WeightForm;

// The flats of a computation's parameters, in ascending order.
struct Flats {
  std::vector<int> read;       // with the other flats of their units, which are gathered together
  std::vector<int> trainable;  // those whose gradients it computes
};

void sort_once(std::vector<int>& numbers) {
  std::ranges::sort(numbers);
  const auto [first, last] = std::ranges::unique(numbers);
  numbers.erase(first, last);
}

// Lists the computations of a step; `input` and `partner` are indices into the list.
class Lister {
 public:
  Lister(const models::Model& model, const ScheduleOptions& options)
      : model_(model), options_(options), unit_of_(model.flats().size()) {
    for (const nn::Unit& unit : model.units()) {
      for (const int flat : unit.flats) unit_of_[static_cast<std::size_t>(flat)] = &unit;
    }
    embedding_ = flats_of(model.embedding_params());
    head_ = flats_of(model.head_params());
    bool below = !embedding_.trainable.empty();
    for (int layer = 0; layer < model.layers(); ++layer) {
      layers_.push_back(flats_of(model.layer_params(layer)));
      below = below || !layers_.back().trainable.empty();
      if (!below) first_backward_ = layer + 1;
      recomputes_.push_back(nn::recomputes(model.layer(layer), options.policies[static_cast<std::size_t>(layer)],
                                           model.trainable(layer)));
    }
    HAWSER_CHECK(below || !head_.trainable.empty() || forward_only(options.purpose), "no parameter is trainable");
  }

  std::vector<Computation> list() {
    const int group = std::max(1, options_.in_flight);
    for (int first = 0; first < options_.micro_batches; first += group) {
      const int end = std::min(first + group, options_.micro_batches);
      std::vector<Pass> passes;
      for (int mb = first; mb < end; ++mb) passes.push_back(forward(mb));
      if (forward_only(options_.purpose)) continue;
      for (Pass& pass : passes) backward(pass);
      for (Pass& pass : passes) delayed_weight_gradients(pass);
    }
    return std::move(list_);
  }

 private:
  struct Pass {
    int micro_batch = 0;
    std::vector<int> forward;  // by layer
    std::vector<int> dy;       // by layer: the computation that writes its dy
    int loss = -1;
  };

  Flats flats_of(const std::vector<models::ParamPlace>& places) const {
    Flats flats;
    for (const models::ParamPlace& place : places) {
      const std::vector<int>& unit = unit_of_[static_cast<std::size_t>(place.flat)]->flats;
      flats.read.insert(flats.read.end(), unit.begin(), unit.end());
      if (model_.flat(place.flat).spec().trainable) flats.trainable.push_back(place.flat);
    }
    sort_once(flats.read);
    sort_once(flats.trainable);
    return flats;
  }
  const Flats& flats_of_layer(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }

  // `form`: of the weights that have FlatSpec::transposed.
  int add(Instruction instruction, const std::vector<int>& weights, std::vector<int> gradients,
          WeightForm form = WeightForm::rows) {
    Computation computation{.instruction = std::move(instruction), .weights = {}, .gradients = std::move(gradients)};
    for (const int flat : weights) {
      computation.weights.push_back({flat, model_.flat(flat).spec().transposed ? form : WeightForm::rows});
    }
    list_.push_back(std::move(computation));
    return static_cast<int>(list_.size()) - 1;
  }

  Pass forward(int mb) {
    Pass pass{.micro_batch = mb};
    add({.op = Op::load_batch, .micro_batch = mb}, {}, {});
    const int embed = add({.op = Op::embed, .micro_batch = mb}, embedding_.read, {});
    int x = embed;
    const auto output_of = [&](int layer) { return layer < 0 ? embed : pass.forward[static_cast<std::size_t>(layer)]; };
    for (int layer = 0; layer < model_.layers(); ++layer) {
      const models::LayerInputs& inputs = model_.inputs(layer);
      x = add({.op = Op::forward,
               .layer = layer,
               .micro_batch = mb,
               .input = output_of(inputs.x),
               .residual = output_of(inputs.residual)},
              flats_of_layer(layer).read, {});
      pass.forward.push_back(x);
    }
    if (model_.auxiliary_layers() > 0 && options_.purpose != Purpose::logits) {
      add({.op = Op::auxiliary_loss, .micro_batch = mb}, {}, {});
    }
    const bool gradients = !forward_only(options_.purpose);
    const Op head = gradients ? Op::loss_gradient : options_.purpose == Purpose::loss ? Op::loss : Op::logits;
    pass.loss =
        add({.op = head, .micro_batch = mb, .input = x}, head_.read, gradients ? head_.trainable : std::vector<int>());
    return pass;
  }

  void backward(Pass& pass) {
    int dy = pass.loss, dresidual = pass.loss;
    pass.dy.resize(pass.forward.size());
    for (int layer = model_.layers() - 1; layer >= first_backward_; --layer) {
      const int forward = pass.forward[static_cast<std::size_t>(layer)];
      const Flats& flats = flats_of_layer(layer);
      const Instruction instruction{.layer = layer, .micro_batch = pass.micro_batch, .partner = forward};
      if (recomputes_[static_cast<std::size_t>(layer)]) {
        Instruction again = instruction;
        again.op = Op::recompute;
        add(again, flats.read, {}, WeightForm::both);  // one gather for both passes
      }
      Instruction back = instruction;
      back.op = Op::backward;
      back.input = dy;
      back.residual = dresidual;
      pass.dy[static_cast<std::size_t>(layer)] = dy;
      dresidual = add(back, flats.read, flats.trainable, WeightForm::transposed);
      // The gradient of a sum is that of each term: the layer that wrote the residual has the same dy.
      const models::LayerInputs& inputs = model_.inputs(layer);
      if (inputs.residual == inputs.x) dy = dresidual;
    }
    if (embedding_.trainable.empty()) return;
    add({.op = Op::embed_backward, .micro_batch = pass.micro_batch, .input = dy}, {}, embedding_.trainable);
  }

  void delayed_weight_gradients(const Pass& pass) {
    for (int layer = model_.layers() - 1; layer >= first_backward_; --layer) {
      if (!options_.policies[static_cast<std::size_t>(layer)].delay_weight_gradients) continue;
      const Flats& flats = flats_of_layer(layer);
      if (flats.trainable.empty()) continue;
      add({.op = Op::backward_weight,
           .layer = layer,
           .micro_batch = pass.micro_batch,
           .input = pass.dy[static_cast<std::size_t>(layer)],
           .partner = pass.forward[static_cast<std::size_t>(layer)]},
          flats.read, flats.trainable);
    }
  }

  const models::Model& model_;
  const ScheduleOptions& options_;
  std::vector<const nn::Unit*> unit_of_;  // by flat
  Flats embedding_, head_;
  std::vector<Flats> layers_;
  int first_backward_ = 0;        // layers before it have no backward: neither they nor the embedding have a trainable
                                  // parameter
  std::vector<bool> recomputes_;  // by layer: a recompute instruction precedes backward
  std::vector<Computation> list_;
};

bool gathers_updated(const parallel::ShardOptions& shard, int flat) {
  return shard.gather_updated && shard.sharded(flat);
}

// Writes the updates of all trainable flats. Those with quantized weights are gathered later.
class Updates {
 public:
  Updates(program::Program& program, const models::Model& model, const parallel::ShardOptions& shard)
      : program_(program), model_(model), shard_(shard) {}

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
    std::vector<int> exchanges;  // of the phase before `next`
    bool ended() const { return next == static_cast<int>(phases.size()); }
  };

  void write_phase(Update& update) {
    const int flat = update.flat, phase = update.next++;
    const int id =
        program_.add({.op = Op::update, .flat = flat, .phase = phase, .after = std::exchange(update.exchanges, {})});
    if (update.ended()) {
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
  Update begun_;  // the last one with several phases, unless it has ended
};

void write_updates(program::Program& program, const models::Model& model, const ScheduleOptions& options,
                   const parallel::ShardOptions& shard) {
  const optim::Optimizer* const optimizer = options.optimizer;
  Updates updates(program, model, shard);
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    if (!flat.spec().trainable) continue;
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
void write_scales(program::Program& program, const models::Model& model, const parallel::ShardOptions& shard) {
  program.add({.op = Op::scale_update});
  for (int flat = 0; flat < static_cast<int>(model.flats().size()); ++flat) {
    if (!quantizes_weights(model.flat(flat).spec())) continue;
    const int rounded = program.add({.op = Op::quantize_weights, .flat = flat});
    if (!gathers_updated(shard, flat)) continue;
    program.add({.op = Op::gather_updated, .stream = StreamId::gather, .flat = flat, .after = {rounded}});
  }
}

}  // namespace

bool quantizes_weights(const nn::FlatSpec& spec) {
  return spec.trainable && spec.scaling != nn::Scaling::none;
}

program::Program make_program(const models::Model& model, const ScheduleOptions& options) {
  HAWSER_CHECK(static_cast<int>(options.policies.size()) == model.layers(), options.policies.size(), " policies for ",
               model.layers(), " layers");
  program::Program program;
  program.micro_batches = options.micro_batches;
  program.add({.op = Op::begin_step});
  parallel::ShardOptions shard = options.shard;
  shard.micro_batches = options.micro_batches;
  for (const nn::Flat& flat : model.flats()) {
    shard.unsharded.push_back(options.unsharded[static_cast<std::size_t>(flat.spec().domain)]);
  }
  auto ends = parallel::write_sharded(program, Lister(model, options).list(), shard);
  for (parallel::GradientEnd& end : ends) {
    const nn::FlatSpec& spec = model.flat(end.flat).spec();
    if (options.copies == 1 || spec.domain == Domain::sliced || spec.partial_gradient) continue;
    const StreamId stream = program.instructions[static_cast<std::size_t>(end.instruction)].stream;
    end.instruction =
        program.add({.op = Op::divide_copies, .stream = stream, .flat = end.flat, .after = {end.instruction}});
  }
  if (options.purpose == Purpose::train) {
    // In the order in which gradients are complete, so that only the last one's norm remains after its reduction.
    for (const parallel::GradientEnd& end : ends) {
      program.add({.op = Op::grad_norm_partial, .flat = end.flat, .after = {end.instruction}});
    }
    program.add({.op = Op::gradient_norm});
    write_updates(program, model, options, shard);
    if (options.quantizes) write_scales(program, model, shard);
  }
  if (options.purpose == Purpose::gradient_norms) {
    program.add({.op = Op::parameter_norms, .after = {ends.back().instruction}});  // all other ends are before it
  }
  program.add({.op = Op::end_step});
  return program;
}

}  // namespace hawser::step

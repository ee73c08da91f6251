#include "step/computations.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "nn/row_tiles.h"

namespace hawser::step {

namespace {

using parallel::Computation;
using program::Instruction;
using program::Op;
using program::StreamId;
using program::WeightForm;

// A receive starts when the computations of the pass before the previous one have ended. So it overlaps with one pass,
// and beside the input of the running pass one more received buffer is live. It does not wait for what that pass sends:
// the stage that receives it may first wait for a message of this one, as stages of interleaved schedules do.
constexpr int kPassesAhead = 2;

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

// Operands are indices into the list.
class Lister {
 public:
  Lister(const models::Model& model, const ScheduleOptions& options)
      : model_(model), options_(options), partition_(options.partition), unit_of_(model.flats().size()) {
    const auto stages = models::flat_stages(model, partition_);
    for (const std::vector<int>& of : stages) held_.push_back(std::ranges::find(of, options.stage) != of.end());
    for (const nn::Unit& unit : model.units()) {
      for (const int flat : unit.flats) unit_of_[static_cast<std::size_t>(flat)] = &unit;
    }
    embedding_ = flats_of(model.embedding_params());
    head_ = flats_of(model.head_params());
    trainable_below_ = !embedding_.trainable.empty();
    first_backward_ = model.first_trained_layer();
    for (int layer = 0; layer < model.layers(); ++layer) {
      layers_.push_back(flats_of(model.layer_params(layer)));
      recomputes_.push_back(nn::recomputes(model.layer(layer), options.policies[static_cast<std::size_t>(layer)],
                                           model.trainable(layer)));
    }
    writers_ = writers_of_inputs(model, options.partition, options.policies);
    const bool below = trainable_below_ || first_backward_ < model.layers();
    HAWSER_CHECK(below || !head_.trainable.empty() || forward_only(options.purpose), "no parameter is trainable");
  }

  std::vector<Computation> list() {
    for (const Pass& pass : options_.passes) {
      pass_begin_ = static_cast<int>(list_.size());
      HAWSER_CHECK(
          pass.model_chunk >= 0 && pass.model_chunk < partition_.model_chunks() && pass.micro_batch >= 0 &&
              pass.micro_batch < options_.micro_batches && partition_.stage_of(pass.model_chunk) == options_.stage,
          "stage ", options_.stage, " has no model chunk ", pass.model_chunk, " of micro-batch ", pass.micro_batch);
      Work& work = works_[{pass.model_chunk, pass.micro_batch}];
      switch (pass.kind) {
        case Pass::Kind::forward:
          forward(pass, work);
          break;
        case Pass::Kind::backward:
          backward(pass, work);
          break;
        case Pass::Kind::weight_gradients:
          delayed_weight_gradients(pass, work);
          break;
      }
      ends_.push_back(end_of_pass());
    }
    check_complete();
    return std::move(list_);
  }

 private:
  // What the passes of one micro-batch through one model chunk have written so far.
  struct Work {
    models::LayerRange layers;
    std::vector<int> forward;     // by layer of the model chunk
    std::vector<int> dy;          // by layer of the model chunk: the computation that writes its dy
    int input = -1, output = -1;  // the activation that enters and leaves the model chunk
    int loss = -1;
    std::vector<int> sent;     // what sends the output, if another model chunk reads it
    std::vector<int> offload;  // by layer of the model chunk: -1: its tensors stay
    std::vector<int> load;     // the same
    std::vector<int> again;    // by layer of the model chunk: its recompute, once it is listed
    bool has_forward = false, has_backward = false, has_weights = false;
  };

  // Of the pass that has just been written: its last computation, or if it has none, and in forward-only programs,
  // where nothing else waits for what it sends, its last item.
  int end_of_pass() const {
    auto last = static_cast<int>(list_.size()) - 1;
    // Other stages may reach the end of a loss's sum much later.
    while (list_[static_cast<std::size_t>(last)].instruction.stream == StreamId::auxiliary) --last;
    if (forward_only(options_.purpose)) return last;
    for (int i = last; i >= pass_begin_; --i) {
      if (list_[static_cast<std::size_t>(i)].instruction.stream == StreamId::compute) return i;
    }
    return last;
  }

  Flats flats_of(const std::vector<models::ParamIndex>& places) const {
    Flats flats;
    for (const models::ParamIndex& place : places) {
      for (const int flat : unit_of_[static_cast<std::size_t>(place.flat)]->flats) {
        if (held_[static_cast<std::size_t>(flat)]) flats.read.push_back(flat);
      }
      if (model_.flat(place.flat).spec().trainable) flats.trainable.push_back(place.flat);
    }
    sort_once(flats.read);
    sort_once(flats.trainable);
    return flats;
  }
  const Flats& flats_of_layer(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  bool first(const Pass& pass) const { return pass.model_chunk == 0; }
  bool last(const Pass& pass) const { return pass.model_chunk + 1 == partition_.model_chunks(); }
  // Whether a gradient enters the model chunk from its end: a parameter of it, or below it, is trainable.
  bool has_gradient(int model_chunk) const {
    return model_chunk >= 0 &&
           (trainable_below_ || first_backward_ < models::layers_of(model_, partition_, model_chunk).end);
  }

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

  int receive(const Pass& pass, int boundary, Direction direction) {
    Instruction instruction{.op = Op::receive,
                            .stream = StreamId::receive,
                            .micro_batch = pass.micro_batch,
                            .boundary = boundary,
                            .direction = direction};
    if (ends_.size() >= kPassesAhead) instruction.after.push_back(ends_[ends_.size() - kPassesAhead]);
    return add(std::move(instruction), {}, {});
  }

  int send(const Pass& pass, int boundary, Direction direction, int x) {
    return add({.op = Op::send,
                .stream = StreamId::send,
                .micro_batch = pass.micro_batch,
                .x = x,
                .boundary = boundary,
                .direction = direction},
               {}, {});
  }

  void forward(const Pass& pass, Work& work) {
    HAWSER_CHECK(!std::exchange(work.has_forward, true), "two forward passes of model chunk ", pass.model_chunk,
                 ", micro-batch ", pass.micro_batch);
    const int mb = pass.micro_batch;
    work.layers = models::layers_of(model_, partition_, pass.model_chunk);
    if (!loaded_.contains(mb)) loaded_[mb] = add({.op = Op::load_batch, .micro_batch = mb}, {}, {});
    work.input = first(pass) ? add({.op = Op::embed, .micro_batch = mb}, embedding_.read, {})
                             : receive(pass, pass.model_chunk - 1, Direction::forward);
    work.output = work.input;
    const auto output_of = [&](int layer) {
      return layer < work.layers.begin ? work.input : work.forward[static_cast<std::size_t>(layer - work.layers.begin)];
    };
    for (int layer = work.layers.begin; layer < work.layers.end; ++layer) {
      const models::LayerInputs& inputs = model_.inputs(layer);
      HAWSER_CHECK(std::min(inputs.x, inputs.residual) >= work.layers.begin - 1, "layer ", layer,
                   " reads the output of layer ", std::min(inputs.x, inputs.residual),
                   ", which another model chunk has");
      const Instruction instruction{.op = Op::forward,
                                    .layer = layer,
                                    .micro_batch = mb,
                                    .x = output_of(inputs.x),
                                    .residual = output_of(inputs.residual)};
      work.output = add(instruction, flats_of_layer(layer).read, {});
      work.forward.push_back(work.output);
      const auto window = static_cast<std::size_t>(options_.offload_window);
      if (offloads_.size() > window) {  // its buffers are free when the copy has ended
        list_.back().instruction.after.push_back(offloads_[offloads_.size() - 1 - window]);
      }
      work.offload.push_back(offloads(layer) ? copy(Op::offload, StreamId::copy_out, pass, layer, work.output) : -1);
      if (offloads(layer)) offloads_.push_back(work.offload.back());
    }
    if (!last(pass)) work.sent = {send(pass, pass.model_chunk, Direction::forward, work.output)};
    // After the send: the next stage begins its part of the sum when it has the activation, and what the host does for
    // a sum may have to wait until the sum's kernel has ended.
    if (pass.model_chunk + partition_.stages >= partition_.model_chunks()) auxiliary_loss(mb);
    if (!last(pass)) return;
    const bool gradients = !forward_only(options_.purpose);
    const Op head = gradients ? Op::loss_gradient : options_.purpose == Purpose::loss ? Op::loss : Op::logits;
    work.loss = add({.op = head, .micro_batch = mb, .x = work.output}, head_.read,
                    gradients ? head_.trainable : std::vector<int>());
  }

  // After the stage's last model chunk. Other stages may reach it much later, so no computation waits for it before
  // backward.
  void auxiliary_loss(int micro_batch) {
    if (model_.auxiliary_layers() == 0 || options_.purpose == Purpose::logits) return;
    auto before = static_cast<int>(list_.size()) - 1;
    while (list_[static_cast<std::size_t>(before)].instruction.stream != StreamId::compute) --before;
    auxiliary_[micro_batch] =
        add({.op = Op::auxiliary_loss, .stream = StreamId::auxiliary, .micro_batch = micro_batch, .after = {before}},
            {}, {});
  }

  void backward(const Pass& pass, Work& work) {
    HAWSER_CHECK(work.has_forward && !std::exchange(work.has_backward, true), "a backward pass of model chunk ",
                 pass.model_chunk, ", micro-batch ", pass.micro_batch, " that has no forward pass, or is the second");
    work.dy.resize(work.forward.size());
    if (!has_gradient(pass.model_chunk)) return;
    int dy = last(pass) ? work.loss : receive(pass, pass.model_chunk, Direction::backward);
    int dresidual = dy;
    // The gradient arrives after what was sent for it has arrived: the wait for that send takes no time, and its buffer
    // is free from then on.
    std::vector<int> sent = work.sent;
    work.load.assign(work.forward.size(), -1);
    work.again.assign(work.forward.size(), -1);
    const int lowest = std::max(first_backward_, work.layers.begin);
    int next_load = work.layers.end - 1;
    std::vector<int> done;  // the backward computations of this pass
    bool has_factors = model_.auxiliary_layers() == 0;
    for (int layer = work.layers.end - 1; layer >= lowest; --layer) {
      const auto at = static_cast<std::size_t>(layer - work.layers.begin);
      int needed = std::max(lowest, layer - options_.offload_window);
      if (const int writer = writers_[static_cast<std::size_t>(needed)]; writer >= 0) needed = writer;
      for (; next_load >= needed; --next_load) load(pass, work, next_load, done);
      if (const int writer = writers_[static_cast<std::size_t>(layer)]; writer >= 0) recompute(pass, work, writer);
      recompute(pass, work, layer);
      const Flats& flats = flats_of_layer(layer);
      Instruction back = of_layer(pass, work, layer);
      back.op = Op::backward;
      back.dy = dy;
      back.residual = dresidual;
      back.after = std::exchange(sent, {});
      if (!has_factors && model_.auxiliary_index(layer) >= 0) {
        const auto loss = auxiliary_.find(pass.micro_batch);
        HAWSER_CHECK(loss != auxiliary_.end(), "a backward pass of micro-batch ", pass.micro_batch,
                     " before the forward passes of all its model chunks on stage ", options_.stage);
        back.after.push_back(loss->second);
        has_factors = true;
      }
      work.dy[at] = dy;
      const bool again = nn::in_tiles(model_.layer(layer), options_.policies[static_cast<std::size_t>(layer)]);
      dresidual = add(back, flats.read, flats.trainable, again ? WeightForm::both : WeightForm::transposed);
      done.push_back(dresidual);
      // The gradient of a sum is that of each term: the layer that wrote the residual has the same dy.
      const models::LayerInputs& inputs = model_.inputs(layer);
      if (inputs.residual == inputs.x) dy = dresidual;
    }
    if (!first(pass)) {
      if (!has_gradient(pass.model_chunk - 1)) return;
      // The gradient that was sent before has arrived when this one is complete, or soon: its buffer is free then.
      if (sent_gradient_ >= 0 && !done.empty()) {
        list_[static_cast<std::size_t>(done.back())].instruction.after.push_back(sent_gradient_);
      }
      sent_gradient_ = send(pass, pass.model_chunk - 1, Direction::backward, dy);
      return;
    }
    if (embedding_.trainable.empty()) return;
    const std::vector<int> weights = model_.embedding().backward_reads_weights() ? embedding_.read : std::vector<int>();
    add({.op = Op::embed_backward, .micro_batch = pass.micro_batch, .dy = dy, .after = sent}, weights,
        embedding_.trainable);
  }

  // Lists the recompute of a layer, if it has one that is not listed yet; with its output, if the next layer reads it.
  void recompute(const Pass& pass, Work& work, int layer) {
    int& again = work.again[static_cast<std::size_t>(layer - work.layers.begin)];
    if (again >= 0 || !recomputes_[static_cast<std::size_t>(layer)]) return;
    Instruction instruction = of_layer(pass, work, layer);
    instruction.op = Op::recompute;
    const int next = layer + 1;
    if (next < work.layers.end && writers_[static_cast<std::size_t>(next)] == layer) {
      instruction.residual = instruction.x;  // the block is serial
    }
    again =
        add(std::move(instruction), flats_of_layer(layer).read, {}, WeightForm::both);  // one gather for both passes
  }

  // The operands of a layer's later passes.
  Instruction of_layer(const Pass& pass, const Work& work, int layer) const {
    const auto at = static_cast<std::size_t>(layer - work.layers.begin);
    const int forward = work.forward[at], load = work.load[at], writer = writers_[static_cast<std::size_t>(layer)];
    Instruction instruction{.layer = layer, .micro_batch = pass.micro_batch, .saved = load >= 0 ? load : forward};
    if (writer >= 0) {
      instruction.x = work.again[static_cast<std::size_t>(writer - work.layers.begin)];
    } else {
      instruction.x = load >= 0 ? load : list_[static_cast<std::size_t>(forward)].instruction.x;
    }
    return instruction;
  }

  // Of a forward-only step nothing is saved; without a backward pass of the layer nothing is loaded. With its input, a
  // layer saves next to nothing that would be left to copy.
  bool offloads(int layer) const {
    return options_.policies[static_cast<std::size_t>(layer)].offload && !forward_only(options_.purpose) &&
           layer >= first_backward_ && writers_[static_cast<std::size_t>(layer)] < 0;
  }

  int copy(Op op, StreamId stream, const Pass& pass, int layer, int forward) {
    const bool reads_x = op == Op::offload;
    return add({.op = op,
                .stream = stream,
                .layer = layer,
                .micro_batch = pass.micro_batch,
                .x = reads_x ? list_[static_cast<std::size_t>(forward)].instruction.x : -1,
                .saved = forward},
               {}, {});
  }

  // Loads what backward of a layer reads. `done`: the backward computations of the pass so far.
  void load(const Pass& pass, Work& work, int layer, const std::vector<int>& done) {
    const auto at = static_cast<std::size_t>(layer - work.layers.begin);
    if (work.offload[at] < 0) return;
    const int load = copy(Op::load, StreamId::copy_in, pass, layer, work.forward[at]);
    std::vector<int>& after = list_[static_cast<std::size_t>(load)].instruction.after;
    after.push_back(work.offload[at]);
    if (!done.empty()) {
      after.push_back(done.back());
    } else if (ends_.size() >= kPassesAhead) {
      after.push_back(ends_[ends_.size() - kPassesAhead]);
    }
    work.load[at] = load;
  }

  void delayed_weight_gradients(const Pass& pass, Work& work) {
    HAWSER_CHECK(work.has_backward && !std::exchange(work.has_weights, true), "weight gradients of model chunk ",
                 pass.model_chunk, ", micro-batch ", pass.micro_batch,
                 " before its backward pass, or for the second time");
    for (int layer = work.layers.end - 1; layer >= std::max(first_backward_, work.layers.begin); --layer) {
      if (!options_.policies[static_cast<std::size_t>(layer)].delay_weight_gradients) continue;
      const Flats& flats = flats_of_layer(layer);
      if (flats.trainable.empty()) continue;
      Instruction instruction = of_layer(pass, work, layer);
      instruction.op = Op::backward_weight;
      instruction.dy = work.dy[static_cast<std::size_t>(layer - work.layers.begin)];
      add(std::move(instruction), flats.read, flats.trainable);
    }
  }

  bool delays(int model_chunk) const {
    const models::LayerRange layers = models::layers_of(model_, partition_, model_chunk);
    for (int layer = layers.begin; layer < layers.end; ++layer) {
      if (options_.policies[static_cast<std::size_t>(layer)].delay_weight_gradients) return true;
    }
    return false;
  }

  void check_complete() {
    for (const int model_chunk : partition_.chunks_of(options_.stage)) {
      for (int mb = 0; mb < options_.micro_batches; ++mb) {
        const Work& work = works_[{model_chunk, mb}];
        const bool backward = !forward_only(options_.purpose);
        HAWSER_CHECK(work.has_forward && work.has_backward == backward &&
                         (work.has_weights || !backward || !delays(model_chunk)),
                     "model chunk ", model_chunk, ", micro-batch ", mb, ": a pass is missing in the schedule of stage ",
                     options_.stage);
      }
    }
  }

  const models::Model& model_;
  const ScheduleOptions& options_;
  const models::PipelinePartition& partition_;
  std::vector<bool> held_;                // by flat
  std::vector<const nn::Unit*> unit_of_;  // by flat
  Flats embedding_, head_;
  std::vector<Flats> layers_;
  bool trainable_below_ = false;  // the embedding is trainable
  int first_backward_ = 0;        // Model::first_trained_layer: layers before it have no backward
  std::vector<bool> recomputes_;  // by layer: a recompute instruction precedes backward
  std::vector<int> writers_;      // writers_of_inputs()
  std::vector<Computation> list_;
  std::map<std::pair<int, int>, Work> works_;  // by model chunk and micro-batch
  std::map<int, int> loaded_;                  // by micro-batch whose tables are loaded: its load_batch
  std::map<int, int> auxiliary_;               // by micro-batch: its auxiliary_loss
  std::vector<int> ends_;                      // of each pass so far: end_of_pass()
  int pass_begin_ = 0;                         // the first item of the pass that is being written
  int sent_gradient_ = -1;                     // the last send of a gradient
  std::vector<int> offloads_;                  // so far
};

}  // namespace

std::vector<int> writers_of_inputs(const models::Model& model, const models::PipelinePartition& partition,
                                   const std::vector<nn::SavePolicy>& policies) {
  std::vector<int> writers(static_cast<std::size_t>(model.layers()), -1);
  for (int chunk = 0; chunk < partition.model_chunks(); ++chunk) {
    const models::LayerRange layers = models::layers_of(model, partition, chunk);
    for (int layer = std::max(layers.begin, model.first_trained_layer()) + 1; layer < layers.end; ++layer) {
      const int before = layer - 1;
      const auto recomputes = [&](int l) { return policies[static_cast<std::size_t>(l)].recomputes_output(); };
      const models::LayerInputs& inputs = model.inputs(layer);
      const bool serial = inputs.x == before && inputs.residual == before;
      if (!serial || model.block_of(before) != model.block_of(layer)) continue;
      if (recomputes(before) && recomputes(layer)) writers[static_cast<std::size_t>(layer)] = before;
    }
  }
  return writers;
}

std::vector<Computation> list_computations(const models::Model& model, const ScheduleOptions& options) {
  return Lister(model, options).list();
}

std::vector<Pass> grouped_passes(int micro_batches, int in_flight, const models::PipelinePartition& partition,
                                 int stage) {
  const std::vector<int> model_chunks = partition.chunks_of(stage);
  const int group = std::max(1, in_flight);
  std::vector<Pass> passes;
  for (int first = 0; first < micro_batches; first += group) {
    const int end = std::min(first + group, micro_batches);
    const auto add = [&](Pass::Kind kind, bool descending) {
      for (int mb = first; mb < end; ++mb) {
        for (std::size_t c = 0; c < model_chunks.size(); ++c) {
          passes.push_back({kind, mb, model_chunks[descending ? model_chunks.size() - 1 - c : c]});
        }
      }
    };
    add(Pass::Kind::forward, false);
    add(Pass::Kind::backward, true);
    add(Pass::Kind::weight_gradients, true);
  }
  return passes;
}

std::vector<Pass> forward_passes(int micro_batches, const models::PipelinePartition& partition, int stage) {
  std::vector<Pass> passes;
  for (int first = 0; first < micro_batches; first += partition.stages) {
    for (const int model_chunk : partition.chunks_of(stage)) {
      for (int mb = first; mb < std::min(first + partition.stages, micro_batches); ++mb) {
        passes.push_back({Pass::Kind::forward, mb, model_chunk});
      }
    }
  }
  return passes;
}

}  // namespace hawser::step

// What instructions work on: found in the first step, used again in all others.
#include <algorithm>

#include "nn/row_tiles.h"
#include "step/executor_context.h"

namespace hawser::step {

using models::ParamIndex;
using program::Instruction;
using program::Op;
using program::WeightForm;

void Executor::Impl::check_first_step(const Instruction& instruction) const {
  HAWSER_CHECK(first_step_, "instruction ", instruction.id, " (", to_string(instruction.op),
               ") asks for what it did not ask for in the first step");
}

Bound& Executor::Impl::bound(const Instruction& instruction) {
  Bound& bound = bound_[keeps_bound_ ? static_cast<std::size_t>(instruction.id) : 0];
  if (!bound.found) {
    check_first_step(instruction);
    bound.found = true;
    bind(instruction, bound);
  }
  return bound;
}

TensorView Executor::Impl::temp(const Instruction& instruction, DType dtype, const Shape& shape) {
  std::vector<TensorView>& temps = bound(instruction).temps;
  const std::size_t index = temps_++;
  if (index == temps.size()) {
    check_first_step(instruction);
    temps.push_back(setup_.buffers->get({Role::temp, instruction.id, static_cast<int>(index)}, dtype, shape));
  }
  const TensorView& temp = temps[index];
  HAWSER_CHECK(temp.dtype() == dtype && temp.shape() == shape, "instruction ", instruction.id, " (",
               to_string(instruction.op), ") asks for ", to_string(dtype), " ", shape.text(),
               ", and in the first step for ", temp.text());
  return temp;
}

TensorView Executor::Impl::activation(int instruction) {
  return setup_.buffers->get({Role::activation, instruction, 0}, setup_.compute,
                             {setup_.bounds.row_counts().residual, setup_.model->width()});
}

const std::vector<ParamIndex>& Executor::Impl::params_of(const Instruction& instruction) const {
  static const std::vector<ParamIndex> kNone;
  switch (instruction.op) {
    case Op::embed:
    case Op::embed_backward:
      return setup_.model->embedding_params();
    case Op::loss:
    case Op::logits:
    case Op::loss_gradient:
      return setup_.model->head_params();
    case Op::forward:
    case Op::recompute:
    case Op::backward:
    case Op::backward_weight:
      return setup_.model->layer_params(instruction.layer);
    default:
      return kNone;
  }
}

void Executor::Impl::bind(const Instruction& instruction, Bound& bound) {
  const auto operand = [&](int owner) { return owner < 0 ? TensorView() : activation(owner); };
  bound.weights = weights_of(instruction);
  bound.gradients.resize(params_of(instruction).size());
  switch (instruction.op) {
    case Op::forward:
    case Op::recompute:
    case Op::backward:
    case Op::backward_weight:
      bound.saved = saved_views(instruction);
      bound.residual = operand(instruction.residual);
      break;
    case Op::load_weights:
    case Op::gather:
      return bind_gather(instruction, bound);
    case Op::offload:
    case Op::load:
      return bind_copies(instruction, bound);
    case Op::state_in:
    case Op::state_out:
      return bind_state_copies(instruction, bound);
    case Op::quantize_weights:
      bound.stored = stored_on_device(instruction);
      bound.compute = rounded_on_device(instruction);
      return;
    case Op::update:
    case Op::optimizer_sum:
    case Op::optimizer_gather:
    case Op::optimizer_scatter:
      return bind_update(instruction, bound);
    case Op::reduce:
      bound.accumulate = !written_.emplace(BufferKey{Role::shard_gradient, instruction.flat, 0}, 0).second;
      return;
    case Op::grad_norm_partial:
      bound.accumulate = std::exchange(norm_begun_, true);
      return;
    default:
      break;
  }
  bound.x = operand(instruction.x);
  bound.dy = operand(instruction.dy);
  switch (instruction.op) {
    case Op::embed:
    case Op::forward:
    case Op::backward:
    case Op::loss_gradient:
    case Op::receive:
      bound.y = activation(instruction.id);
      break;
    case Op::recompute:
      if (instruction.residual >= 0) bound.y = activation(instruction.id);
      break;
    case Op::auxiliary_loss:
      bind_auxiliary(instruction, bound);
      break;
    default:
      break;
  }
}

// The buffer of a rank's shard of weights that are in host memory.
TensorView Executor::Impl::weight_shard(const Instruction& instruction) {
  const int owner = instruction.op == Op::load_weights ? instruction.id : instruction.staged;
  const TensorView& shard = setup_.state->flat(instruction.flat).compute;
  return setup_.buffers->get({Role::weight_shard, owner, 0}, shard.dtype(), shard.shape());
}

// x: what is gathered.
void Executor::Impl::bind_gather(const Instruction& instruction, Bound& bound) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  if (instruction.op == Op::gather) {
    bound.x = instruction.staged >= 0 ? weight_shard(instruction) : flat.compute;
    return bind_weights(instruction, bound);
  }
  if (!instruction.shard) bind_weights(instruction, bound);
  bound.copies.emplace_back(flat.compute, instruction.shard ? weight_shard(instruction) : bound.y);
}

void Executor::Impl::bind_weights(const Instruction& instruction, Bound& bound) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  const DType dtype = flat.compute.dtype();
  const Shape shape = nn::flat_shape(dtype, flat.count * flat.shard.count);
  const auto form = [&](int which) {
    return setup_.buffers->get({Role::weights, instruction.id, which}, dtype, shape);
  };
  bound.y = instruction.form == WeightForm::transposed ? temp(instruction, dtype, shape) : form(0);
  if (instruction.form != WeightForm::rows) bound.transposed = form(1);
}

// What forward writes and a later pass reads, between the buffers of forward or of the load, and host memory.
void Executor::Impl::bind_copies(const Instruction& instruction, Bound& bound) {
  const bool out = instruction.op == Op::offload;
  const auto add = [&](const TensorView& device, int index) {
    const TensorView host =
        setup_.buffers->get({Role::offloaded, instruction.saved, index}, device.dtype(), device.shape());
    bound.copies.emplace_back(out ? device : host, out ? host : device);
  };
  add(activation(out ? instruction.x : instruction.id), -1);
  const auto specs = saved_specs(instruction.layer);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const nn::SavedSpec& spec = specs[i];
    if (spec.shape.rank() == 0 || spec.writer != nn::Pass::forward || spec.last_reader == nn::Pass::forward) continue;
    const int index = static_cast<int>(i);
    const BufferKey key{Role::saved, out ? instruction.saved : instruction.id, index};
    add(setup_.buffers->get(key, spec.dtype, spec.shape), index);
  }
}

// A buffer of what the instruction's state_in copies to the device.
TensorView Executor::Impl::staged(const Instruction& instruction, int index, const TensorView& like) {
  const int owner = instruction.op == Op::state_in ? instruction.id : instruction.staged;
  return setup_.buffers->get({Role::staged_state, owner, index}, like.dtype(), like.shape());
}

TensorView Executor::Impl::stored_on_device(const Instruction& instruction) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  return flat.stored_on_host() ? staged(instruction, 0, flat.stored) : flat.stored;
}

void Executor::Impl::bind_state_copies(const Instruction& instruction, Bound& bound) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  const bool in = instruction.op == Op::state_in;
  const auto add = [&](const TensorView& host, int index) {
    if (host.bytes() == 0) return;
    const TensorView device = staged(instruction, index, host);
    bound.copies.emplace_back(in ? host : device, in ? device : host);
  };
  const bool rounded = flat.streamed && flat.compute.raw() != flat.stored.raw();
  if (!in && rounded && flat.quantized_after_updates() == instruction.weights_only) {
    add(flat.compute, 1 + static_cast<int>(flat.slots.size()));
  }
  if (instruction.weights_only && !in) return;
  if (flat.stored_on_host()) add(flat.stored, 0);
  if (instruction.weights_only) return;
  for (std::size_t i = 0; flat.on_host() && i < flat.slots.size(); ++i) add(flat.slots[i], 1 + static_cast<int>(i));
}

// The domain that is sharded over the ranks which exchange: all tensor ranks, too, if the phase wants their slices.
Domain Executor::Impl::exchanged_over(const nn::Flat& flat, const optim::Phase& phase) const {
  const Domain domain = flat.spec().domain;
  const bool sliced = domain == Domain::sliced || domain == Domain::kv_copies;
  return phase.slices && sliced ? Domain::replicated : domain;
}

// All that phase `phase` of a flat's update exchanges: the shard is this rank's part of the flat.
optim::Exchanged Executor::Impl::exchanged(int flat, int phase) {
  const FlatState& state = setup_.state->flat(flat);
  const optim::Phase sends = setup_.optimizer->phases(setup_.model->flat(flat)).at(static_cast<std::size_t>(phase));
  optim::Exchanged views;
  if (sends.sums > 0) views.sums = setup_.buffers->get({Role::update, flat, 2 * phase}, DType::f32, {sends.sums});
  if (const auto dtype = sends.gathers ? sends.gathers : sends.scatters) {
    const comm::Group& group = setup_.mesh->shard(exchanged_over(setup_.model->flat(flat), sends));
    views.flat = setup_.buffers->get({Role::update, flat, 2 * phase + 1}, *dtype, {state.count * group.size()});
    views.shard = views.flat.rows(state.count * group.index(), state.count);
  }
  return views;
}

void Executor::Impl::bind_update(const Instruction& instruction, Bound& bound) {
  const int f = instruction.flat, phase = instruction.phase;
  if (instruction.op != Op::update) {
    bound.sent = exchanged(f, phase);
    return;
  }
  const FlatState& state = setup_.state->flat(f);
  bound.stored = stored_on_device(instruction);
  bound.slots = state.slots;
  for (std::size_t i = 0; state.on_host() && i < state.slots.size(); ++i) {
    bound.slots[i] = staged(instruction, 1 + static_cast<int>(i), state.slots[i]);
  }
  const std::vector<optim::Phase> phases = setup_.optimizer->phases(setup_.model->flat(f));
  bound.last_phase = phase + 1 == static_cast<int>(phases.size());
  if (bound.last_phase) bound.compute = rounded_after(instruction);
  if (bound.last_phase && state.quantized_after_updates() && setup_.optimizer->records_amaxes(setup_.model->flat(f))) {
    bound.measured = setup_.state->options().quantizer->measured_matrices(setup_.model->flat(f), state.begin);
  }
  if (!bound.last_phase) {
    bound.sent = exchanged(f, phase);
    (phases[static_cast<std::size_t>(phase)].scatters ? bound.sent.shard : bound.sent.flat) = {};
  }
  if (phase > 0) {
    bound.received = exchanged(f, phase - 1);
    (phases[static_cast<std::size_t>(phase) - 1].gathers ? bound.received.shard : bound.received.flat) = {};
  }
}

// x: the statistics of all layers, y: their factors.
void Executor::Impl::bind_auxiliary(const Instruction& instruction, Bound& bound) {
  const nn::AuxiliaryLoss& loss = *setup_.model->auxiliary_loss();
  if (!auxiliary_given()) {
    bound.x = auxiliary_table(instruction.micro_batch, 0, loss.statistics());
    bound.other_stages = of_other_stages(bound.x);
  }
  if (has_gradients()) bound.y = auxiliary_table(instruction.micro_batch, 1, loss.factors());
  bound.accumulate = std::exchange(auxiliary_begun_, true);
}

// The rows of layers that no forward of this stage writes, adjacent ones together.
std::vector<TensorView> Executor::Impl::of_other_stages(const TensorView& statistics) const {
  const models::Model& model = *setup_.model;
  const StateOptions& options = setup_.state->options();
  std::vector<bool> own(static_cast<std::size_t>(statistics.size(0)));
  for (const models::LayerRange& layers : models::layers_of_stage(model, options.partition, options.stage)) {
    for (int layer = layers.begin; layer < layers.end; ++layer) {
      if (const int row = model.auxiliary_index(layer); row >= 0) own[static_cast<std::size_t>(row)] = true;
    }
  }
  std::vector<TensorView> runs;
  for (auto begin = std::ranges::find(own, false); begin != own.end();) {
    const auto end = std::find(begin, own.end(), true);
    runs.push_back(statistics.rows(begin - own.begin(), end - begin));
    begin = std::find(end, own.end(), false);
  }
  return runs;
}

TensorView Executor::Impl::auxiliary_table(int micro_batch, int which, std::int64_t elements) {
  const auto layers = static_cast<std::int64_t>(setup_.model->auxiliary_layers());
  return setup_.buffers->get({Role::auxiliary, micro_batch, which}, DType::f32, {layers, elements});
}

const nn::AuxiliaryViews& Executor::Impl::auxiliary_views(const Instruction& instruction) {
  std::optional<nn::AuxiliaryViews>& views = bound(instruction).auxiliary;
  if (views) return *views;
  check_first_step(instruction);
  views.emplace();
  const int mb = instruction.micro_batch;
  if (instruction.layer < 0 || !with_auxiliary_.at(static_cast<std::size_t>(mb))) return *views;
  const std::int64_t row = setup_.model->auxiliary_index(instruction.layer);
  if (row < 0) return *views;
  const nn::AuxiliaryLoss& loss = *setup_.model->auxiliary_loss();
  const auto of = [&](int which, std::int64_t elements) {
    return auxiliary_table(mb, which, elements).rows(row, 1).reshape({elements});
  };
  if (instruction.op == Op::forward && !auxiliary_given()) views->statistics = of(0, loss.statistics());
  if (instruction.op == Op::backward || instruction.op == Op::backward_weight) views->factors = of(1, loss.factors());
  return *views;
}

const BoundGradient& Executor::Impl::gradient(const Instruction& instruction, const ParamIndex& place, int param) {
  std::optional<BoundGradient>& gradient = bound(instruction).gradients[static_cast<std::size_t>(param)];
  if (gradient) return *gradient;
  check_first_step(instruction);
  gradient.emplace();
  const nn::Flat& flat = setup_.model->flat(place.flat);
  if (!flat.spec().trainable) return *gradient;
  const BufferKey key = gradient_key(place.flat, instruction.micro_batch);
  const TensorView all = flat_gradient(place.flat, instruction.micro_batch);
  if (gaps_filled_.insert(key).second) {
    for (const IndexRange& gap : flat.gaps(all.elements())) gradient->zeroed.push_back(all.rows(gap.begin, gap.count));
    // Parameters that only other stages use.
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      if (with_gradient_.contains({place.flat, p})) continue;
      const TensorView unused = flat.view(all, p);
      gradient->zeroed.push_back(unused.reshape({unused.elements()}));
    }
  }
  const bool first = written_.emplace(key, place.index).second;
  gradient->target = {flat.view(all, place.index), !first};
  return *gradient;
}

std::vector<nn::Scaled> Executor::Impl::weights_of(const Instruction& instruction) {
  std::vector<nn::Scaled> weights;
  for (const ParamIndex& place : params_of(instruction)) {
    const nn::Flat& flat = setup_.model->flat(place.flat);
    const FlatState& state = setup_.state->flat(place.flat);
    TensorView values = state.unsharded, transposed = state.transposed;
    for (const int id : instruction.gathered) {
      const Instruction& gather = setup_.program->instructions[static_cast<std::size_t>(id)];
      if (gather.flat != place.flat) continue;
      const auto form = [&](int which) {
        return setup_.buffers->get({Role::weights, id, which}, state.compute.dtype(),
                                   nn::flat_shape(state.compute.dtype(), flat.total(state.shard.count)));
      };
      if (gather.form != WeightForm::transposed) values = form(0);
      if (gather.form != WeightForm::rows) transposed = form(1);
    }
    if (values.empty() && transposed.empty()) return {};  // the instruction reads no weights
    weights.emplace_back(values.empty() ? values : flat.view(values, place.index),
                         setup_.state->gemm_scale(place.flat, place.index),
                         transposed.empty() ? transposed : flat.transposed_view(transposed, place.index));
    if (flat.spec().packed()) weights.back().nf4 = setup_.state->nf4_matrix(place.flat, place.index);
  }
  return weights;
}

std::vector<nn::SavedSpec> Executor::Impl::saved_specs(int layer) const {
  return nn::saved_specs_of(setup_.model->layer(layer), setup_.bounds.row_counts(), setup_.compute,
                            setup_.policies[static_cast<std::size_t>(layer)], setup_.model->trainable(layer),
                            setup_.seams);
}

nn::Saved Executor::Impl::saved_views(const Instruction& instruction) {
  const int owner = instruction.saved < 0 ? instruction.id : instruction.saved;
  const auto specs = saved_specs(instruction.layer);
  const auto last = [&] {
    switch (instruction.op) {
      case Op::forward:
        return nn::Pass::forward;
      case Op::recompute:
        return nn::Pass::recompute;
      case Op::backward:
        return nn::Pass::backward;
      default:
        return nn::Pass::backward_weight;
    }
  }();
  nn::Saved saved{.x = activation(instruction.x)};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    // A saved tensor exists from its writer to its last reader, if there is a backward; in other passes the layer uses
    // a temp or none.
    const bool there = specs[i].shape.rank() > 0 && specs[i].writer <= last && last <= specs[i].last_reader &&
                       !forward_only(setup_.purpose);
    saved.tensors.push_back(
        there ? setup_.buffers->get({Role::saved, owner, static_cast<int>(i)}, specs[i].dtype, specs[i].shape)
              : TensorView());
  }
  return saved;
}

}  // namespace hawser::step

#include "step/executor.h"

#include <algorithm>

#include "ops/copy/add.h"
#include "step/executor_context.h"

namespace hawser::step {

using models::ParamPlace;
using program::Instruction;
using program::Op;
using program::StreamId;
using program::WeightForm;

void add_streams(Device& device, const program::Program& program, Streams& streams) {
  // Layers use the exchange stream, and of a small program some of these have no instruction.
  std::set<StreamId> used{StreamId::compute, StreamId::exchange, StreamId::gather, StreamId::reduce};
  for (const Instruction& instruction : program.instructions) used.insert(instruction.stream);
  for (const StreamId id : used) {
    auto& stream = streams[static_cast<std::size_t>(id)];
    if (stream == nullptr) stream = device.make_stream(to_string(id));
  }
}

Executor::Executor(ExecutorSetup setup)
    : setup_(std::move(setup)),
      streams_(setup_.streams == nullptr ? own_streams_ : *setup_.streams),
      link_(*setup_.device, staged_bytes()) {
  add_streams(*setup_.device, *setup_.program, streams_);
  find_gradients();
  HAWSER_CHECK(setup_.reduce_dtype == DType::f32 || setup_.reduce_dtype == setup_.compute, "gradients in ",
               to_string(setup_.reduce_dtype), " of layers that compute in ", to_string(setup_.compute));
}

Executor::~Executor() {
  // A stream's destructor waits for its work, which uses the buffers of link_: after an exception work may be left.
  for (auto& stream : own_streams_) stream.reset();
}

bool Executor::trains() const {
  // Updates are at the end of a program.
  const std::vector<Instruction>& instructions = setup_.program->instructions;
  return std::any_of(instructions.rbegin(), instructions.rend(),
                     [](const Instruction& instruction) { return instruction.op == Op::update; });
}

bool Executor::has_gradients() const {
  return std::ranges::any_of(setup_.program->instructions, [](const Instruction& instruction) {
    return instruction.op == Op::loss_gradient || instruction.op == Op::backward;
  });
}

void Executor::find_gradients() {
  const auto add = [&](const std::vector<ParamPlace>& places) {
    for (const ParamPlace& place : places) with_gradient_.insert({place.flat, place.index});
  };
  for (const Instruction& instruction : setup_.program->instructions) {
    if (instruction.op == Op::loss_gradient) add(setup_.model->head_params());
    if (instruction.op == Op::embed_backward) add(setup_.model->embedding_params());
    if (instruction.op == Op::backward) add(setup_.model->layer_params(instruction.layer));
  }
}

void Executor::send_or_receive(const Instruction& instruction) {
  comm::Mesh& mesh = *setup_.mesh;
  const int edge = instruction.boundary % mesh.sizes().pipeline;
  comm::Group& lane = mesh.lane(edge, instruction.direction);
  const int peer = 1 - lane.index();
  // Both sides name what they mean, which the checker compares.
  const std::int64_t label = std::int64_t{instruction.boundary} << 32 | instruction.micro_batch;
  if (instruction.op == Op::send) {
    lane.send(stream(instruction.stream), activation(instruction.x), peer, label);
  } else {
    lane.receive(stream(instruction.stream), activation(instruction.id), peer, label);
  }
}

Stream& Executor::compute_stream() {
  return stream(StreamId::compute);
}

void Executor::synchronize() {
  for (const auto& s : streams_) {
    if (s != nullptr) s->synchronize();
  }
}

void Executor::check() {
  for (const auto& s : streams_) {
    if (s != nullptr) s->check();
  }
}

StepOutput Executor::enqueue(const StepInput& input) {
  StepOutput output;
  input_ = &input;
  link_.begin_step();
  written_.clear();
  gaps_filled_.clear();
  norm_begun_ = false;
  auxiliary_begun_ = false;
  end_events_.assign(setup_.program->instructions.size(), Event());
  for (const auto& s : streams_) {
    if (s != nullptr) s->wait(step_end_);
  }
  for (const Instruction& instruction : setup_.program->instructions) {
    if (setup_.on_instruction) setup_.on_instruction(instruction);
    temps_ = 0;
    for (const int other : instruction.after) {
      // Instructions of one stream are in order anyway.
      if (setup_.program->instructions[static_cast<std::size_t>(other)].stream != instruction.stream) {
        stream(instruction.stream).wait(end_events_[static_cast<std::size_t>(other)]);
      }
    }
    run(instruction, input, output);
    end_events_[static_cast<std::size_t>(instruction.id)] = stream(instruction.stream).record_event();
  }
  step_end_ = output.end;
  link_.end_step(output.end);
  held_.clear();
  input_ = nullptr;
  return output;
}

void Executor::run(const Instruction& instruction, const StepInput& input, StepOutput& output) {
  switch (instruction.op) {
    case Op::begin_step:
      return begin_step(input);
    case Op::load_batch:
      return load_batch(instruction);
    case Op::gather:
      return gather(instruction);
    case Op::gather_updated:
      return gather_updated(instruction);
    case Op::embed:
    case Op::loss:
    case Op::loss_gradient:
    case Op::embed_backward:
      return run_embedding_or_head(instruction);
    case Op::auxiliary_loss:
      return auxiliary_loss(instruction);
    case Op::logits:
      return logits(instruction, output);
    case Op::forward:
    case Op::recompute:
    case Op::backward:
    case Op::backward_weight:
      return run_layer(instruction);
    case Op::reduce:
      return reduce(instruction);
    case Op::reduce_replicas:
      return reduce_replicas(instruction);
    case Op::reduce_tied:
      return reduce_tied(instruction);
    case Op::send:
    case Op::receive:
      return send_or_receive(instruction);
    case Op::offload:
    case Op::load:
      return offload_or_load(instruction);
    case Op::divide_copies:
      return divide_copies(instruction);
    case Op::grad_norm_partial:
      return grad_norm_partial(instruction);
    case Op::gradient_norm:
      return gradient_norm(instruction);
    case Op::parameter_norms:
      return parameter_norms(instruction, output);
    case Op::update:
      return update(instruction);
    case Op::optimizer_sum:
    case Op::optimizer_gather:
    case Op::optimizer_scatter:
      return exchange_update(instruction);
    case Op::scale_update:
      return scale_update(instruction);
    case Op::quantize_weights:
      return quantize_weights(instruction);
    case Op::end_step:
      return end_step(instruction, output);
  }
}

TensorView Executor::temp(const Instruction& instruction, DType dtype, const Shape& shape) {
  return setup_.buffers->get({Role::temp, instruction.id, temps_++}, dtype, shape);
}

TensorView Executor::activation(int instruction) {
  return setup_.buffers->get({Role::activation, instruction, 0}, setup_.compute,
                             {setup_.bounds.row_counts().residual, setup_.model->width()});
}

void Executor::gather(const Instruction& instruction) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  comm::Group& group = setup_.mesh->shard_gather(setup_.model->flat(instruction.flat).spec().domain);
  const Shape shape{flat.count * group.size()};
  const TensorView unsharded =
      instruction.form == WeightForm::transposed
          ? temp(instruction, flat.compute.dtype(), shape)
          : setup_.buffers->get({Role::weights, instruction.id, 0}, flat.compute.dtype(), shape);
  group.all_gather(stream(instruction.stream), flat.compute, unsharded);
  if (instruction.form == WeightForm::rows) return;
  const TensorView transposed = setup_.buffers->get({Role::weights, instruction.id, 1}, flat.compute.dtype(), shape);
  transpose_flat(setup_.model->flat(instruction.flat), unsharded, transposed, stream(instruction.stream));
}

void Executor::gather_updated(const Instruction& instruction) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  comm::Group& group = setup_.mesh->shard_gather(setup_.model->flat(instruction.flat).spec().domain);
  group.all_gather(stream(instruction.stream), flat.compute, flat.unsharded);
  setup_.state->transpose_unsharded(instruction.flat, stream(instruction.stream));
}

std::vector<nn::Scaled> Executor::weights_of(const Instruction& instruction, const std::vector<ParamPlace>& places) {
  std::vector<nn::Scaled> weights;
  for (const ParamPlace& place : places) {
    const nn::Flat& flat = setup_.model->flat(place.flat);
    const FlatState& state = setup_.state->flat(place.flat);
    TensorView values = state.unsharded, transposed = state.transposed;
    for (const int id : instruction.gathered) {
      const Instruction& gather = setup_.program->instructions[static_cast<std::size_t>(id)];
      if (gather.flat != place.flat) continue;
      const auto form = [&](int which) {
        return setup_.buffers->get({Role::weights, id, which}, state.compute.dtype(), {flat.total(state.cut.parts)});
      };
      if (gather.form != WeightForm::transposed) values = form(0);
      if (gather.form != WeightForm::rows) transposed = form(1);
    }
    if (values.empty() && transposed.empty()) return {};  // the instruction reads no weights
    weights.emplace_back(values.empty() ? values : flat.view(values, place.index),
                         flat.scale_view(state.scales, place.index),
                         transposed.empty() ? transposed : flat.transposed_view(transposed, place.index));
  }
  return weights;
}

// What forward writes and a later pass reads, between the buffers of forward or of the load, and host memory.
void Executor::offload_or_load(const Instruction& instruction) {
  const bool out = instruction.op == Op::offload;
  Stream& on = stream(instruction.stream);
  const auto copy = [&](const TensorView& device, int index) {
    const TensorView host =
        setup_.buffers->get({Role::offloaded, instruction.saved, index}, device.dtype(), device.shape());
    const TensorView &from = out ? device : host, &to = out ? host : device;
    transfer(on, {.name = to_string(instruction.op), .kind = OpKind::transfer, .accesses = {reads(from), writes(to)}},
             to.raw(), from.raw(), from.bytes());
  };
  copy(activation(out ? instruction.x : instruction.id), -1);
  const auto specs = saved_specs(instruction.layer);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const nn::SavedSpec& spec = specs[i];
    if (spec.shape.rank() == 0 || spec.writer != nn::Pass::forward || spec.last_reader == nn::Pass::forward) continue;
    const int index = static_cast<int>(i);
    const BufferKey key{Role::saved, out ? instruction.saved : instruction.id, index};
    copy(setup_.buffers->get(key, spec.dtype, spec.shape), index);
  }
}

std::vector<nn::SavedSpec> Executor::saved_specs(int layer) const {
  return setup_.model->layer(layer).saved_specs(setup_.bounds.row_counts(), setup_.compute,
                                                setup_.policies[static_cast<std::size_t>(layer)],
                                                setup_.model->trainable(layer));
}

nn::Saved Executor::saved_views(const Instruction& instruction) {
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
    // A saved tensor exists from its writer to its last reader; in other passes the layer uses a temp or none.
    const bool there =
        specs[i].shape.rank() > 0 && specs[i].writer <= last && last <= specs[i].last_reader && setup_.keep_saved;
    saved.tensors.push_back(
        there ? setup_.buffers->get({Role::saved, owner, static_cast<int>(i)}, specs[i].dtype, specs[i].shape)
              : TensorView());
  }
  return saved;
}

void Executor::run_layer(const Instruction& instruction) {
  const nn::Layer& layer = setup_.model->layer(instruction.layer);
  const auto& places = setup_.model->layer_params(instruction.layer);
  const nn::SavePolicy& policy = setup_.policies[static_cast<std::size_t>(instruction.layer)];
  Context context(*this, instruction, places);
  Sink sink(*this, instruction, places);
  const nn::Saved saved = saved_views(instruction);
  switch (instruction.op) {
    case Op::forward:
      return layer.forward(context, saved.x, activation(instruction.residual), activation(instruction.id), saved);
    case Op::recompute:
      return layer.recompute(context, saved, policy);
    case Op::backward:
      return layer.backward(context, activation(instruction.dy), activation(instruction.residual),
                            activation(instruction.id), saved, sink, policy);
    default:
      return layer.backward_weight(context, activation(instruction.dy), saved, sink);
  }
}

nn::AuxiliaryViews Executor::auxiliary_views(const Instruction& instruction) {
  const models::Model& model = *setup_.model;
  const int micro_batch = instruction.micro_batch;
  const bool summed = std::ranges::any_of(setup_.program->instructions, [&](const Instruction& other) {
    return other.op == Op::auxiliary_loss && other.micro_batch == micro_batch;
  });
  if (!summed || instruction.layer < 0) return {};
  const std::int64_t row = model.auxiliary_index(instruction.layer);
  if (row < 0) return {};
  const nn::AuxiliaryLoss& loss = *model.auxiliary_loss();
  const auto layers = static_cast<std::int64_t>(model.auxiliary_layers());
  const auto of = [&](int which, std::int64_t elements) {
    return setup_.buffers->get({Role::auxiliary, micro_batch, which}, DType::f32, {layers, elements})
        .rows(row, 1)
        .reshape({elements});
  };
  if (instruction.op == Op::forward) {
    return setup_.auxiliary_given ? nn::AuxiliaryViews() : nn::AuxiliaryViews{.statistics = of(0, loss.statistics())};
  }
  if (instruction.op == Op::recompute) return {};
  return {.factors = of(1, loss.factors())};
}

void Executor::auxiliary_loss(const Instruction& instruction) {
  const models::Model& model = *setup_.model;
  const nn::AuxiliaryLoss& loss = *model.auxiliary_loss();
  const ModelState& state = *setup_.state;
  const auto layers = static_cast<std::int64_t>(model.auxiliary_layers());
  const auto of = [&](int which, std::int64_t elements) {
    return setup_.buffers->get({Role::auxiliary, instruction.micro_batch, which}, DType::f32, {layers, elements});
  };
  static const std::vector<ParamPlace> kNone;
  Context context(*this, instruction, kNone);
  TensorView statistics = state.auxiliary_statistics();
  if (!setup_.auxiliary_given) {
    const TensorView sum = statistics;
    statistics = of(0, loss.statistics());
    // Over the ranks with different rows.
    const TensorView all = statistics.reshape({statistics.elements()});
    all_reduce_small(instruction, setup_.mesh->data(), all);
    if (setup_.bounds.row_parts > 1) all_reduce_small(instruction, setup_.mesh->tensor(), all);
    if (auxiliary_begun_) {
      ops::add(context.compute(), {.a = sum, .b = statistics, .y = sum});
    } else {
      ops::copy(context.compute(), {.x = statistics, .y = sum});
    }
  }
  loss.run(context, {.statistics = statistics,
                     .factors = has_gradients() ? of(1, loss.factors()) : TensorView(),
                     .scale = trains() ? state.progress().field(&OptimizerProgress::loss_scale) : TensorView(),
                     .share = setup_.auxiliary_given ? 1.0 : 1.0 / setup_.program->micro_batches,
                     .loss = state.result().field(&StepResult::auxiliary_loss),
                     .accumulate = auxiliary_begun_ && !setup_.auxiliary_given});
  auxiliary_begun_ = true;
}

void Executor::run_embedding_or_head(const Instruction& instruction) {
  const models::Model& model = *setup_.model;
  const bool embedding = instruction.op == Op::embed || instruction.op == Op::embed_backward;
  const auto& places = embedding ? model.embedding_params() : model.head_params();
  Context context(*this, instruction, places);
  Sink sink(*this, instruction, places);
  const ModelState& state = *setup_.state;
  const nn::HeadLayer::LossViews loss{
      .inverse_targets = trains() ? state.loss_factor() : state.record().field(&StepRecord::inverse_targets),
      .sum = state.result().field(&StepResult::loss_sum)};
  switch (instruction.op) {
    case Op::embed:
      return model.embedding().forward(context, activation(instruction.id));
    case Op::loss:
      return model.head().loss(context, activation(instruction.x), loss);
    case Op::loss_gradient:
      return model.head().loss_and_gradient(context, activation(instruction.x), activation(instruction.id), loss, sink);
    default:
      return model.embedding().backward(context, activation(instruction.dy), sink);
  }
}

}  // namespace hawser::step

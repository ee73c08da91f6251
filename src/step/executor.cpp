#include "step/executor.h"

#include <algorithm>

#include "nn/row_tiles.h"
#include "ops/copy/add.h"
#include "step/batch_tables.h"
#include "step/executor_context.h"

namespace hawser::step {

using models::ParamIndex;
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

Executor::Executor(ExecutorSetup setup) : impl_(std::make_unique<Impl>(std::move(setup))) {}

Executor::~Executor() = default;

StepOutput Executor::enqueue(const StepInput& input) {
  return impl_->enqueue(input);
}

void Executor::hold_updates(std::vector<Event> until) {
  impl_->hold_updates(std::move(until));
}

void Executor::synchronize() {
  impl_->synchronize();
}

void Executor::check() {
  impl_->check();
}

Stream& Executor::compute_stream() {
  return impl_->compute_stream();
}

std::int64_t Executor::staging_bytes() const {
  return impl_->staging_bytes();
}

void Executor::set_on_instruction(std::function<void(const program::Instruction&)> on_instruction) {
  impl_->set_on_instruction(std::move(on_instruction));
}

TensorView Executor::gradient_shard(int flat) {
  return impl_->gradient_shard(flat);
}

Executor::Impl::Impl(ExecutorSetup setup)
    : setup_(std::move(setup)),
      streams_(setup_.streams == nullptr ? own_streams_ : *setup_.streams),
      link_(*setup_.device, staged_bytes()),
      keeps_bound_(setup_.device->kind() != DeviceKind::meta),
      bound_(keeps_bound_ ? setup_.program->instructions.size() : 1),
      batch_views_(static_cast<std::size_t>(setup_.program->micro_batches)) {
  add_streams(*setup_.device, *setup_.program, streams_);
  read_program();
  HAWSER_CHECK(setup_.reduce_dtype == DType::f32 || setup_.reduce_dtype == setup_.compute, "gradients in ",
               to_string(setup_.reduce_dtype), " of layers that compute in ", to_string(setup_.compute));
}

Executor::Impl::~Impl() {
  // A stream's destructor waits for its work, which uses the buffers of link_: after an exception work may be left.
  for (auto& stream : own_streams_) stream.reset();
}

void Executor::Impl::read_program() {
  const std::vector<Instruction>& all = setup_.program->instructions;
  with_auxiliary_.resize(batch_views_.size());
  awaited_.resize(all.size());
  for (const Instruction& instruction : all) {
    for (const int other : instruction.after) {
      const auto i = static_cast<std::size_t>(other);
      if (all[i].stream != instruction.stream) awaited_[i] = true;
    }
    switch (instruction.op) {
      case Op::gradient_norm:  // also of a pipeline stage without parameters, which has no updates
        trains_ = true;
        break;
      case Op::auxiliary_loss:
        with_auxiliary_.at(static_cast<std::size_t>(instruction.micro_batch)) = true;
        break;
      case Op::loss_gradient:
      case Op::backward:
      case Op::embed_backward:
        has_gradients_ = true;
        for (const ParamIndex& place : params_of(instruction)) with_gradient_.insert({place.flat, place.index});
        break;
      default:
        break;
    }
  }
}

void Executor::Impl::send_or_receive(const Instruction& instruction) {
  comm::Mesh& mesh = *setup_.mesh;
  const int edge = instruction.boundary % mesh.sizes().pipeline;
  comm::Group& lane = mesh.lane(edge, instruction.direction);
  const int peer = 1 - lane.index();
  // Both sides name what they mean, which the checker compares.
  const std::int64_t label = std::int64_t{instruction.boundary} << 32 | instruction.micro_batch;
  if (instruction.op == Op::send) {
    lane.send(stream(instruction.stream), bound(instruction).x, peer, label);
  } else {
    lane.receive(stream(instruction.stream), bound(instruction).y, peer, label);
  }
}

Stream& Executor::Impl::compute_stream() {
  return stream(StreamId::compute);
}

void Executor::Impl::synchronize() {
  for (const auto& s : streams_) {
    if (s != nullptr) s->synchronize();
  }
}

void Executor::Impl::check() {
  for (const auto& s : streams_) {
    if (s != nullptr) s->check();
  }
}

StepOutput Executor::Impl::enqueue(const StepInput& input) {
  StepOutput output;
  input_ = &input;
  link_.begin_step();
  for (std::size_t mb = 0; mb < batch_views_.size(); ++mb) {
    const HostBatch* const host = host_batch(static_cast<int>(mb));
    if (batch_views_[mb] && host != nullptr) set_host_tables(*host, *batch_views_[mb]);
  }
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
    if (awaited_[static_cast<std::size_t>(instruction.id)]) {
      end_events_[static_cast<std::size_t>(instruction.id)] = stream(instruction.stream).record_event();
    }
    if (!keeps_bound_) bound_.front() = {};
  }
  written_.clear();
  gaps_filled_.clear();
  norm_begun_ = false;
  auxiliary_begun_ = false;
  first_step_ = !keeps_bound_;
  step_end_ = output.end;
  link_.end_step(output.end);
  held_.clear();
  input_ = nullptr;
  return output;
}

void Executor::Impl::run(const Instruction& instruction, const StepInput& input, StepOutput& output) {
  switch (instruction.op) {
    case Op::begin_step:
      return begin_step(input);
    case Op::load_batch:
      return load_batch(instruction);
    case Op::load_weights:
      return load_weights(instruction);
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
    case Op::state_in:
      return copy_buffers(instruction);
    case Op::state_out:
      return state_out(instruction);
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

void Executor::Impl::load_weights(const Instruction& instruction) {
  copy_buffers(instruction);
  const Bound& views = bound(instruction);
  if (views.transposed.empty()) return;
  transpose_flat(setup_.model->flat(instruction.flat), views.y, views.transposed, stream(instruction.stream));
}

void Executor::Impl::gather(const Instruction& instruction) {
  const nn::Flat& flat = setup_.model->flat(instruction.flat);
  const Bound& views = bound(instruction);
  Stream& on = stream(instruction.stream);
  setup_.mesh->shard_gather(flat.spec().domain).all_gather(on, views.x, views.y);
  if (!views.transposed.empty()) transpose_flat(flat, views.y, views.transposed, on);
}

void Executor::Impl::gather_updated(const Instruction& instruction) {
  const FlatState& flat = setup_.state->flat(instruction.flat);
  comm::Group& group = setup_.mesh->shard_gather(setup_.model->flat(instruction.flat).spec().domain);
  group.all_gather(stream(instruction.stream), flat.compute, flat.unsharded);
  setup_.state->transpose_unsharded(instruction.flat, stream(instruction.stream));
}

void Executor::Impl::copy_buffers(const Instruction& instruction) {
  Stream& on = stream(instruction.stream);
  for (const auto& [from, to] : bound(instruction).copies) {
    transfer(on, {.name = to_string(instruction.op), .kind = OpKind::transfer, .accesses = {reads(from), writes(to)}},
             to.raw(), from.raw(), from.bytes());
  }
}

void Executor::Impl::run_layer(const Instruction& instruction) {
  const nn::Layer& layer = setup_.model->layer(instruction.layer);
  const nn::SavePolicy& policy = setup_.policies[static_cast<std::size_t>(instruction.layer)];
  const Bound& views = bound(instruction);
  Context context(*this, instruction);
  Sink sink(*this, instruction);
  switch (instruction.op) {
    case Op::forward:
      return nn::run_forward(layer, context, views.x, views.residual, views.y, views.saved, policy);
    case Op::recompute:
      return layer.recompute(context, views.saved, views.y, policy);
    case Op::backward:
      return nn::run_backward(layer, context, views.dy, views.residual, views.y, views.saved, sink, policy);
    default:
      return layer.backward_weight(context, views.dy, views.saved, sink);
  }
}

void Executor::Impl::auxiliary_loss(const Instruction& instruction) {
  const ModelState& state = *setup_.state;
  const Bound& views = bound(instruction);
  Context context(*this, instruction);
  TensorView statistics = state.auxiliary_statistics();
  if (!auxiliary_given()) {
    const TensorView sum = statistics;
    statistics = views.x;
    for (const TensorView& rows : views.other_stages) ops::fill(context.compute(), {.y = rows});
    // Over the ranks with different rows, or with different layers. Layers use tensor() on other streams at this time.
    comm::Group& ranks = setup_.bounds.row_parts > 1 ? setup_.mesh->world() : setup_.mesh->loss();
    all_reduce(instruction, ranks, statistics.reshape({statistics.elements()}), comm::Reduction::sum,
               instruction.micro_batch);
    if (views.accumulate) {
      ops::add(context.compute(), {.a = sum, .b = statistics, .y = sum});
    } else {
      ops::copy(context.compute(), {.x = statistics, .y = sum});
    }
  }
  setup_.model->auxiliary_loss()->run(
      context, {.statistics = statistics,
                .factors = views.y,
                .scale = trains() ? state.progress().field(&OptimizerProgress::loss_scale) : TensorView(),
                .share = auxiliary_given() ? 1.0 : 1.0 / setup_.program->micro_batches,
                .loss = state.result().field(&StepResult::auxiliary_loss),
                .accumulate = views.accumulate && !auxiliary_given()});
}

void Executor::Impl::run_embedding_or_head(const Instruction& instruction) {
  const models::Model& model = *setup_.model;
  const Bound& views = bound(instruction);
  Context context(*this, instruction);
  Sink sink(*this, instruction);
  const ModelState& state = *setup_.state;
  const nn::LossViews loss{
      .inverse_targets = trains() ? state.loss_factor() : state.record().field(&StepRecord::inverse_targets),
      .sum = state.result().field(&StepResult::loss_sum)};
  switch (instruction.op) {
    case Op::embed:
      return model.embedding().forward(context, views.y);
    case Op::loss:
      return model.head().loss(context, views.x, loss);
    case Op::loss_gradient:
      return model.head().loss_and_gradient(context, views.x, views.y, loss, sink);
    default:
      return model.embedding().backward(context, views.dy, sink);
  }
}

}  // namespace hawser::step

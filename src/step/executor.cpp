#include "step/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/adamw/adamw.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/reduce/sum_squares.h"
#include "optim/decay.h"

namespace hawser::step {

using models::ParamPlace;
using program::Op;
using program::Row;
using program::StreamId;

// Where the gradients of one row's parameters go.
class Executor::Sink : public nn::GradientSink {
 public:
  Sink(Executor& executor, const Row& row, const std::vector<ParamPlace>& places)
      : executor_(executor), row_(row), places_(places) {}

  nn::GradientTarget target(int param) override {
    const ParamPlace place = places_[static_cast<std::size_t>(param)];
    const nn::Unit& unit = executor_.setup_.model->units()[static_cast<std::size_t>(place.unit)];
    const BufferKey key = executor_.gradient_key(place.unit, row_.micro_batch);
    const TensorView flat = executor_.unit_gradient(place.unit, row_.micro_batch);
    if (executor_.gaps_filled_.insert(key).second) {
      for (const nn::Unit::Gap& gap : unit.gaps(flat.elements())) {
        ops::fill(executor_.stream(row_.stream), {.y = flat.rows(gap.begin, gap.count)});
      }
    }
    const bool first = executor_.written_.emplace(key, place.index).second;
    return {unit.view(flat, place.index), !first};
  }

 private:
  Executor& executor_;
  const Row& row_;
  const std::vector<ParamPlace>& places_;
};

class Executor::Context : public nn::LayerContext {
 public:
  Context(Executor& executor, const Row& row, const std::vector<ParamPlace>& places)
      : executor_(executor),
        row_(row),
        batch_(executor.batch_views(row.micro_batch)),
        weights_(executor.weights_of(row, places)) {}

  TensorView temp(DType dtype, const Shape& shape) override { return executor_.temp(row_, dtype, shape); }
  Stream& compute() override { return executor_.stream(row_.stream); }
  Stream& exchange() override { return executor_.stream(StreamId::exchange); }
  const nn::BatchViews& batch() const override { return batch_; }
  const nn::Seams& seams() const override { return executor_.setup_.seams; }
  const TensorView& weight(int param) const override { return weights_[static_cast<std::size_t>(param)]; }
  const TensorView& rope_frequencies() const override { return executor_.setup_.state->rope_frequencies(); }
  DType dtype() const override { return executor_.setup_.compute; }
  int threads() const override { return executor_.setup_.threads; }

 private:
  Executor& executor_;
  const Row& row_;
  nn::BatchViews batch_;
  std::vector<TensorView> weights_;
};

Executor::Executor(ExecutorSetup setup) : setup_(std::move(setup)) {
  for (int s = 0; s < static_cast<int>(StreamId::count); ++s) {
    streams_[static_cast<std::size_t>(s)] = setup_.device->make_stream(to_string(static_cast<StreamId>(s)));
  }
}

Executor::~Executor() = default;

Stream& Executor::compute_stream() {
  return stream(StreamId::compute);
}

void Executor::synchronize() {
  for (const auto& s : streams_) s->synchronize();
}

void Executor::check() {
  for (const auto& s : streams_) s->check();
}

StepOutput Executor::enqueue(const StepInput& input) {
  StepOutput output;
  written_.clear();
  gaps_filled_.clear();
  ends_.assign(setup_.program->rows.size(), Event());
  for (const auto& s : streams_) s->wait(step_end_);
  for (const Row& row : setup_.program->rows) {
    if (setup_.on_row) setup_.on_row(row);
    temps_ = 0;
    for (const int other : row.after) {
      // Rows of the same stream are in order anyway.
      if (setup_.program->rows[static_cast<std::size_t>(other)].stream != row.stream) {
        stream(row.stream).wait(ends_[static_cast<std::size_t>(other)]);
      }
    }
    run(row, input, output);
    ends_[static_cast<std::size_t>(row.id)] = stream(row.stream).record();
  }
  step_end_ = output.end;
  return output;
}

void Executor::run(const Row& row, const StepInput& input, StepOutput& output) {
  switch (row.op) {
    case Op::begin_step:
      return begin_step(input);
    case Op::load_batch:
      return load_batch(row, input);
    case Op::gather:
      return gather(row);
    case Op::embed:
    case Op::loss:
    case Op::loss_gradient:
    case Op::embed_backward:
      return run_ends(row);
    case Op::logits:
      return logits(row, output);
    case Op::forward:
    case Op::recompute:
    case Op::backward:
    case Op::backward_weight:
      return run_layer(row);
    case Op::reduce:
      return reduce(row);
    case Op::reduce_replicas:
      return reduce_replicas(row);
    case Op::gradient_norm:
      return gradient_norm(row);
    case Op::parameter_norms:
      return parameter_norms(row, output);
    case Op::update:
      return update(row);
    case Op::end_step:
      return end_step(row, output);
  }
}

TensorView Executor::temp(const Row& row, DType dtype, const Shape& shape) {
  return setup_.buffers->get({Role::temp, row.id, temps_++}, dtype, shape);
}

TensorView Executor::activation(int row) {
  return setup_.buffers->get({Role::activation, row, 0}, setup_.compute, {setup_.bounds.rows, setup_.model->width()});
}

void Executor::begin_step(const StepInput& input) {
  const ModelState& state = *setup_.state;
  const StepRecord record = input.record;
  const std::int32_t skip = input.skip ? 1 : 0;
  stream(StreamId::compute)
      .launch({.name = "write_step_record", .accesses = {writes(state.record()), writes(state.skip())}},
              [record, skip, to = state.record(), to_skip = state.skip()] {
                float* out = to.data<float>();
                out[0] = record.learning_rate;
                out[1] = record.bias_correction1;
                out[2] = record.bias_correction2;
                out[3] = record.loss_scale;
                *to_skip.data<std::int32_t>() = skip;
              });
  const TensorView result = state.result();
  if (!input.keep_loss_sum) return ops::fill(stream(StreamId::compute), {.y = result});
  // The same item as in the plan, which a step is held to.
  stream(StreamId::compute).launch({.name = "fill", .accesses = {writes(result)}}, [] {});
}

nn::BatchViews Executor::batch_views(int mb) {
  const BatchBounds& b = setup_.bounds;
  const auto get = [&](int which, const Shape& shape) {
    return setup_.buffers->get({Role::batch, mb, which}, DType::i32, shape);
  };
  nn::BatchViews views{.ids = get(0, {b.rows}),
                       .labels = get(1, {b.rows}),
                       .positions = get(2, {b.rows}),
                       .squares = get(3, {b.squares, 6}),
                       .square_count = get(4, {1}),
                       .uniform_squares = b.uniform_squares,
                       .rectangles_apart = b.rectangles_apart,
                       .square_pairs = b.square_pairs,
                       .rectangle_pairs = b.rectangle_pairs};
  if (b.context > 1) {
    views.rectangles = get(5, {b.rectangles, 6});
    views.rectangle_count = get(6, {1});
    views.gathered_row = get(7, {b.rows * b.context});
  }
  if (b.chosen_row) views.chosen_row = get(8, {1});
  return views;
}

namespace {

void copy_in(Stream& stream, const TensorView& to, const std::shared_ptr<const HostBatch>& batch,
             const std::vector<std::int32_t> HostBatch::*field) {
  stream.launch({.name = "load_batch", .accesses = {writes(to)}}, [to, batch, field] {
    const std::vector<std::int32_t>& from = (*batch).*field;
    HAWSER_CHECK(static_cast<std::int64_t>(from.size()) <= to.elements(), "a batch of ", from.size(),
                 " numbers for a buffer of ", to.elements());
    auto* out = to.data<std::int32_t>();
    std::copy(from.begin(), from.end(), out);
    std::fill(out + from.size(), out + to.elements(), 0);
  });
}

void count_in(Stream& stream, const TensorView& to, const std::shared_ptr<const HostBatch>& batch,
              const std::vector<std::int32_t> HostBatch::*table) {
  stream.launch({.name = "load_batch", .accesses = {writes(to)}}, [to, batch, table] {
    *to.data<std::int32_t>() = static_cast<std::int32_t>(((*batch).*table).size() / 6);
  });
}

}  // namespace

void Executor::load_batch(const Row& row, const StepInput& input) {
  Stream& compute = stream(row.stream);
  const nn::BatchViews views = batch_views(row.micro_batch);
  std::shared_ptr<const HostBatch> batch;
  if (setup_.device->kind() != DeviceKind::meta) batch = input.batches.at(static_cast<std::size_t>(row.micro_batch));
  copy_in(compute, views.ids, batch, &HostBatch::ids);
  copy_in(compute, views.labels, batch, &HostBatch::labels);
  copy_in(compute, views.positions, batch, &HostBatch::positions);
  copy_in(compute, views.squares, batch, &HostBatch::squares);
  count_in(compute, views.square_count, batch, &HostBatch::squares);
  if (setup_.bounds.context > 1) {
    copy_in(compute, views.rectangles, batch, &HostBatch::rectangles);
    count_in(compute, views.rectangle_count, batch, &HostBatch::rectangles);
    copy_in(compute, views.gathered_row, batch, &HostBatch::gathered_row);
  }
  if (setup_.bounds.chosen_row) copy_in(compute, views.chosen_row, batch, &HostBatch::chosen_row);
}

void Executor::gather(const Row& row) {
  const UnitState& unit = setup_.state->unit(row.unit);
  comm::Group& group = setup_.mesh->shard_gather();
  const TensorView whole = setup_.buffers->get({Role::weights, row.id, 0}, setup_.compute, {unit.count * group.size()});
  group.all_gather(stream(row.stream), unit.compute, whole);
}

std::vector<TensorView> Executor::weights_of(const Row& row, const std::vector<ParamPlace>& places) {
  std::vector<TensorView> weights;
  const bool gathered = setup_.state->options().parts > 1;
  if (gathered && row.gathered.empty()) return weights;  // a row that reads none
  for (const ParamPlace& place : places) {
    const nn::Unit& unit = setup_.model->units()[static_cast<std::size_t>(place.unit)];
    TensorView flat = setup_.state->unit(place.unit).compute;
    for (const int id : row.gathered) {
      if (setup_.program->rows[static_cast<std::size_t>(id)].unit != place.unit) continue;
      flat = setup_.buffers->get({Role::weights, id, 0}, setup_.compute, {unit.total(setup_.state->options().parts)});
    }
    weights.push_back(unit.view(flat, place.index));
  }
  return weights;
}

BufferKey Executor::gradient_key(int unit, int micro_batch) const {
  if (setup_.state->options().parts == 1) return {Role::shard_gradient, unit, 0};
  return {Role::unit_gradient, unit, setup_.local_accumulation ? 0 : micro_batch};
}

TensorView Executor::unit_gradient(int unit, int micro_batch) {
  return setup_.buffers->get(gradient_key(unit, micro_batch), DType::f32,
                             {setup_.state->unit(unit).count * setup_.state->options().parts});
}

TensorView Executor::gradient_shard(int unit) {
  return setup_.buffers->get({Role::shard_gradient, unit, 0}, DType::f32, {setup_.state->unit(unit).count});
}

nn::Saved Executor::saved_views(const Row& row) {
  const int forward = row.op == Op::forward ? row.id : row.partner;
  const Row& forward_row = setup_.program->rows[static_cast<std::size_t>(forward)];
  const auto& policy = setup_.policies[static_cast<std::size_t>(row.layer)];
  const auto slots = setup_.model->layer(row.layer).slots(setup_.bounds.rows, setup_.compute, policy);
  const auto last = [&] {
    switch (row.op) {
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
  nn::Saved saved{.x = activation(forward_row.input)};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    // A slot is there from its writer to its last reader; outside, the layer uses a temp or does not look.
    const bool there =
        slots[i].shape.rank() > 0 && slots[i].writer <= last && last <= slots[i].last_reader && setup_.keep_saved;
    saved.slots.push_back(
        there ? setup_.buffers->get({Role::saved, forward, static_cast<int>(i)}, slots[i].dtype, slots[i].shape)
              : TensorView());
  }
  return saved;
}

void Executor::run_layer(const Row& row) {
  const nn::Layer& layer = setup_.model->layer(row.layer);
  const auto& places = setup_.model->layer_params(row.layer);
  const nn::SavePolicy& policy = setup_.policies[static_cast<std::size_t>(row.layer)];
  Context context(*this, row, places);
  Sink sink(*this, row, places);
  const nn::Saved saved = saved_views(row);
  switch (row.op) {
    case Op::forward:
      return layer.forward(context, saved.x, activation(row.id), saved);
    case Op::recompute:
      return layer.recompute(context, saved, policy);
    case Op::backward:
      return layer.backward(context, activation(row.input), activation(row.id), saved, sink, policy);
    default:
      return layer.backward_weight(context, activation(row.input), saved, sink);
  }
}

void Executor::run_ends(const Row& row) {
  const models::Model& model = *setup_.model;
  const bool embedding = row.op == Op::embed || row.op == Op::embed_backward;
  const auto& places = embedding ? model.embedding_params() : model.head_params();
  Context context(*this, row, places);
  Sink sink(*this, row, places);
  const nn::HeadLayer::LossViews loss{.scale = setup_.state->record().rows(3, 1),
                                      .sum = setup_.state->result().rows(0, 1)};
  switch (row.op) {
    case Op::embed:
      return model.embedding().forward(context, activation(row.id));
    case Op::loss:
      return model.head().loss(context, activation(row.input), loss);
    case Op::loss_gradient:
      return model.head().loss_and_gradient(context, activation(row.input), activation(row.id), loss, sink);
    default:
      return model.embedding().backward(context, activation(row.input), sink);
  }
}

void Executor::logits(const Row& row, StepOutput& output) {
  const models::Model& model = *setup_.model;
  Context context(*this, row, model.head_params());
  const TensorView x = context.temp(setup_.compute, {1, model.width()});
  const TensorView logits = context.temp(DType::f32, {1, model.vocabulary()});
  ops::gather_rows(context.compute(), {.x = activation(row.input), .index = context.batch().chosen_row, .y = x});
  model.head().logits(context, x, logits);
  output.logits = std::make_shared<std::vector<float>>(static_cast<std::size_t>(model.vocabulary()));
  context.compute().launch({.name = "read_logits", .accesses = {reads(logits)}},
                           [logits, to = output.logits] { std::copy_n(logits.data<float>(), to->size(), to->data()); });
}

void Executor::reduce(const Row& row) {
  comm::Group& group = setup_.mesh->shard_reduce();
  const TensorView shard = gradient_shard(row.unit);
  const bool accumulate = !written_.emplace(BufferKey{Role::shard_gradient, row.unit, 0}, 0).second;
  const std::int64_t bytes =
      comm::reduce_scatter_workspace(shard.elements(), DType::f32, group.size(), stream(row.stream).target());
  const TensorView workspace = bytes > 0 ? temp(row, DType::u8, {bytes}) : TensorView();
  group.reduce_scatter(stream(row.stream), unit_gradient(row.unit, row.micro_batch), shard, accumulate, workspace);
}

void Executor::reduce_replicas(const Row& row) {
  comm::Group& group = setup_.mesh->replicate();
  const TensorView shard = gradient_shard(row.unit);
  const std::int64_t bytes =
      comm::all_reduce_workspace(shard.elements(), DType::f32, group.size(), stream(row.stream).target());
  const TensorView workspace = bytes > 0 ? temp(row, DType::u8, {bytes}) : TensorView();
  group.all_reduce(stream(row.stream), shard, comm::Reduction::sum, workspace);
}

void Executor::gradient_norm(const Row& row) {
  Stream& compute = stream(row.stream);
  const ModelState& state = *setup_.state;
  const TensorView sum = state.result().rows(1, 1);
  for (int unit = 0; unit < static_cast<int>(setup_.model->units().size()); ++unit) {
    ops::sum_squares(compute, {.x = gradient_shard(unit), .out = sum, .accumulate = unit > 0});
  }
  all_reduce_small(row, setup_.mesh->shard(), sum);
  ops::clip_coefficient(compute, {.sum_squares = sum,
                                  .max_norm = setup_.optimizer.gradient_clip,
                                  .norm_out = state.result().rows(2, 1),
                                  .coefficient = state.result().rows(3, 1),
                                  .skip = state.skip()});
}

void Executor::all_reduce_small(const Row& row, comm::Group& group, const TensorView& data) {
  if (group.size() == 1) return;
  const std::int64_t bytes =
      comm::all_reduce_workspace(data.elements(), data.dtype(), group.size(), stream(row.stream).target());
  group.all_reduce(stream(row.stream), data, comm::Reduction::sum,
                   bytes > 0 ? temp(row, DType::u8, {bytes}) : TensorView());
}

namespace {

// The part of a run of a unit's elements that lies in a shard, in elements of the shard.
struct Piece {
  std::int64_t begin = 0, count = 0;
};

Piece piece_of(std::int64_t begin, std::int64_t count, const UnitState& state) {
  const std::int64_t first = std::max(begin, state.begin);
  const std::int64_t end = std::min(begin + count, state.begin + state.count);
  return end > first ? Piece{first - state.begin, end - first} : Piece{};
}

}  // namespace

void Executor::parameter_norms(const Row& row, StepOutput& output) {
  Stream& compute = stream(row.stream);
  const TensorView norms = setup_.state->parameter_norms();
  std::int64_t index = 0;
  for (int u = 0; u < static_cast<int>(setup_.model->units().size()); ++u) {
    const nn::Unit& unit = setup_.model->units()[static_cast<std::size_t>(u)];
    for (int p = 0; p < static_cast<int>(unit.params().size()); ++p) {
      const nn::Param& param = unit.params()[static_cast<std::size_t>(p)];
      const std::int64_t row_size = param.elements() / param.shape[0];
      for (const nn::Segment& segment : param.segments) {
        const Piece piece =
            piece_of(unit.offset(p) + segment.row * row_size, segment.rows * row_size, setup_.state->unit(u));
        const TensorView out = norms.rows(index++, 1);
        if (piece.count == 0) {
          ops::fill(compute, {.y = out});
        } else {
          ops::sum_squares(compute, {.x = gradient_shard(u).rows(piece.begin, piece.count), .out = out});
        }
      }
    }
  }
  all_reduce_small(row, setup_.mesh->shard(), norms);
  output.parameter_norms = std::make_shared<std::vector<float>>(static_cast<std::size_t>(index));
  compute.launch({.name = "read_parameter_norms", .accesses = {reads(norms)}}, [norms, to = output.parameter_norms] {
    for (std::size_t i = 0; i < to->size(); ++i) (*to)[i] = std::sqrt(norms.data<float>()[i]);
  });
}

void Executor::update(const Row& row) {
  const nn::Unit& unit = setup_.model->units()[static_cast<std::size_t>(row.unit)];
  const UnitState& state = setup_.state->unit(row.unit);
  const TensorView gradient = gradient_shard(row.unit);
  const OptimizerSettings& settings = setup_.optimizer;
  const bool rounded = setup_.compute != DType::f32;
  for (const optim::UpdateRun& run : optim::update_runs(unit, state.begin, state.count)) {
    const auto part = [&](const TensorView& view) { return view.rows(run.begin, run.count); };
    ops::adamw(stream(row.stream), {.weight = part(state.weights),
                                    .gradient = part(gradient),
                                    .exp_avg = part(state.exp_avg),
                                    .exp_avg_sq = part(state.exp_avg_sq),
                                    .compute_weight = rounded ? part(state.compute) : TensorView(),
                                    .hyper = setup_.state->record().rows(0, ops::kAdamHyperFields),
                                    .coefficient = setup_.state->result().rows(3, 1),
                                    .skip = setup_.state->skip(),
                                    .beta1 = settings.beta1,
                                    .beta2 = settings.beta2,
                                    .epsilon = settings.epsilon,
                                    .weight_decay = run.decay ? settings.weight_decay : 0.0});
  }
}

void Executor::end_step(const Row& row, StepOutput& output) {
  Stream& compute = stream(row.stream);
  const TensorView result = setup_.state->result();
  const TensorView loss = result.rows(0, 1);
  // The sum stays local where later steps add to it; what the host reads is the sum over all ranks.
  const TensorView total = temp(row, DType::f32, {1});
  ops::copy(compute, {.x = loss, .y = total});
  all_reduce_small(row, setup_.mesh->data(), total);
  compute.launch(
      {.name = "read_result", .accesses = {reads(result), reads(total)}}, [result, total, to = output.result] {
        const float* from = result.data<float>();
        *to = {.loss_sum = *total.data<float>(), .sum_squares = from[1], .gradient_norm = from[2], .clip = from[3]};
      });
  if (setup_.keep_gradients) {
    // A last use, so that nothing of this step takes their place.
    Booking booking{.name = kKeepGradients};
    for (int unit = 0; unit < static_cast<int>(setup_.model->units().size()); ++unit) {
      booking.accesses.push_back(reads(gradient_shard(unit)));
    }
    compute.launch(std::move(booking), [] {});
  }
  for (const auto& other : streams_) {
    if (other.get() != &compute) compute.wait(other->record());
  }
  output.end = compute.record();
}

}  // namespace hawser::step

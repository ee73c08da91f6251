// The executor's instructions with host input or output: the step scalars, batches, logits, norms, results. All copies
// go through HostLink, on every device.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/copy/scale.h"
#include "ops/reduce/sum_squares.h"
#include "step/batch_tables.h"
#include "step/executor_context.h"

namespace hawser::step {

using program::Instruction;
using program::Op;
using program::StreamId;

std::int64_t Executor::Impl::staged_bytes() const {
  const ModelState& state = *setup_.state;
  std::int64_t batch = 0;
  for (std::size_t i = 0; i < table_count(setup_.bounds); ++i) {
    const TableBuffer table = table_buffer(setup_.bounds, i);
    if (table.shape.elements() > 0) batch += HostLink::staged(table.shape.elements() * size_of(table.dtype));
  }
  std::int64_t bytes = HostLink::staged(state.record().all().bytes()) + HostLink::staged(state.skip().bytes());
  for (const Instruction& instruction : setup_.program->instructions) {
    if (instruction.op == Op::load_batch) bytes += batch;
    if (instruction.op == Op::gradient_norm && !state.sites().elements.empty()) {
      bytes += HostLink::staged(state.sites().elements.bytes());
    }
    if (instruction.op == Op::parameter_norms) bytes += HostLink::staged(state.parameter_norms().bytes());
    if (instruction.op == Op::logits) bytes += HostLink::staged(logits_shape().elements() * size_of(DType::f32));
    if (instruction.op == Op::end_step && !state.auxiliary_statistics().empty()) {
      bytes += (auxiliary_given() ? 2 : 1) * HostLink::staged(state.auxiliary_statistics().bytes());
    }
    if (instruction.op == Op::end_step)
      bytes += HostLink::staged(state.result().all().bytes()) +
               (has_loss() ? HostLink::staged(sizeof(PreciseSum)) : 0) +
               HostLink::staged(state.progress().all().bytes());
  }
  return bytes;
}

Shape Executor::Impl::logits_shape() const {
  return {setup_.bounds.logit_positions, setup_.model->vocabulary()};
}

void Executor::Impl::begin_step(const StepInput& input) {
  const ModelState& state = *setup_.state;
  Stream& compute = stream(StreamId::compute);
  link_.upload(compute, "write_step_record", state.record().all(), &input.record, sizeof(StepRecord));
  const auto skip = static_cast<std::int32_t>(input.skip ? Skip::no_target : Skip::none);
  link_.upload(compute, "write_skip", state.skip(), &skip, sizeof(skip));
  ops::fill(compute, {.y = state.result().all().rows(0, RecordView<StepResult>::kFloats - 1)});  // all but `skip`
  if (auxiliary_given() && !state.auxiliary_statistics().empty()) {
    const std::vector<float>& given = input.auxiliary_statistics;
    const TensorView& to = state.auxiliary_statistics();
    HAWSER_CHECK(setup_.device->kind() == DeviceKind::meta || static_cast<std::int64_t>(given.size()) == to.elements(),
                 given.size(), " statistics, not ", to.elements());
    link_.upload(compute, "write_statistics", to.reshape({to.elements()}), given.data(), to.bytes());
  }
  if (!trains()) return;
  if (!state.sites().amax.empty()) ops::fill(compute, {.y = state.sites().records.rows(0, 2)});
  site_elements_.assign(state.options().scaled_sites.size(), 0);
  ops::scale_loss(compute, {.factor = state.record().field(&StepRecord::inverse_targets),
                            .loss_scale = state.progress().field(&OptimizerProgress::loss_scale),
                            .out = state.loss_factor()});
}

const HostBatch* Executor::Impl::host_batch(int mb) const {
  if (setup_.device->kind() == DeviceKind::meta || mb < 0) return nullptr;
  return input_->batches.at(static_cast<std::size_t>(mb)).get();
}

TensorView Executor::Impl::batch_table(int mb, std::size_t index) {
  const TableBuffer table = table_buffer(setup_.bounds, index);
  if (table.shape.elements() == 0) return {};
  return setup_.buffers->get({Role::batch, mb, static_cast<int>(index)}, table.dtype, table.shape);
}

const nn::BatchViews& Executor::Impl::batch_views(int mb) {
  std::optional<nn::BatchViews>& views = batch_views_.at(static_cast<std::size_t>(mb));
  if (!views) {
    views = step::batch_views(setup_.bounds, [&](std::size_t index) { return batch_table(mb, index); });
    if (const HostBatch* const host = host_batch(mb)) set_host_tables(*host, *views);
  }
  return *views;
}

void Executor::Impl::load_batch(const Instruction& instruction) {
  Stream& compute = stream(instruction.stream);
  const HostBatch* const batch = host_batch(instruction.micro_batch);
  for (std::size_t i = 0; i < table_count(setup_.bounds); ++i) {
    const TensorView to = batch_table(instruction.micro_batch, i);
    if (to.empty()) continue;
    if (batch == nullptr) {
      link_.upload(compute, "load_batch", to, nullptr, 0);
      continue;
    }
    table_contents(*batch, setup_.bounds, i,
                   [&](const void* data, std::int64_t bytes) { link_.upload(compute, "load_batch", to, data, bytes); });
  }
}

void Executor::Impl::logits(const Instruction& instruction, StepOutput& output) {
  const models::Model& model = *setup_.model;
  Context context(*this, instruction);
  const TensorView x = context.temp(setup_.compute, {setup_.bounds.logit_positions, model.width()});
  const TensorView logits = context.temp(DType::f32, logits_shape());
  ops::gather_rows(context.compute(), {.x = bound(instruction).x, .index = context.batch().logit_positions, .y = x});
  model.head().logits(context, x, logits);
  output.logits = std::make_shared<std::vector<float>>(static_cast<std::size_t>(logits.elements()));
  const auto* from = reinterpret_cast<const float*>(link_.download(context.compute(), "read_logits", logits));
  context.compute().call_host({.name = "hand_over_logits", .kind = OpKind::host},
                              [from, to = output.logits] { std::copy_n(from, to->size(), to->data()); });
}

namespace {

// The part of a range of a flat's elements that is inside a shard, in elements of the shard.
struct Piece {
  std::int64_t begin = 0, count = 0;
};

Piece piece_of(std::int64_t begin, std::int64_t count, const FlatState& state) {
  const std::int64_t first = std::max(begin, state.begin);
  const std::int64_t end = std::min(begin + count, state.begin + state.count);
  return end > first ? Piece{first - state.begin, end - first} : Piece{};
}

}  // namespace

// The reference gradient: that of this step, or the difference of the two.
void Executor::Impl::set_reference(const Instruction& instruction) {
  Stream& compute = stream(instruction.stream);
  for (int f = 0; f < static_cast<int>(setup_.model->flats().size()); ++f) {
    const TensorView& reference = setup_.state->flat(f).reference_gradient;
    if (reference.empty() || reference.elements() == 0) continue;
    if (setup_.verification == Verification::reference) {
      ops::copy(compute, {.x = gradient_shard(f), .y = reference});
    } else {
      ops::scale(compute, {.x = reference, .factor = -1});
      ops::add(compute, {.a = reference, .b = gradient_shard(f), .y = reference});
    }
  }
}

void Executor::Impl::parameter_norms(const Instruction& instruction, StepOutput& output) {
  Stream& compute = stream(instruction.stream);
  const bool verifies = setup_.verification != Verification::none;
  if (verifies) set_reference(instruction);
  const TensorView norms = setup_.state->parameter_norms();
  std::map<std::string, std::int64_t> indices;
  // Consecutive tensors of flats that are summed over the same ranks: those of one copy of the model, or, of experts,
  // those with the same ones.
  struct Run {
    Domain domain;
    std::int64_t first, end;
  };
  std::vector<Run> runs;
  for (int f = 0; f < static_cast<int>(setup_.model->flats().size()); ++f) {
    const nn::Flat& flat = setup_.model->flat(f);
    const Domain domain = flat.spec().domain == Domain::expert ? Domain::expert : Domain::replicated;
    const auto before = static_cast<std::int64_t>(indices.size());
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      const std::int64_t row_size = param.elements() / param.shape[0];
      for (std::size_t s = 0; s < param.segments.size();) {
        const nn::Segment& segment = param.segments[s];
        std::int64_t rows = 0;  // of all ranges of the tensor
        for (; s < param.segments.size() && param.segments[s].name == segment.name; ++s) rows += param.segments[s].rows;
        const Piece piece = piece_of(flat.offset(p) + segment.row * row_size, rows * row_size, setup_.state->flat(f));
        const auto [index, first] = indices.emplace(segment.name, static_cast<std::int64_t>(indices.size()));
        const TensorView out = norms.rows(index->second, 1);
        if (piece.count > 0 && flat.spec().trainable && setup_.state->flat(f).first_stage) {
          const TensorView values = verifies ? setup_.state->flat(f).reference_gradient : gradient_shard(f);
          ops::sum_squares(compute, {.x = values.rows(piece.begin, piece.count), .out = out, .accumulate = !first});
        } else if (first) {
          ops::fill(compute, {.y = out});
        }
      }
    }
    if (runs.empty() || runs.back().domain != domain) runs.push_back({domain, before, before});
    runs.back().end = static_cast<std::int64_t>(indices.size());
  }
  for (const Run& run : runs) {
    if (run.end == run.first) continue;
    all_reduce(instruction, setup_.mesh->model(run.domain), norms.rows(run.first, run.end - run.first));
  }
  output.parameter_norms = std::make_shared<std::vector<float>>(indices.size());
  const auto* from = reinterpret_cast<const float*>(link_.download(compute, "read_parameter_norms", norms));
  compute.call_host({.name = "hand_over_parameter_norms", .kind = OpKind::host}, [from, to = output.parameter_norms] {
    for (std::size_t i = 0; i < to->size(); ++i) (*to)[i] = std::sqrt(from[i]);
  });
}

void Executor::Impl::read_auxiliary_statistics(Stream& compute, StepOutput& output) {
  const TensorView& statistics = setup_.state->auxiliary_statistics();
  const bool summed = std::ranges::find(with_auxiliary_, true) != with_auxiliary_.end();
  if (statistics.empty() || !(summed || auxiliary_given())) return;
  output.auxiliary_statistics = std::make_shared<std::vector<float>>(static_cast<std::size_t>(statistics.elements()));
  const auto* from = reinterpret_cast<const float*>(link_.download(compute, "read_statistics", statistics));
  compute.call_host({.name = "hand_over_statistics", .kind = OpKind::host},
                    [from, to = output.auxiliary_statistics] { std::copy_n(from, to->size(), to->data()); });
}

void Executor::Impl::end_step(const Instruction& instruction, StepOutput& output) {
  Stream& compute = stream(instruction.stream);
  const ModelState& state = *setup_.state;
  const RecordView<StepResult>& result = state.result();
  if (!trains()) refuse(instruction);  // otherwise gradient_norm did
  // The host reads the sum over all ranks.
  TensorView total;
  if (has_loss()) {
    total = temp(instruction, DType::f32, {2});
    ops::copy(compute, {.x = result.field(&StepResult::loss_sum), .y = total});
    const bool of_parts = setup_.bounds.row_parts > 1 && setup_.model->head().loss_of_residual_rows();
    all_reduce(instruction, of_parts ? setup_.mesh->world() : setup_.mesh->loss(), total);
  }
  const auto* from = reinterpret_cast<const StepResult*>(link_.download(compute, "read_result", result.all()));
  const std::byte* const sum = total.empty() ? nullptr : link_.download(compute, "read_loss", total);
  compute.call_host({.name = "hand_over_result", .kind = OpKind::host},
                    [from, sum, to = output.result, when = output.reached] {
                      *to = *from;
                      if (sum != nullptr) to->loss_sum = *reinterpret_cast<const PreciseSum*>(sum);
                      *when = std::chrono::steady_clock::now();
                    });
  if (trains()) {
    const auto* counts =
        reinterpret_cast<const OptimizerProgress*>(link_.download(compute, "read_progress", state.progress().all()));
    compute.call_host({.name = "hand_over_progress", .kind = OpKind::host},
                      [counts, to = output.progress] { *to = *counts; });
  }
  read_auxiliary_statistics(compute, output);
  if (setup_.keep_gradients) {
    // An op that does no work, but lists all gradient shards as read: a last access, so that no other buffer of this
    // step reuses their bytes.
    OpRecord record{.name = "keep_gradients", .kind = OpKind::keep};
    for (int flat = 0; flat < static_cast<int>(setup_.model->flats().size()); ++flat) {
      if (setup_.model->flat(flat).spec().trainable && holds(flat))
        record.accesses.push_back(reads(gradient_shard(flat)));
    }
    compute.launch(std::move(record), [] {});
  }
  // Of all streams: the next step overwrites what `send` still sends, too.
  for (const auto& other : streams_) {
    if (other != nullptr && other.get() != &compute) compute.wait(other->record_event());
  }
  output.end = compute.record_event();
}

}  // namespace hawser::step

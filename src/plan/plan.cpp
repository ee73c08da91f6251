#include "plan/plan.h"

#include <xxhash.h>

#include <algorithm>

#include "base/for_each_index.h"
#include "device/cuda/native.h"
#include "plan/cost_model.h"
#include "program/order.h"

namespace hawser::plan {

namespace {

std::vector<std::string> implementations(const RankPlan& plan) {
  std::vector<std::string> out;
  for (const TraceItem& item : plan.trace.items) {
    if (item.record.implementation.empty()) continue;
    std::string line = cat(item.record.name, ": ", item.record.implementation);
    if (std::find(out.begin(), out.end(), line) == out.end()) out.push_back(std::move(line));
  }
  return out;
}

// What a member may read of another one's memory: the complete tensor of a collective, what is exchanged, and what is
// gathered unless it is a part of that.
std::vector<Access> shared_views(const OpRecord& record) {
  const std::vector<Access>& all = record.accesses;
  switch (record.collective.kind) {
    case CollectiveKind::all_gather:
      return overlap(all[0], {all[1].address, all[1].row_bytes}) ? std::vector{all[1]} : std::vector{all[0], all[1]};
    case CollectiveKind::all_to_all:
      return {all[0], all[1]};
    case CollectiveKind::all_to_all_v:
      return {all[0], all[1], all[3]};  // rows, and the sender's offsets
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
    case CollectiveKind::exchange:
      return {all[0]};
    case CollectiveKind::none:
    case CollectiveKind::send:
    case CollectiveKind::receive:
    case CollectiveKind::barrier:
      break;
  }
  return {};
}

std::map<std::string, std::uint64_t> offset_hashes(const RankPlan& plan) {
  const std::vector<program::Buffer>& buffers = plan.buffers.buffers;
  const program::BufferIndex index(buffers);
  std::map<std::string, std::string> texts;
  for (const TraceItem& item : plan.trace.items) {
    for (const Access& access : shared_views(item.record)) {
      const std::optional<int> b = index.find(access.address);
      HAWSER_CHECK(b.has_value(), item.record.name, " outside all buffers");
      const auto at = static_cast<std::size_t>(*b);
      HAWSER_CHECK(buffers[at].space != program::Space::persistent_host, item.record.name, " on state in host memory");
      const bool persistent = buffers[at].space == program::Space::persistent;
      const auto inside = static_cast<std::int64_t>(access.address - buffers[at].address);
      const std::int64_t base = persistent ? 0 : plan.buffers.placement.offsets[at];
      texts[comm::Mesh::kind_of(item.record.collective.communicator)] +=
          cat(persistent ? "state " : "arena ", base + inside, ";");
    }
  }
  std::map<std::string, std::uint64_t> hashes;
  for (const auto& [group, text] : texts) hashes[group] = XXH3_64bits(text.data(), text.size());
  return hashes;
}

}  // namespace

RankPlan plan_rank(const models::Model& model, const Layout& layout, step::Purpose purpose, int rank, bool optimizer,
                   program::Placing placing, std::int64_t max_bytes) {
  RankPlan plan;
  plan.purpose = purpose;
  plan.stage = comm::coordinate_of(rank, layout.mesh).pipeline;
  plan.program = step::make_program(model, schedule_options(layout, purpose, plan.stage));
  MetaDevice device(layout.device);
  const auto mesh = comm::make_meta_mesh(layout.mesh, Rank(rank));
  step::ModelState state(model, state_options(layout, *mesh, optimizer || purpose == step::Purpose::train), device);
  step::MetaBuffers buffers(device);
  buffers.add_persistent("state", state.data(), state.bytes());
  if (state.host_bytes() > 0) {
    buffers.add_persistent("state in host memory", state.host_data(), state.host_bytes(),
                           program::Space::persistent_host);
  }
  step::ExecutorSetup setup = executor_setup(layout, model, plan.program, *mesh, purpose);
  setup.device = &device;
  setup.state = &state;
  setup.buffers = &buffers;
  setup.on_instruction = [&device](const program::Instruction& instruction) { device.set_instruction(instruction.id); };
  step::Executor executor(std::move(setup));
  executor.enqueue({});
  plan.trace = device.take_trace();
  plan.buffers = buffers.take();
  plan.parameter_bytes = state.parameter_bytes();
  plan.optimizer_bytes = state.optimizer_bytes();
  plan.kv_cache_bytes = state.kv_cache_bytes();
  plan.reference_bytes = state.reference_bytes();
  plan.saved_bytes = state.saved_bytes();
  plan.state_bytes = state.bytes();
  plan.host_state_bytes = state.host_bytes();
  plan.scratch_bytes = scratch_bytes(layout.device);
  plan.staging_bytes = executor.staging_bytes();
  plan.staged_bytes = state.staged_bytes();
  plan.buffers.placement =
      program::place(plan.trace, plan.buffers.buffers, placing, max_bytes - plan.state_bytes - plan.scratch_bytes);
  plan.buffers.host_placement = program::place(plan.trace, plan.buffers.buffers, placing,
                                               std::numeric_limits<std::int64_t>::max(), program::Space::host);
  plan.implementations = implementations(plan);
  if (plan.buffers.placement.placed) plan.offset_hashes = offset_hashes(plan);
  return plan;
}

std::vector<program::RankTrace> traces_of(const std::vector<RankPlan>& stages, const Layout& layout) {
  std::vector<program::RankTrace> out;
  for (const RankPlan& plan : stages) {
    out.push_back({.rank = comm::rank_of({.pipeline = plan.stage}, layout.mesh), .trace = &plan.trace});
  }
  return out;
}

std::vector<RankPlan> plan_stages(const models::Model& model, const Layout& layout, step::Purpose purpose, int rank,
                                  bool optimizer) {
  std::vector<RankPlan> plans;
  std::vector<int> ranks;
  comm::MeshCoordinate place = comm::coordinate_of(rank, layout.mesh);
  for (place.pipeline = 0; place.pipeline < layout.mesh.pipeline; ++place.pipeline) {
    ranks.push_back(comm::rank_of(place, layout.mesh));
  }
  plans.resize(ranks.size());
  for_each_index(ranks.size(),
                 [&](std::size_t s) { plans[s] = plan_rank(model, layout, purpose, ranks[s], optimizer); });
  std::vector<const RankPlan*> all;
  for (const RankPlan& plan : plans) all.push_back(&plan);
  check_plans(all, ranks);
  return plans;
}

std::int64_t scratch_bytes(DeviceKind device) {
  return device == DeviceKind::cuda ? kCudaScratchBytes : 0;
}

namespace {

// The next step starts after the last event of this one; by then every stream must have finished its work.
void check_end(const RankPlan& plan, int rank, std::vector<std::string>& defects) {
  const std::vector<TraceItem>& items = plan.trace.items;
  const program::Order order(plan.trace);
  const int end = static_cast<int>(items.size()) - 1;
  if (end < 0) return;
  std::vector<int> last(plan.trace.streams.size(), -1);
  for (int i = 0; i <= end; ++i) {
    if (items[static_cast<std::size_t>(i)].kind == TraceItem::Kind::work) {
      last[static_cast<std::size_t>(items[static_cast<std::size_t>(i)].stream)] = i;
    }
  }
  for (const int i : last) {
    if (i < 0 || i == end || order.before(i, end)) continue;
    const TraceItem& item = items[static_cast<std::size_t>(i)];
    defects.push_back(cat("rank ", rank, ": the step may end before ", item.record.name, " (instruction ",
                          item.instruction, ", stream ", plan.trace.streams[static_cast<std::size_t>(item.stream)],
                          ")"));
  }
}

}  // namespace

void check_plans(const std::vector<const RankPlan*>& plans, const std::vector<int>& ranks) {
  std::vector<program::RankTrace> traces;
  std::vector<std::string> defects;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const RankPlan& plan = *plans[i];
    traces.push_back({.rank = ranks[i],
                      .trace = &plan.trace,
                      .buffers = &plan.buffers.buffers,
                      .placement = &plan.buffers.placement,
                      .host_placement = &plan.buffers.host_placement});
    for (std::string& line : program::check_memory(traces.back())) defects.push_back(std::move(line));
    check_end(plan, ranks[i], defects);
  }
  for (std::string& line : program::check_collectives(traces)) defects.push_back(std::move(line));
  std::string text;
  for (const std::string& line : defects) text += "\n  " + line;
  HAWSER_CHECK(defects.empty(), "the step's program is not safe:", text);
}

namespace {

// "backward of block 3's MLP, micro-batch 0"
std::string peak_instruction_text(const RankPlan& plan, const models::Model& model) {
  const TraceItem& item = plan.trace.items[static_cast<std::size_t>(plan.buffers.placement.peak_item)];
  if (item.instruction < 0) return item.record.name;
  const program::Instruction& instruction = plan.program.instructions[static_cast<std::size_t>(item.instruction)];
  std::string out = program::to_string(instruction.op);
  std::replace(out.begin(), out.end(), '_', ' ');
  if (instruction.layer >= 0)
    out += cat(" of block ", model.block_of(instruction.layer), "'s ", model.kind_of(instruction.layer));
  if (instruction.flat >= 0) out += " of " + model.flat(instruction.flat).name();
  if (instruction.micro_batch >= 0) out += cat(", micro-batch ", instruction.micro_batch);
  return out;
}

}  // namespace

std::vector<std::string> slow_kernels(const RankPlan& plan) {
  std::vector<std::string> out;
  for (const std::string& line : plan.implementations) {
    if (line.find(": plain") != std::string::npos) out.push_back(line);
  }
  return out;
}

Costs costs_of(const RankPlan& plan, const models::Model& model, const Layout& layout, const Target* target) {
  Costs costs;
  costs.peak_bytes_by_category["parameters"] = plan.parameter_bytes;
  costs.peak_bytes_by_category["optimizer state"] = plan.optimizer_bytes;
  if (plan.kv_cache_bytes > 0) costs.peak_bytes_by_category["the KV cache"] = plan.kv_cache_bytes;
  if (plan.reference_bytes > 0) costs.peak_bytes_by_category["reference gradient"] = plan.reference_bytes;
  costs.peak_bytes_by_category["tables"] =
      plan.state_bytes - plan.parameter_bytes - plan.optimizer_bytes - plan.kv_cache_bytes - plan.reference_bytes;
  if (plan.scratch_bytes > 0) costs.peak_bytes_by_category["scratch of the streams"] = plan.scratch_bytes;
  for (const int buffer : plan.buffers.placement.peak_buffers) {
    const program::Buffer& b = plan.buffers.buffers[static_cast<std::size_t>(buffer)];
    costs.peak_bytes_by_category[b.category] += round_up(b.bytes, Device::kAlignment);
  }
  const std::int64_t slack = plan.buffers.placement.bytes - plan.buffers.placement.live_bytes;
  if (slack > 0) costs.peak_bytes_by_category["between buffers"] = slack;
  const std::int64_t more = plan.arena_bytes() - plan.buffers.placement.bytes;
  if (more > 0) costs.peak_bytes_by_category["loading of weights"] = more;
  costs.total_bytes = plan.bytes();
  costs.pinned_bytes = plan.pinned_bytes();
  costs.saved_bytes = plan.saved_bytes;
  costs.peak_bytes = plan.state_bytes + plan.scratch_bytes + plan.buffers.placement.live_bytes;
  for (const TraceItem& item : plan.trace.items) {
    costs.flops += item.record.flops;
    const CollectiveNote& note = item.record.collective;
    if (note.kind == CollectiveKind::none) continue;
    const Members all = members_of(note.communicator, 0);
    const bool counted = target == nullptr || target->sends_counted_rows(all.first, all.last);
    costs.traffic[group_kind(note.communicator)] += bytes_sent(note, all.count, counted);
  }
  costs.slow_kernels = slow_kernels(plan);
  if (plan.buffers.placement.peak_item >= 0) costs.peak_instruction = peak_instruction_text(plan, model);
  const step::BatchBounds& bounds = layout.bounds;
  const auto pairs = [&](const AttentionMask& mask) {
    const step::MaskBounds& m = bounds.with_mask(mask);
    return (m.diagonal_pairs + m.off_diagonal_pairs) / bounds.context_heads;
  };
  const models::PipelinePartition& partition = layout.partition;
  const bool head = plan.stage == partition.stage_of(partition.model_chunks() - 1);
  costs.model_flops =
      layout.micro_batches *
      model.training_flops(bounds.row_counts(), pairs, models::layers_of_stage(model, partition, plan.stage), head);
  return costs;
}

}  // namespace hawser::plan

// The executor's copies of KV caches in host memory (StateOptions::kv_cache_on_host).
#include <algorithm>

#include "ops/copy/permute_rows.h"
#include "step/executor.h"

namespace hawser::step {

using program::Instruction;
using program::Op;

nn::KvCache Executor::cache_copy(int load, int layer) {
  const nn::KvCache& of = setup_.state->kv_cache(layer);
  return {.k = setup_.buffers->get({Role::kv_copy, load, 0}, of.k.dtype(), of.k.shape()),
          .v = setup_.buffers->get({Role::kv_copy, load, 1}, of.v.dtype(), of.v.shape())};
}

nn::KvCache Executor::new_rows(Role role, int owner, int layer) {
  const nn::KvCache& of = setup_.state->kv_cache(layer);
  const Shape shape{setup_.bounds.rows, of.k.size(1), of.k.size(2)};
  return {.new_k = setup_.buffers->get({role, owner, 0}, of.k.dtype(), shape),
          .new_v = setup_.buffers->get({role, owner, 1}, of.v.dtype(), shape)};
}

TensorView Executor::host_slots(int micro_batch) {
  const TensorView& table = batch_views(micro_batch).slot_mapping;
  return setup_.buffers->get({Role::host_slots, micro_batch, 0}, table.dtype(), table.shape());
}

void Executor::bind_cache(const Instruction& instruction, Bound& bound) {
  const int layer = instruction.layer, owner = instruction.cache;
  if (instruction.op == Op::slots_out) {
    bound.copies.emplace_back(batch_views(instruction.micro_batch).slot_mapping, host_slots(instruction.micro_batch));
    return;
  }
  const nn::KvCache& state = setup_.state->kv_cache(layer);
  if (instruction.op == Op::load_cache) {
    const nn::KvCache copy = cache_copy(instruction.id, layer);
    bound.copies = {{state.k, copy.k}, {state.v, copy.v}};
  } else if (instruction.op == Op::forward) {
    const nn::KvCache copy = cache_copy(owner, layer), added = new_rows(Role::new_rows, instruction.id, layer);
    bound.cache = {copy.k, copy.v, added.new_k, added.new_v};
  } else if (instruction.op == Op::store_rows) {
    const nn::KvCache device = new_rows(Role::new_rows, owner, layer),
                      host = new_rows(Role::host_rows, instruction.id, layer);
    bound.copies = {{device.new_k, host.new_k}, {device.new_v, host.new_v}};
  } else {
    const nn::KvCache host = new_rows(Role::host_rows, owner, layer);
    bound.cache = {state.k, state.v, host.new_k, host.new_v};
    bound.x = host_slots(instruction.micro_batch);
  }
}

namespace {

// Rows of a KV cache.
struct Rows {
  std::int64_t begin = 0, count = 0;
};

// Of each sequence those that a query of the pass sees, without those that the pass adds.
std::vector<Rows> visible_rows(const std::vector<std::int32_t>& segments, std::int64_t window) {
  std::vector<Rows> out;
  for (std::size_t s = 0; s < segments.size(); s += static_cast<std::size_t>(kSegmentNumbers)) {
    const std::int64_t added = segments[s + 1], begin = segments[s + 2], earlier = segments[s + 3] - added;
    const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, earlier - window + 1) : 0;
    if (first < earlier) out.push_back({begin + first, earlier - first});
  }
  return out;
}

}  // namespace

// The plan has a copy of all of it. Attention reads no other rows.
void Executor::load_cache(const Instruction& instruction) {
  const HostBatch* const batch = host_batch(instruction.micro_batch);
  const std::int64_t window = setup_.model->attention(instruction.layer)->window;
  for (const auto& [from, to] : bound(instruction).copies) {
    const std::int64_t row_bytes = from.bytes() / from.size(0);
    std::int64_t bytes = 0;
    std::vector<TransferPiece> pieces;
    for (const Rows& rows : batch == nullptr ? std::vector<Rows>() : visible_rows(batch->diagonal, window)) {
      const std::int64_t at = rows.begin * row_bytes;
      pieces.push_back({to.raw() + at, from.raw() + at, rows.count * row_bytes});
      bytes += pieces.back().bytes;
    }
    transfer(stream(instruction.stream),
             {.name = to_string(instruction.op),
              .kind = OpKind::transfer,
              .accesses = {reads(from), writes(to)},
              .bytes = static_cast<double>(bytes)},
             std::move(pieces));
  }
}

void Executor::write_slots(const Instruction& instruction) {
  const Bound& views = bound(instruction);
  Stream& host = stream(instruction.stream);
  ops::scatter_rows(host, {.x = views.cache.new_k, .index = views.x, .y = views.cache.k});
  ops::scatter_rows(host, {.x = views.cache.new_v, .index = views.x, .y = views.cache.v});
}

}  // namespace hawser::step

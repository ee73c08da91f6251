// The executor's copies of KV caches in host memory (StateOptions::kv_cache_on_host).
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

void Executor::write_slots(const Instruction& instruction) {
  const Bound& views = bound(instruction);
  Stream& host = stream(instruction.stream);
  ops::scatter_rows(host, {.x = views.cache.new_k, .index = views.x, .y = views.cache.k});
  ops::scatter_rows(host, {.x = views.cache.new_v, .index = views.x, .y = views.cache.v});
}

}  // namespace hawser::step

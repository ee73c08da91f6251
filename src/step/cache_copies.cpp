#include "step/cache_copies.h"

#include <algorithm>
#include <utility>

namespace hawser::step {

using program::Instruction;
using program::Op;
using program::StreamId;

void CacheCopies::load(Instruction& forward, const std::vector<int>& layers, std::size_t next, int load_batch) {
  const int mb = forward.micro_batch;
  if (slots_out_.insert(mb).second) {
    add_({.op = Op::slots_out, .stream = StreamId::copy_out, .micro_batch = mb, .after = {load_batch}});
  }
  for (std::size_t i = next == 0 ? 0 : next + 1; i < std::min(next + 2, layers.size()); ++i) {
    Instruction load{.op = Op::load_cache, .stream = StreamId::copy_in, .layer = layers[i], .micro_batch = mb};
    if (const Use* const before = two_before(uses_.size())) load.after.push_back(before->forward);
    if (const auto written = written_.find(layers[i]); written != written_.end()) load.after.push_back(written->second);
    uses_.push_back({.load = add_(std::move(load))});
  }
  forward.cache = uses_[stored_].load;
  if (const Use* const before = two_before(stored_)) forward.after.push_back(before->store);
}

void CacheCopies::store(const Instruction& forward, int index) {
  const std::size_t use = stored_++;
  const int layer = forward.layer, mb = forward.micro_batch;
  Instruction store{
      .op = Op::store_rows, .stream = StreamId::copy_out, .layer = layer, .micro_batch = mb, .cache = index};
  if (const Use* const before = two_before(use)) store.after.push_back(before->write);
  uses_[use].forward = index;
  uses_[use].store = add_(std::move(store));
  uses_[use].write = add_(
      {.op = Op::write_slots, .stream = StreamId::host, .layer = layer, .micro_batch = mb, .cache = uses_[use].store});
  written_[layer] = uses_[use].write;
}

}  // namespace hawser::step

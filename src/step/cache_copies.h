// `CacheCopies`: the items of a forward pass that copy KV caches in host memory (StateOptions::kv_cache_on_host) to the
// device, and what forward adds to them back.
//
//   load_cache   copy_in   after the forward whose copy is two before, whose buffers it takes
//   forward      compute   after load_cache, and the store_rows two before
//   store_rows   copy_out  after forward, and the write_slots two before
//   write_slots  host      after store_rows
//
// So at most two layers have buffers of each kind. A load_cache also waits for the last write_slots of its layer: that
// of another micro-batch.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "program/program.h"

namespace hawser::step {

class CacheCopies {
 public:
  // `add` appends an item to the list of computations and returns its index. Operands and `after` are such indices.
  explicit CacheCopies(std::function<int(program::Instruction)> add) : add_(std::move(add)) {}

  // Called before `forward` of the layer layers[next] is appended. Sets what it reads and waits for, and appends the
  // load_cache of the next layer; that of layers[0] comes with it. `layers`: those of the pass with a KV cache in host
  // memory. `load_batch`: of its micro-batch.
  void load(program::Instruction& forward, const std::vector<int>& layers, std::size_t next, int load_batch);
  // Called after it is appended as item `index`. Appends store_rows and write_slots.
  void store(const program::Instruction& forward, int index);

 private:
  struct Use {
    int load = -1, forward = -1, store = -1, write = -1;
  };
  const Use* two_before(std::size_t use) const { return use >= 2 ? &uses_[use - 2] : nullptr; }

  std::function<int(program::Instruction)> add_;
  std::vector<Use> uses_;       // in the order of their forward passes
  std::size_t stored_ = 0;      // of these, those whose forward is appended
  std::map<int, int> written_;  // by layer: its last write_slots
  std::set<int> slots_out_;     // micro-batches that have one
};

}  // namespace hawser::step

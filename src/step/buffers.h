// `Buffers`: the buffers of a step, by role. On meta a buffer is allocated when it is first requested. On a real
// device it is at its planned offset; requesting another size than planned is an InternalError.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "program/placement.h"
#include "tensor/tensor.h"

namespace hawser::step {

enum class Role {
  batch,               // (micro-batch, which table)
  weights,             // (gather, or load_weights that no gather completes; 0: rows, 1: transposed)
  weight_shard,        // (load_weights that a gather completes)
  activation,          // (instruction that writes it, load too): a layer's output, its input, or the input's gradient
  saved,               // (Instruction::saved, index in Layer::saved_specs())
  unsharded_gradient,  // (flat, micro-batch)
  shard_gradient,      // (flat)
  auxiliary,           // (micro-batch, 0: statistics of all layers, 1: their factors)
  offloaded,           // (forward instruction, as for saved; -1: the layer's input): a saved tensor in host memory
  // (Instruction::staged, 0: master weights, 1 + i: slot i, 1 + number of slots: weights as layers read them): of a
  // flat whose state or weights are in host memory, on the device
  staged_state,
  update,  // (flat, 2 * phase: sums, 2 * phase + 1: what is gathered or scattered): optim::Exchanged
  temp,    // (instruction, index among its temps)
};

struct BufferKey {
  Role role = Role::temp;
  int a = 0, b = 0;
  auto operator<=>(const BufferKey&) const = default;
  std::string text() const;  // "saved 12.3"
};

class Buffers {
 public:
  virtual ~Buffers() = default;
  // Dense; the same memory for the same key throughout one step.
  virtual TensorView get(const BufferKey& key, DType dtype, const Shape& shape) = 0;
};

// The plan made on meta, for a real device.
struct BufferPlan {
  std::map<BufferKey, int> index;  // of `buffers`
  std::vector<program::Buffer> buffers;
  program::Placement placement, host_placement;  // of the spaces device and host

  // In the arena of the buffer's space; 0 if it is never accessed.
  std::int64_t offset(int buffer) const;
  // Adds a buffer at an address of the meta device.
  void add(const BufferKey& key, std::int64_t bytes, std::uint64_t address);
};

class MetaBuffers : public Buffers {
 public:
  explicit MetaBuffers(MetaDevice& device) : device_(device) {}
  TensorView get(const BufferKey& key, DType dtype, const Shape& shape) override;
  // Persistent memory that is allocated elsewhere but must be known to the checker.
  void add_persistent(const std::string& name, const std::byte* data, std::int64_t bytes,
                      program::Space space = program::Space::persistent);
  BufferPlan take() { return std::move(plan_); }

 private:
  MetaDevice& device_;
  BufferPlan plan_;
};

// The memory of a step's buffers: [Placement::bytes] each.
struct Arenas {
  std::byte* device = nullptr;
  std::byte* host = nullptr;

  std::byte* of(program::Space space) const { return space == program::Space::host ? host : device; }
};

class PlannedBuffers : public Buffers {
 public:
  // All arguments outlive this. `device`: the kind of the device arena's views; those of the host arena are cpu.
  PlannedBuffers(const BufferPlan& plan, const Arenas& arenas, DeviceKind device)
      : plan_(plan), arenas_(arenas), device_(device) {}
  TensorView get(const BufferKey& key, DType dtype, const Shape& shape) override;

 private:
  const BufferPlan& plan_;
  Arenas arenas_;
  DeviceKind device_;
};

}  // namespace hawser::step

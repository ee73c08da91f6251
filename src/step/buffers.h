// The buffers of a step by what they are for. On meta a buffer comes into being when it is first asked for; on a real
// device it lies where the plan put it, and asking for another size than the plan saw is a broken promise.
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
  batch,           // (micro-batch, which)
  weights,         // (gather row)
  activation,      // (row that makes it): a layer's output, or the gradient of its input
  saved,           // (forward row, slot)
  unit_gradient,   // (unit, micro-batch): whole
  shard_gradient,  // (unit)
  temp,            // (row, count)
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

// What the plan hands from meta to a real device.
struct BufferPlan {
  std::map<BufferKey, int> index;  // into buffers
  std::vector<program::Buffer> buffers;
  program::Placement placement;
};

class MetaBuffers : public Buffers {
 public:
  explicit MetaBuffers(MetaDevice& device) : device_(device) {}
  TensorView get(const BufferKey& key, DType dtype, const Shape& shape) override;
  // Persistent memory that lies elsewhere but must be known to the checker.
  void add_persistent(const std::string& name, const std::byte* data, std::int64_t bytes);
  BufferPlan take() { return std::move(plan_); }

 private:
  MetaDevice& device_;
  BufferPlan plan_;
};

class PlannedBuffers : public Buffers {
 public:
  // Both outlive this.
  PlannedBuffers(const BufferPlan& plan, std::byte* arena, DeviceKind device)
      : plan_(plan), arena_(arena), device_(device) {}
  TensorView get(const BufferKey& key, DType dtype, const Shape& shape) override;

 private:
  const BufferPlan& plan_;
  std::byte* arena_;
  DeviceKind device_;
};

}  // namespace hawser::step

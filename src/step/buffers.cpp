#include "step/buffers.h"

#include <algorithm>
#include <iterator>

namespace hawser::step {

namespace {

constexpr const char* kRoles[] = {"batch",
                                  "gathered weights",
                                  "loaded weight shards",
                                  "activations",
                                  "saved activations",
                                  "gradients, unsharded",
                                  "gradients, sharded",
                                  "auxiliary loss",
                                  "offloaded activations",
                                  "staged optimizer state",
                                  "optimizer's exchanges",
                                  "workspace"};
static_assert(std::size(kRoles) == static_cast<std::size_t>(Role::temp) + 1);

const char* name_of(Role role) {
  return kRoles[static_cast<std::size_t>(role)];
}

}  // namespace

std::string BufferKey::text() const {
  std::string out = name_of(role);
  out.append(" ").append(std::to_string(a)).append(".").append(std::to_string(b));
  return out;
}

void BufferPlan::add(const BufferKey& key, std::int64_t bytes, std::uint64_t address) {
  index.emplace(key, static_cast<int>(buffers.size()));
  buffers.push_back({.name = key.text(), .category = name_of(key.role), .address = address, .bytes = bytes});
  if (key.role == Role::offloaded) buffers.back().space = program::Space::host;
}

std::int64_t BufferPlan::offset(int buffer) const {
  const auto i = static_cast<std::size_t>(buffer);
  const program::Placement& in = buffers[i].space == program::Space::host ? host_placement : placement;
  return std::max<std::int64_t>(in.offsets[i], 0);
}

TensorView MetaBuffers::get(const BufferKey& key, DType dtype, const Shape& shape) {
  const std::int64_t bytes = shape.elements() * size_of(dtype);
  auto found = plan_.index.find(key);
  if (found == plan_.index.end()) {
    plan_.add(key, bytes, reinterpret_cast<std::uint64_t>(device_.allocate(std::max<std::int64_t>(bytes, 1))));
    found = plan_.index.find(key);
  }
  const program::Buffer& buffer = plan_.buffers[static_cast<std::size_t>(found->second)];
  HAWSER_CHECK(buffer.bytes == bytes, key.text(), " has ", buffer.bytes, " bytes, requested ", bytes);
  return TensorView(reinterpret_cast<std::byte*>(buffer.address), dtype, shape, DeviceKind::meta);  // NOLINT
}

void MetaBuffers::add_persistent(const std::string& name, const std::byte* data, std::int64_t bytes,
                                 program::Space space) {
  plan_.buffers.push_back({.name = name,
                           .category = "persistent",
                           .address = reinterpret_cast<std::uint64_t>(data),
                           .bytes = bytes,
                           .space = space});
}

TensorView PlannedBuffers::get(const BufferKey& key, DType dtype, const Shape& shape) {
  const std::int64_t bytes = shape.elements() * size_of(dtype);
  const auto it = plan_.index.find(key);
  HAWSER_CHECK(it != plan_.index.end(), key.text(), " is not in the plan");
  const program::Buffer& buffer = plan_.buffers[static_cast<std::size_t>(it->second)];
  HAWSER_CHECK(buffer.bytes == bytes, key.text(), " has ", buffer.bytes, " bytes in the plan, requested ", bytes);
  const DeviceKind kind = buffer.space == program::Space::host ? DeviceKind::cpu : device_;
  return TensorView(arenas_.of(buffer.space) + plan_.offset(it->second), dtype, shape, kind);
}

}  // namespace hawser::step

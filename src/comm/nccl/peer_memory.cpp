#include "comm/nccl/peer_memory.h"

#include <nccl.h>
#include <nccl_device.h>

#include <optional>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"

namespace hawser::comm {

namespace {

bool on_device(const void* data) {
  cudaPointerAttributes kind{};
  const bool there = cudaPointerGetAttributes(&kind, data) == cudaSuccess && kind.type == cudaMemoryTypeDevice;
  cudaGetLastError();
  return there;
}

// The address of each member's part of a window. Empty if not all members share memory, or if the loaded NCCL is
// another version than this build's, whose descriptor may differ.
std::optional<std::vector<std::byte*>> places(const void* window, int index, int size) {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) return std::nullopt;
  if (window == nullptr || !on_device(window)) return std::nullopt;
  ncclWindow_vidmem descriptor{};
  HAWSER_CUDA_CHECK(cudaMemcpy(&descriptor, window, sizeof descriptor, cudaMemcpyDeviceToHost));
  if (descriptor.lsaRank != index) return std::nullopt;
  std::vector<std::byte*> out;
  for (std::int64_t m = 0; m < size; ++m) {
    const std::int64_t stride = std::int64_t{descriptor.stride4G} << 32;
    out.push_back(reinterpret_cast<std::byte*>(descriptor.lsaFlatBase) + m * stride);
    if (!on_device(out.back())) return std::nullopt;
  }
  return out;
}

std::uint64_t read_word(const std::byte* from) {
  std::uint64_t word = 0;
  HAWSER_CUDA_CHECK(cudaMemcpy(&word, from, sizeof word, cudaMemcpyDefault));
  return word;
}

void write_word(std::byte* to, std::uint64_t word) {
  HAWSER_CUDA_CHECK(cudaMemcpy(to, &word, sizeof word, cudaMemcpyDefault));
  HAWSER_CUDA_CHECK(cudaDeviceSynchronize());
}

}  // namespace

bool PeerMemory::map_signals(void* window, std::byte* data) {
  const std::int64_t bytes = signal_bytes(size_);
  HAWSER_CUDA_CHECK(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  HAWSER_CUDA_CHECK(cudaDeviceSynchronize());
  const bool can_wait = cuda::driver_function<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp") != nullptr;
  if (world_.any(!can_wait) || !map(window, data, bytes)) return false;
  signals_ = std::move(regions_.at(data));
  regions_.erase(data);
  return true;
}

bool PeerMemory::map(void* window, std::byte* data, std::int64_t bytes) {
  constexpr std::uint64_t kMark = 0x48615773'65720000;  // with the member's index in it
  std::optional<std::vector<std::byte*>> of = places(window, index_, size_);
  if (world_.any(!of || bytes < static_cast<std::int64_t>(sizeof kMark))) return false;
  const std::uint64_t before = read_word(data);
  write_word(data, kMark + static_cast<std::uint64_t>(index_));
  world_.barrier();
  bool right = true;
  for (int m = 0; m < size_; ++m) {
    right = right && read_word((*of)[static_cast<std::size_t>(m)]) == kMark + static_cast<std::uint64_t>(m);
  }
  const bool all_right = !world_.any(!right);
  write_word(data, before);
  world_.barrier();  // before any member writes there again
  if (!all_right) return false;
  (*of)[static_cast<std::size_t>(index_)] = data;
  regions_[data] = {.data = data, .bytes = bytes, .of = *std::move(of)};
  return true;
}

const PeerRegion* PeerMemory::region(const std::byte* data, std::int64_t bytes) const {
  if (signals_.of.empty()) return nullptr;
  for (const auto& [begin, region] : regions_) {
    if (data >= begin && data + bytes <= begin + region.bytes) return &region;
  }
  return nullptr;
}

void PeerMemory::meet(cudaStream_t stream) {
  static const auto batch = cuda::driver_function<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  ++meetings_;
  // Signal m of a member is written by member m.
  const auto address = [&](int of, int by) {
    return reinterpret_cast<CUdeviceptr>(signals_.of[static_cast<std::size_t>(of)]) + static_cast<CUdeviceptr>(by) * 4;
  };
  std::vector<CUstreamBatchMemOpParams> calls;
  for (int k = 1; k < size_; ++k) {
    CUstreamBatchMemOpParams write{};
    write.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                        .address = address((index_ + k) % size_, index_),
                        .value = meetings_,
                        .flags = CU_STREAM_WRITE_VALUE_DEFAULT};  // visible after the stream's earlier writes, to all
    calls.push_back(write);
  }
  for (int k = 1; k < size_; ++k) {
    CUstreamBatchMemOpParams wait{};
    wait.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                      .address = address(index_, (index_ + k) % size_),
                      .value = meetings_,
                      .flags = CU_STREAM_WAIT_VALUE_GEQ};  // compares cyclically: the count may wrap
    calls.push_back(wait);
  }
  const CUresult status = batch(stream, static_cast<unsigned>(calls.size()), calls.data(), 0);
  HAWSER_CHECK(status == CUDA_SUCCESS, "cuStreamBatchMemOp: error ", static_cast<int>(status));
}

void PeerMemory::fetch(cudaStream_t stream, std::span<const PeerCopy> copies) const {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
  for (const PeerCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    to.push_back(copy.to);
    from.push_back(copy.from);
    bytes.push_back(copy.bytes);
  }
  if (to.empty()) return;
  cudaMemcpyAttributes how{};
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  how.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  HAWSER_CUDA_CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &how, &first, 1, stream));
}

}  // namespace hawser::comm

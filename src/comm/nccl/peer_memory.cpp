#include "comm/nccl/peer_memory.h"

#include <dlfcn.h>
#include <nccl.h>
#include <nccl_device.h>

#include "base/cat.h"
#include "base/error.h"
#include "comm/nccl/nccl_version.h"
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

// ncclGetPeerDevicePointer of NCCL 2.29 and later; null before.
using PeerPointer = ncclResult_t (*)(ncclWindow_t window, std::size_t offset, int peer, void** pointer);
PeerPointer peer_pointer() {
  static const auto function = reinterpret_cast<PeerPointer>(dlsym(RTLD_DEFAULT, "ncclGetPeerDevicePointer"));
  return function;
}

// The address of each member's part of a window; fewer than `size` if a member's memory cannot be reached.
std::vector<std::byte*> told_places(void* window, int size) {
  std::vector<std::byte*> out;
  for (int m = 0; m < size; ++m) {
    void* pointer = nullptr;
    if (peer_pointer()(static_cast<ncclWindow_t>(window), 0, m, &pointer) != ncclSuccess || !on_device(pointer)) break;
    out.push_back(static_cast<std::byte*>(pointer));
  }
  return out;
}

// The same from the window's descriptor, which is private to NCCL: only for the version that this build knows.
std::vector<std::byte*> read_places(const void* window, int index, int size) {
  ncclWindow_vidmem descriptor{};
  HAWSER_CUDA_CHECK(cudaMemcpy(&descriptor, window, sizeof descriptor, cudaMemcpyDeviceToHost));
  std::vector<std::byte*> out;
  if (descriptor.lsaRank != index) return out;
  for (std::int64_t m = 0; m < size; ++m) {
    const std::int64_t stride = std::int64_t{descriptor.stride4G} << 32;
    auto* const base = reinterpret_cast<std::byte*>(descriptor.lsaFlatBase) + m * stride;
    if (!on_device(base)) break;
    out.push_back(base);
  }
  return out;
}

struct Places {
  std::vector<std::byte*> of;  // by member
  std::string why;             // there are none
};

Places places(void* window, int index, int size) {
  if (window == nullptr || !on_device(window)) return {.of = {}, .why = "NCCL did not map the region"};
  int version = 0;
  ncclGetVersion(&version);
  if (peer_pointer() == nullptr && version != NCCL_VERSION_CODE) {
    return {.of = {},
            .why = cat("NCCL ", nccl_version(), " does not tell where it mapped the region (2.29 does, and ",
                       "this build knows ", nccl_version_text(NCCL_VERSION_CODE), ")")};
  }
  Places out{.of = peer_pointer() != nullptr ? told_places(window, size) : read_places(window, index, size), .why = {}};
  if (static_cast<int>(out.of.size()) < size) return {.of = {}, .why = "a GPU cannot reach another one's memory"};
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

std::string PeerMemory::map_signals(void* window, std::byte* data) {
  const std::int64_t bytes = signal_bytes(size_);
  HAWSER_CUDA_CHECK(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  HAWSER_CUDA_CHECK(cudaDeviceSynchronize());
  const bool can_wait = cuda::driver_function<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp") != nullptr;
  if (any_(!can_wait)) return "a driver has no stream memory operations";
  if (std::string why = map(window, data, bytes); !why.empty()) return why;
  signals_ = std::move(regions_.at(data));
  regions_.erase(data);
  return {};
}

std::string PeerMemory::map(void* window, std::byte* data, std::int64_t bytes) {
  constexpr std::uint64_t kMark = 0x48615773'65720000;  // with the member's index in it
  Places there = places(window, index_, size_);
  if (bytes < static_cast<std::int64_t>(sizeof kMark)) there = {.of = {}, .why = "the region is too small"};
  if (any_(!there.why.empty())) return there.why.empty() ? "another rank cannot reach its peers' memory" : there.why;
  const std::uint64_t before = read_word(data);
  write_word(data, kMark + static_cast<std::uint64_t>(index_));
  any_(false);  // all have written
  bool right = true;
  for (int m = 0; m < size_; ++m) {
    right = right && read_word(there.of[static_cast<std::size_t>(m)]) == kMark + static_cast<std::uint64_t>(m);
  }
  const bool all_right = !any_(!right);
  write_word(data, before);
  any_(false);  // before any member writes there again
  if (!all_right) return "what a GPU reads of another one's memory is not what that one wrote";
  there.of[static_cast<std::size_t>(index_)] = data;
  regions_[data] = {.data = data, .bytes = bytes, .of = std::move(there.of)};
  return {};
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

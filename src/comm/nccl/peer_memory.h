// `PeerMemory`: memory of a group's other members, mapped into this process. A rank fetches what it needs by its own
// copy engines, which take no SM; send and receive take some on both sides for the time of the transfer.
//
// Regions are registered as symmetric windows of NCCL, which maps them. NCCL 2.29 and later tells their addresses;
// those of the version that this build knows are read from the window's descriptor on the GPU. Members synchronize by
// counters that their streams write into one another's memory:
//
//   if (const PeerRegion* region = peers.region(send, bytes)) {
//     peers.meet(stream);                                   // send is written on every member
//     peers.fetch(stream, {{.to = slot, .from = region->at(send, p), .bytes = n}, ...});
//     peers.meet(stream);                                   // all members have fetched: send is free again
//   }
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hawser::comm {

struct PeerRegion {
  std::byte* data = nullptr;  // this member's
  std::int64_t bytes = 0;
  std::vector<std::byte*> of;  // by member, as mapped in this process; the own entry is `data`

  // The address in member p's region that corresponds to `mine` in this member's.
  std::byte* at(const std::byte* mine, int p) const { return of[static_cast<std::size_t>(p)] + (mine - data); }
};

struct PeerCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

class PeerMemory {
 public:
  // `any`: true if the argument is true on any member; every member calls it, and none returns before all have.
  PeerMemory(int index, int size, std::function<bool(bool)> any) : index_(index), size_(size), any_(std::move(any)) {}

  // Both return why the region cannot be used, or an empty string if it can, on all members. Collective over them.
  // Registers the signals' own region, before the first meet(). As map(), with signal_bytes(size) bytes; zeroes them.
  std::string map_signals(void* window, std::byte* data);
  // Adds the region that NCCL registered as `window` (an ncclWindow_t; null if it did not). Proves that each member
  // reaches the others' memory: each writes a mark into its first bytes, all read it, and the bytes are restored.
  std::string map(void* window, std::byte* data, std::int64_t bytes);
  void unmap(std::byte* data) { regions_.erase(data); }

  // The region that contains [data, data + bytes). Null if there is none, or members cannot meet. Views are at equal
  // offsets on every member (Mesh::compare_offsets), so the result is the same on all.
  const PeerRegion* region(const std::byte* data, std::int64_t bytes) const;

  // The stream continues when every member's stream has reached this point, and sees what theirs wrote before.
  void meet(cudaStream_t stream);
  // Copies by copy engines, concurrently.
  void fetch(cudaStream_t stream, std::span<const PeerCopy> copies) const;

  static constexpr std::int64_t signal_bytes(int size) { return size * std::int64_t{4}; }

 private:
  int index_, size_;
  std::function<bool(bool)> any_;
  std::map<std::byte*, PeerRegion> regions_;
  PeerRegion signals_;  // `of` is empty if members cannot meet
  std::uint32_t meetings_ = 0;
};

}  // namespace hawser::comm

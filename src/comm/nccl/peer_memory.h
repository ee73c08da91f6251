// Memory of a group's other members, mapped into this process: a rank fetches what it needs by its own copy engines,
// which take no SM, where a send and a receive take some on both sides for as long as the bytes travel.
//
// Regions are registered as symmetric windows of NCCL, which maps them; where each lies is read from the window's
// descriptor on the GPU. Members meet by numbers that they write into one another's memory from their streams:
//
//   if (const PeerRegion* region = peers.region(send, bytes)) {
//     peers.meet(stream);                                   // everybody's send is written
//     peers.fetch(stream, {{.to = slot, .from = region->at(send, p), .bytes = n}, ...});
//     peers.meet(stream);                                   // everybody has fetched: send is free again
//   }
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "comm/mpi/world.h"

struct ncclComm;

namespace hawser::comm {

struct PeerRegion {
  std::byte* data = nullptr;  // this member's
  std::int64_t bytes = 0;
  std::vector<std::byte*> of;  // by member, as mapped here; the own one's is `data`

  // What lies in member p's region where `mine` lies in this one's.
  std::byte* at(const std::byte* mine, int p) const { return of[static_cast<std::size_t>(p)] + (mine - data); }
};

struct PeerCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

class PeerMemory {
 public:
  PeerMemory(World& world, int index, int size) : world_(world), index_(index), size_(size) {}

  // Registers the signals' own region, before the first meet(). As map(); kSignalBytes(size) bytes, zeroed here.
  bool map_signals(void* window, std::byte* data);
  // Adds the region that NCCL registered as `window` (an ncclWindow_t; null: it did not). False, on every rank, where a
  // member of any group cannot reach the others' memory: proved by reading what each wrote into its first bytes, which
  // are put back. Collective over the run.
  bool map(void* window, std::byte* data, std::int64_t bytes);
  void unmap(std::byte* data) { regions_.erase(data); }

  // The region that [data, data + bytes) lies in; null: none, or members cannot meet. Views lie at equal offsets on
  // every member (Mesh::register_memory), so the answer is the same on all.
  const PeerRegion* region(const std::byte* data, std::int64_t bytes) const;

  // The stream goes on when every member's has got here, and sees what theirs wrote before.
  void meet(cudaStream_t stream);
  // By copy engines, side by side.
  void fetch(cudaStream_t stream, std::span<const PeerCopy> copies) const;

  static constexpr std::int64_t signal_bytes(int size) { return size * std::int64_t{4}; }

 private:
  World& world_;
  int index_, size_;
  std::map<std::byte*, PeerRegion> regions_;
  PeerRegion signals_;  // of is empty: members cannot meet
  std::uint32_t meetings_ = 0;
};

}  // namespace hawser::comm

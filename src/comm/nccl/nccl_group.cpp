#include "comm/nccl/nccl_group.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "base/error.h"
#include "comm/cuda/counted_rows_cuda.h"
#include "comm/cuda/reduce_cuda.h"
#include "comm/mpi/world.h"
#include "comm/nccl/nccl_version.h"
#include "comm/rank_list.h"
#include "comm/reduce.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/native.h"

namespace hawser::comm {

namespace {

cudaStream_t stream_of(const CudaNative& native) {
  return static_cast<cudaStream_t>(native.stream);
}

// True if NCCL can share the memory at `data` with other processes: the driver has a handle for it.
bool mappable(const void* data) {
  static const auto retain =
      cuda::driver_function<decltype(cuMemRetainAllocationHandle)>("cuMemRetainAllocationHandle");
  static const auto release = cuda::driver_function<decltype(cuMemRelease)>("cuMemRelease");
  CUmemGenericAllocationHandle handle = 0;
  if (retain == nullptr || release == nullptr) return false;
  if (retain(&handle, const_cast<void*>(data)) != CUDA_SUCCESS) return false;
  release(handle);
  return true;
}

constexpr std::int64_t kTokens = NCCL_WIN_REQUIRED_ALIGNMENT;  // offset of the tokens in a group's small memory
constexpr std::int64_t kToken = sizeof(std::uint64_t);
constexpr std::int64_t small_bytes(int size) {
  return kTokens + round_up(2 * kToken * size, NCCL_WIN_REQUIRED_ALIGNMENT);
}

void expect_success(ncclResult_t status, const char* what, const std::string& group, ncclComm_t comm) {
  HAWSER_CHECK(status == ncclSuccess, what, " on ", group, ": ", ncclGetErrorString(status), ": ",
               ncclGetLastError(comm));
}

// `name`: of the group that the communicator is for. It outlives the result.
ncclConfig_t config_of(const NcclOptions& options, const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.commName = name.c_str();
  if (options.min_ctas > 0) config.minCTAs = options.min_ctas;
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  // A communicator has separate buffers per thread block and neighbour, so one block saves memory.
  if (NcclGroup::sums_numbers(name)) config.minCTAs = config.maxCTAs = 1;
  if (options.copy_engines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  return config;
}

}  // namespace

NcclRun::NcclRun(World& run, Device& gpu, int gpu_ordinal, double timeout_s, const NcclOptions& how)
    : world(run),
      device(gpu),
      ordinal(gpu_ordinal),
      options(how),
      watchdog(run.service(), gpu_ordinal, timeout_s),
      line_(watchdog.add("all ranks", cat("0-", run.size() - 1))) {
  if (world.size() == 1) return;
  HAWSER_CUDA_CHECK(cudaSetDevice(ordinal));
  ncclUniqueId id{};
  if (world.rank() == Rank(0)) expect_success(ncclGetUniqueId(&id), "ncclGetUniqueId", "all ranks", nullptr);
  const std::string bytes = world.broadcast_bytes(std::string(id.internal, sizeof id.internal));
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  const std::string name = "world:";
  ncclConfig_t config = config_of(options, name);
  watchdog.guard(*line_, "connect", [&] {
    expect_success(ncclCommInitRankConfig(&all_, world.size(), id, world.rank().value(), &config),
                   "ncclCommInitRankConfig", "all ranks", nullptr);
  });
  watchdog.set_communicator(*line_, all_);
  if (options.made) options.made("all ranks: communicator");
}

NcclRun::~NcclRun() {
  // As in ~NcclGroup.
  if (std::uncaught_exceptions() == 0 && all_ != nullptr) {
    watchdog.guard(*line_, "close", [&] {
      watchdog.set_communicator(*line_, nullptr);
      ncclCommDestroy(all_);
    });
  }
  watchdog.remove(line_);
}

ncclComm* NcclRun::split(const GroupPartition& partition, const std::optional<GroupPartition::Place>& place) {
  HAWSER_CUDA_CHECK(cudaSetDevice(ordinal));
  ncclComm* comm = nullptr;
  const std::string name = place ? partition.name(*place) : partition.kind;
  ncclConfig_t config = config_of(options, name);
  watchdog.guard(*line_, "split", [&] {
    expect_success(
        ncclCommSplit(all_, place ? place->group : NCCL_SPLIT_NOCOLOR, place ? place->index : 0, &comm, &config),
        "ncclCommSplit", name, all_);
  });
  if (place && options.made) options.made(cat(name, ": communicator"));
  return comm;
}

// Part m is elements [begin(m), begin(m) + count(m)). Each has `part` elements, the last ones fewer or none.
struct NcclGroup::Parts {
  std::int64_t total = 0;
  std::int64_t part = 0;
  DType dtype = DType::f32;

  std::int64_t begin(int m) const { return std::min(m * part, total); }
  std::int64_t count(int m) const { return std::min(part, total - begin(m)); }
};

struct NcclGroup::Sums {
  Sums() {
    // A sum is short, and transfers wait for it: its blocks are scheduled before those of a GEMM that fills the GPU.
    int least = 0, greatest = 0;
    HAWSER_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    HAWSER_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    for (cudaEvent_t* event : {&arrived[0], &arrived[1], &summed[0], &summed[1]}) {
      HAWSER_CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
  }
  ~Sums() {
    for (cudaEvent_t event : {arrived[0], arrived[1], summed[0], summed[1]}) cudaEventDestroy(event);
    cudaStreamDestroy(stream);
  }

  cudaStream_t stream = nullptr;
  std::array<cudaEvent_t, 2> arrived{}, summed{};  // by set of slots
};

NcclGroup::NcclGroup(std::shared_ptr<NcclRun> run, std::string name, std::vector<int> ranks, int index, ncclComm* comm,
                     bool owns)
    : Group(std::move(name), static_cast<int>(ranks.size()), index),
      run_(std::move(run)),
      ranks_(std::move(ranks)),
      line_(run_->watchdog.add(this->name(), rank_list(ranks_))),
      comm_(comm),
      owns_(owns),
      peers_(this->index(), this->size(), [this](bool mine) { return any_member(mine); }) {
  HAWSER_CUDA_CHECK(cudaSetDevice(run_->ordinal));
  sums_ = std::make_unique<Sums>();
  void* small = nullptr;
  expect(ncclMemAlloc(&small, static_cast<std::size_t>(small_bytes(size()))), "ncclMemAlloc");
  small_.reset(static_cast<std::byte*>(small));
  connect();
}

NcclGroup::~NcclGroup() {
  cudaSetDevice(run_->ordinal);
  // When an error unwinds this rank the other ranks do not get here, and closing or aborting could wait for them. The
  // communicator is left to the end of the process, which follows (comm/mpi/world.h).
  if (std::uncaught_exceptions() == 0) {
    run_->watchdog.guard(*line_, "close", [&] {
      for (const auto& [data, window] : windows_) ncclCommWindowDeregister(comm_, static_cast<ncclWindow_t>(window));
      run_->watchdog.set_communicator(*line_, nullptr);
      if (owns_) ncclCommDestroy(comm_);
    });
  }
  run_->watchdog.remove(line_);
}

void NcclGroup::FreeShared::operator()(std::byte* data) const {
  ncclMemFree(data);
}

// Runs `calls` as one NCCL group call.
template <class Do>
void NcclGroup::grouped(const Do& calls) {
  expect(ncclGroupStart(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    ncclGroupEnd();
    throw;
  }
  expect(ncclGroupEnd(), "ncclGroupEnd");
}

// Calls `act` for the other members, each member starting after itself.
template <class Do>
void NcclGroup::each_peer(const Do& act) const {
  for (int k = 1; k < size(); ++k) act((index() + k) % size());
}

bool NcclGroup::sums_numbers(const std::string& name) {
  const bool full = name.find('/') == std::string::npos;
  return full && (name.starts_with("shard:") || name.starts_with("data:") || name.starts_with("world:"));
}

// Members connect, and allocate memory for it, at their first use: do it here, not inside a step. The host of a member
// that sends first waits until the other one receives. Stages run different programs and use their groups in different
// orders, so that in a step they could wait for each other in a circle.
void NcclGroup::connect() {
  run_->watchdog.set_communicator(*line_, comm_);
  any_member(false);
  if (run_->options.made) run_->options.made(cat(name(), ": ring"));
  if (spans_stages(name())) connect_pairs();
}

bool NcclGroup::spans_stages(const std::string& name) {
  return std::ranges::any_of(std::array{"pipeline:", "tied:", "loss:", "model:", "expert_model:"},
                             [&](const char* kind) { return name.starts_with(kind); });
}

// Each member's word, by index. Blocks the host.
std::vector<std::uint64_t> NcclGroup::all_gather_words(std::uint64_t mine) const {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(size()));
  run_->watchdog.guard(*line_, "connect", [&] {
    HAWSER_CUDA_CHECK(cudaMemcpyAsync(token(index()), &mine, kToken, cudaMemcpyDefault, sums_->stream));
    expect(ncclAllGather(token(index()), token(0), kToken, ncclInt8, comm_, sums_->stream), "ncclAllGather");
    HAWSER_CUDA_CHECK(cudaMemcpyAsync(words.data(), token(0), words.size() * kToken, cudaMemcpyDefault, sums_->stream));
    HAWSER_CUDA_CHECK(cudaStreamSynchronize(sums_->stream));
  });
  return words;
}

bool NcclGroup::any_member(bool mine) const {
  return std::ranges::any_of(all_gather_words(mine ? 1 : 0), [](std::uint64_t word) { return word != 0; });
}

std::byte* NcclGroup::token(int member) const {
  return small_.get() + kTokens + member * kToken;
}

// Pairwise connections take more memory than a ring; large sums need them only if they cannot be fetched.
void NcclGroup::connect_pairs() {
  if (pairs_) return;
  pairs_ = true;
  run_->watchdog.guard(*line_, "connect", [&] {
    grouped([&] {
      each_peer([&](int p) {
        expect(ncclRecv(token(size() + p), 1, ncclInt8, p, comm_, sums_->stream), "ncclRecv");
        expect(ncclSend(token(index()), 1, ncclInt8, p, comm_, sums_->stream), "ncclSend");
      });
    });
    HAWSER_CUDA_CHECK(cudaStreamSynchronize(sums_->stream));
  });
  if (run_->options.made) run_->options.made(cat(name(), ": pairs"));
}

void NcclGroup::expect(int result, const char* what) const {
  expect_success(static_cast<ncclResult_t>(result), what, name(), comm_);
}

std::string NcclGroup::register_memory(std::byte* data, std::int64_t bytes) {
  HAWSER_CUDA_CHECK(cudaSetDevice(run_->ordinal));
  // NCCL's own checks differ between versions and may fail on one rank alone: check first, on all members.
  const bool fits = reinterpret_cast<std::uintptr_t>(data) % NCCL_WIN_REQUIRED_ALIGNMENT == 0 && mappable(data);
  const std::vector<std::uint64_t> all = all_gather_words(fits ? static_cast<std::uint64_t>(bytes) : 0);
  const auto no = [&](const std::string& why) { return cat("gathers use SMs: ", why); };
  const auto [least, most] = std::ranges::minmax(all);
  if (least == 0 || least < most) {
    connect_pairs();
    if (least == 0) return no("the memory cannot be shared between processes");
    return no(cat("ranks of ", name(), " have regions of different sizes: ", least, " and ", most, " bytes"));
  }
  ncclWindow_t window = nullptr;
  ncclResult_t result = ncclSuccess;
  run_->watchdog.guard(*line_, "register_memory", [&] {
    result = ncclCommWindowRegister(comm_, data, static_cast<std::size_t>(bytes), &window, NCCL_WIN_COLL_SYMMETRIC);
  });
  // A window that all ranks can reach is an object on the GPU. Where GPUs cannot reach one another, NCCL returns one on
  // the host, valid for this rank's own transfers only.
  cudaPointerAttributes kind{};
  const bool symmetric = result == ncclSuccess && window != nullptr &&
                         cudaPointerGetAttributes(&kind, window) == cudaSuccess && kind.type == cudaMemoryTypeDevice;
  cudaGetLastError();
  std::string why;
  if (result != ncclSuccess) why = cat(ncclGetErrorString(result), ": ", ncclGetLastError(comm_));
  if (window != nullptr) windows_.emplace(data, window);
  const bool reached = !any_member(!symmetric);
  // All members take the same branches from here on.
  const std::string no_fetch = reached ? map_peers(window, data, bytes) : "";
  if (!reached || !no_fetch.empty()) connect_pairs();
  if (reached) return no_fetch.empty() ? no_fetch : cat("reductions use SMs: ", no_fetch);
  return no(cat("NCCL ", nccl_version(), " did not map the region on all GPUs", why.empty() ? "" : " (", why,
                why.empty() ? "" : ")"));
}

// Lets members fetch from one another's part of this window. Returns why they cannot, or an empty string.
std::string NcclGroup::map_peers(void* window, std::byte* data, std::int64_t bytes) {
  if (!run_->options.copy_engines) return "copy engines are switched off";
  if (!windows_.contains(small_.get())) {
    ncclWindow_t signals = nullptr;
    run_->watchdog.guard(*line_, "register_memory", [&] {
      expect(ncclCommWindowRegister(comm_, small_.get(), static_cast<std::size_t>(small_bytes(size())), &signals,
                                    NCCL_WIN_COLL_SYMMETRIC),
             "ncclCommWindowRegister");
    });
    windows_.emplace(small_.get(), signals);
    no_signals_ = peers_.map_signals(signals, small_.get());
  }
  return no_signals_.empty() ? peers_.map(window, data, bytes) : no_signals_;
}

void NcclGroup::forget_memory() {
  HAWSER_CUDA_CHECK(cudaSetDevice(run_->ordinal));
  connect_pairs();
  std::vector<std::byte*> regions;
  for (const auto& [data, window] : windows_) {
    if (data != small_.get()) regions.push_back(data);
  }
  for (std::byte* data : regions) unregister_memory(data);
}

void NcclGroup::unregister_memory(std::byte* data) {
  const auto found = windows_.find(data);
  if (found == windows_.end()) return;
  HAWSER_CUDA_CHECK(cudaSetDevice(run_->ordinal));
  run_->watchdog.guard(*line_, "unregister_memory", [&] {
    expect(ncclCommWindowDeregister(comm_, static_cast<ncclWindow_t>(found->second)), "ncclCommWindowDeregister");
  });
  peers_.unmap(data);
  windows_.erase(found);
}

template <class Enqueue>
Group::Work NcclGroup::watched(CollectiveKind kind, std::int64_t bytes, Enqueue enqueue) {
  return [this, kind, bytes, enqueue = std::move(enqueue)](const CudaNative* native) {
    HAWSER_CHECK(native != nullptr, name(), " communicates between GPUs, but the stream is not on a GPU");
    run_->watchdog.follow(*line_, to_string(kind), bytes, stream_of(*native), [&] { enqueue(*native); });
  };
}

// For each peer p, brings `mine(p)`, whose `from` is the address in this member's memory that corresponds to the one in
// p's. Without a region to fetch from, p sends it, and this member sends `theirs(p)`.
template <class Mine, class Theirs>
void NcclGroup::bring(cudaStream_t stream, const PeerRegion* region, const Mine& mine, const Theirs& theirs) {
  if (region != nullptr) {
    std::vector<PeerCopy> copies;
    each_peer([&](int p) {
      PeerCopy copy = mine(p);
      copy.from = region->at(copy.from, p);
      copies.push_back(copy);
    });
    peers_.fetch(stream, copies);
    return;
  }
  grouped([&] {
    each_peer([&](int p) {
      const PeerCopy in = mine(p), out = theirs(p);
      if (in.bytes > 0) expect(ncclRecv(in.to, in.bytes, ncclInt8, p, comm_, stream), "ncclRecv");
      if (out.bytes > 0) expect(ncclSend(out.from, out.bytes, ncclInt8, p, comm_, stream), "ncclSend");
    });
  });
}

// recv (+)= the sum over members of this member's part, in member order.
void NcclGroup::reduce_parts(const CudaNative& native, const std::byte* send, const Parts& parts, Reduction reduction,
                             std::byte* recv, DType recv_dtype, bool accumulate, std::byte* workspace) {
  const ReduceSlots slots = reduce_slots(parts.part, parts.dtype, size(), DeviceKind::cuda);
  const std::int64_t element = size_of(parts.dtype), chunk = slots.chunk, chunks = ceil_div(parts.part, chunk);
  const int me = index();
  const auto from = [&](int member, std::int64_t c) { return send + (parts.begin(member) + c * chunk) * element; };
  const auto bytes = [&](int member, std::int64_t c) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(parts.count(member) - c * chunk, 0, chunk) * element);
  };
  cudaStream_t stream = stream_of(native), sums = sums_->stream;
  const PeerRegion* region = peers_.region(send, parts.total * element);
  if (region != nullptr) peers_.meet(stream);

  for (std::int64_t c = 0; c < chunks; ++c) {
    const auto set = static_cast<std::size_t>(c % 2);
    std::byte* slot = workspace + static_cast<std::int64_t>(set) * (size() - 1) * slots.slot;
    if (c >= 2) HAWSER_CUDA_CHECK(cudaStreamWaitEvent(stream, sums_->summed[set], 0));
    bring(
        stream, region,
        [&](int p) {
          return PeerCopy{.to = slot + (p < me ? p : p - 1) * slots.slot, .from = from(me, c), .bytes = bytes(me, c)};
        },
        [&](int p) { return PeerCopy{.from = from(p, c), .bytes = bytes(p, c)}; });
    HAWSER_CUDA_CHECK(cudaEventRecord(sums_->arrived[set], stream));
    HAWSER_CUDA_CHECK(cudaStreamWaitEvent(sums, sums_->arrived[set], 0));
    const MemberRuns runs{.own = from(me, c), .index = me, .count = size(), .others = slot, .stride = slots.slot};
    reduce_members_cuda(sums, native.sm_count, runs, parts.dtype, reduction,
                        static_cast<std::int64_t>(bytes(me, c)) / element, recv + c * chunk * size_of(recv_dtype),
                        recv_dtype, accumulate);
    HAWSER_CUDA_CHECK(cudaEventRecord(sums_->summed[set], sums));
  }
  if (region != nullptr) peers_.meet(stream);  // all members have fetched
  HAWSER_CUDA_CHECK(cudaStreamWaitEvent(stream, sums_->summed[static_cast<std::size_t>((chunks - 1) % 2)], 0));
}

// Every member receives all data and sums it: one transfer.
void NcclGroup::reduce_full(const CudaNative& native, const TensorView& data, Reduction reduction,
                            std::byte* workspace) {
  expect(
      ncclAllGather(data.raw(), workspace, static_cast<std::size_t>(data.bytes()), ncclInt8, comm_, stream_of(native)),
      "ncclAllGather");
  const MemberRuns runs{.own = workspace + index() * data.bytes(),
                        .index = index(),
                        .count = size(),
                        .others = workspace,
                        .stride = data.bytes(),
                        .own_place = true};
  reduce_members_cuda(native.stream, native.sm_count, runs, data.dtype(), reduction, data.elements(), data.raw(),
                      data.dtype(), /*accumulate=*/false);
}

// All-gathers the parts of `data`, each from the member that owns it.
void NcclGroup::gather_parts(const CudaNative& native, std::byte* data, const Parts& parts) {
  const std::int64_t element = size_of(parts.dtype);
  const auto at = [&](int m) { return data + parts.begin(m) * element; };
  const auto bytes = [&](int m) { return static_cast<std::size_t>(parts.count(m) * element); };
  const int me = index();
  if (parts.count(size() - 1) == parts.part) {
    expect(ncclAllGather(at(me), data, bytes(me), ncclInt8, comm_, stream_of(native)), "ncclAllGather");
    return;
  }
  const PeerRegion* region = peers_.region(data, parts.total * element);
  if (region != nullptr) peers_.meet(stream_of(native));
  bring(
      stream_of(native), region, [&](int p) { return PeerCopy{.to = at(p), .from = at(p), .bytes = bytes(p)}; },
      [&](int) { return PeerCopy{.from = at(me), .bytes = bytes(me)}; });
  if (region != nullptr) peers_.meet(stream_of(native));
}

Group::Work NcclGroup::all_gather_work(const TensorView& send, const TensorView& recv) {
  return watched(CollectiveKind::all_gather, send.bytes(), [this, send, recv](const CudaNative& native) {
    expect(ncclAllGather(send.raw(), recv.raw(), static_cast<std::size_t>(send.bytes()), ncclInt8, comm_,
                         stream_of(native)),
           "ncclAllGather");
  });
}

Group::Work NcclGroup::reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                                           const TensorView& workspace) {
  return watched(CollectiveKind::reduce_scatter, recv.elements() * size_of(send.dtype()),
                 [this, send, recv, accumulate, workspace](const CudaNative& native) {
                   const Parts parts{.total = send.elements(), .part = recv.elements(), .dtype = send.dtype()};
                   reduce_parts(native, send.raw(), parts, Reduction::sum, recv.raw(), recv.dtype(), accumulate,
                                workspace.raw());
                 });
}

Group::Work NcclGroup::all_reduce_work(const TensorView& data, Reduction reduction, const TensorView& workspace) {
  return watched(
      CollectiveKind::all_reduce, data.bytes(), [this, data, reduction, workspace](const CudaNative& native) {
        if (data.bytes() <= kGatherReduceBytes) {
          reduce_full(native, data, reduction, workspace.raw());
          return;
        }
        const Parts parts{.total = data.elements(), .part = ceil_div(data.elements(), size()), .dtype = data.dtype()};
        std::byte* mine = data.raw() + parts.begin(index()) * size_of(data.dtype());
        reduce_parts(native, data.raw(), parts, reduction, mine, data.dtype(), /*accumulate=*/false, workspace.raw());
        gather_parts(native, data.raw(), parts);
      });
}

Group::Work NcclGroup::all_to_all_work(const TensorView& send, const TensorView& recv) {
  return watched(CollectiveKind::all_to_all, send.bytes(), [this, send, recv](const CudaNative& native) {
    expect(ncclAlltoAll(send.raw(), recv.raw(), static_cast<std::size_t>(send.bytes() / size()), ncclInt8, comm_,
                        stream_of(native)),
           "ncclAlltoAll");
  });
}

Group::Work NcclGroup::all_to_all_v_work(const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                                         const TensorView& workspace) {
  return watched(CollectiveKind::all_to_all_v, send.rows.bytes(),
                 [this, send, recv, bound, workspace](const CudaNative& native) {
                   const PeerRegion *rows = peers_.region(send.rows.raw(), send.rows.bytes()),
                                    *offsets = peers_.region(send.offsets.raw(), send.offsets.bytes());
                   if (rows != nullptr && offsets != nullptr) {
                     fetch_counted_rows(native, *rows, *offsets, send, recv, bound);
                   } else {
                     send_counted_rows(native, send, recv, bound, workspace);
                   }
                 });
}

void NcclGroup::fetch_counted_rows(const CudaNative& native, const PeerRegion& rows, const PeerRegion& offsets,
                                   const CountedRows& send, const CountedRows& recv, std::int64_t bound) {
  const std::int64_t each = send.counts.elements() / size();
  std::vector<CountedSource> from(static_cast<std::size_t>(size()));
  const auto source = [&](const std::byte* of_rows, const std::byte* of_offsets) {
    return CountedSource{of_rows, reinterpret_cast<const std::int32_t*>(of_offsets) + index() * each};
  };
  from[static_cast<std::size_t>(index())] = source(send.rows.raw(), send.offsets.raw());
  each_peer([&](int p) {
    from[static_cast<std::size_t>(p)] = source(rows.at(send.rows.raw(), p), offsets.at(send.offsets.raw(), p));
  });
  cudaStream_t stream = stream_of(native);
  peers_.meet(stream);
  copy_counted_rows_cuda(native.stream, from, send.rows.size(0), recv, bound);
  peers_.meet(stream);  // all members have loaded
}

void NcclGroup::send_counted_rows(const CudaNative& native, const CountedRows& send, const CountedRows& recv,
                                  std::int64_t bound, const TensorView& workspace) {
  const std::int64_t slots = send.counts.elements(), row_bytes = send.rows.size(1) * size_of(send.rows.dtype());
  const std::int64_t chunk = counted_chunk(bound, slots, row_bytes), part = slots / size() * chunk * row_bytes;
  const auto bytes = static_cast<std::size_t>(part);
  std::byte *const there = workspace.raw(), *const here = there + size() * part;
  cudaStream_t stream = stream_of(native);
  for (std::int64_t first = 0; first < bound; first += chunk) {
    pack_counted_rows_cuda(native.stream, send, first, chunk, there);
    HAWSER_CUDA_CHECK(
        cudaMemcpyAsync(here + index() * part, there + index() * part, bytes, cudaMemcpyDeviceToDevice, stream));
    grouped([&] {
      each_peer([&](int p) {
        expect(ncclRecv(here + p * part, bytes, ncclInt8, p, comm_, stream), "ncclRecv");
        expect(ncclSend(there + p * part, bytes, ncclInt8, p, comm_, stream), "ncclSend");
      });
    });
    unpack_counted_rows_cuda(native.stream, here, first, chunk, recv);
  }
}

Group::Work NcclGroup::broadcast_work(const TensorView& data, int root) {
  return watched(CollectiveKind::broadcast, data.bytes(), [this, data, root](const CudaNative& native) {
    expect(ncclBroadcast(data.raw(), data.raw(), static_cast<std::size_t>(data.bytes()), ncclInt8, root, comm_,
                         stream_of(native)),
           "ncclBroadcast");
  });
}

Group::Work NcclGroup::send_work(const TensorView& data, int peer) {
  return watched(CollectiveKind::send, data.bytes(), [this, data, peer](const CudaNative& native) {
    expect(ncclSend(data.raw(), static_cast<std::size_t>(data.bytes()), ncclInt8, peer, comm_, stream_of(native)),
           "ncclSend");
  });
}

Group::Work NcclGroup::receive_work(const TensorView& data, int peer) {
  return watched(CollectiveKind::receive, data.bytes(), [this, data, peer](const CudaNative& native) {
    expect(ncclRecv(data.raw(), static_cast<std::size_t>(data.bytes()), ncclInt8, peer, comm_, stream_of(native)),
           "ncclRecv");
  });
}

Group::Work NcclGroup::exchange_work(const TensorView& send, int to, const TensorView& recv, int from) {
  return watched(CollectiveKind::exchange, send.bytes(), [this, send, to, recv, from](const CudaNative& native) {
    const auto bytes = static_cast<std::size_t>(send.bytes());
    if (const PeerRegion* region = peers_.region(send.raw(), send.bytes())) {
      peers_.meet(stream_of(native));
      peers_.fetch(stream_of(native), {{{.to = recv.raw(), .from = region->at(send.raw(), from), .bytes = bytes}}});
      return peers_.meet(stream_of(native));  // all members have fetched
    }
    grouped([&] {
      expect(ncclRecv(recv.raw(), bytes, ncclInt8, from, comm_, stream_of(native)), "ncclRecv");
      expect(ncclSend(send.raw(), bytes, ncclInt8, to, comm_, stream_of(native)), "ncclSend");
    });
  });
}

Group::Work NcclGroup::barrier_work() {
  return watched(CollectiveKind::barrier, 0, [this](const CudaNative& native) {
    expect(ncclAllGather(token(index()), token(0), kToken, ncclInt8, comm_, stream_of(native)), "ncclAllGather");
  });
}

}  // namespace hawser::comm

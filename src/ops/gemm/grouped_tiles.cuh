// `GroupTiles`: tile scheduler of CUTLASS's persistent GEMM kernels for groups of rows (grouped_gemm.h). It reads the
// offsets on the device, since the host does not know them: neither the grid nor the arguments depend on them. Clusters
// take turns over the tiles of all groups, so that unequal groups leave no SM idle before the last tiles. The kernel is
// in grouped_kernel.cuh.
//
// A cluster's tiles are number `cluster`, `cluster` + clusters, ... of all groups' tiles. Every warp that asks visits
// the groups in order and checks the offsets that it passes. It ends at the first wrong one; all offsets before are
// valid, so no tile is outside the tensors. Every warp reaches the last offset or a wrong one.
// Order of the tiles of a group: bands of kBandRows rows of C, in a band column by column. So the tiles that run at a
// time are about square, and their parts of A and B fit in the L2 cache.
#pragma once

#include "ops/gemm/grouped_cuda.cuh"
// After our headers: these turn warnings into errors.
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

namespace hawser::ops::cuda {

struct GroupTilesArguments {
  const std::int32_t* offsets = nullptr;  // [groups + 1]
  std::int32_t groups = 0;
  std::int32_t rows = 0;           // R
  bool skip_empty_groups = false;  // grouped_weight_gradient with accumulate
  CudaFault* fault = nullptr;
};

// kByRows: groups divide the rows of C (grouped_gemm). Otherwise they divide the sums: K are the rows, and each group
// has its own C (grouped_weight_gradient).
template <bool kByRows, class TileShape, class ClusterShape>
class GroupTiles {
  using Static = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;
  static constexpr std::int32_t kTileM = cute::size<0>(TileShape{}), kTileN = cute::size<1>(TileShape{}),
                                kTileK = cute::size<2>(TileShape{});
  static constexpr std::int32_t kClusterM = cute::size<0>(ClusterShape{}), kClusterN = cute::size<1>(ClusterShape{});
  static constexpr std::int32_t kBandRows = 2048;
  static_assert(kGroupRows % kTileK == 0 && (!kByRows || kGroupRows % kTileM == 0));

 public:
  static constexpr bool IsDynamicPersistent = false;
  using Pipeline = Static::Pipeline;
  using ThrottlePipeline = Static::ThrottlePipeline;
  using SharedStorage = Static::SharedStorage;
  using Arguments = GroupTilesArguments;

  struct Params : Arguments {
    std::int32_t tiles_m = 0;     // of C if !kByRows; otherwise of all rows, and the first tile outside C
    std::int32_t clusters_n = 0;  // clusters across the columns of C
    std::int32_t tiles_k = 0;     // of a sum, if kByRows
  };

  struct WorkTileInfo {
    std::int32_t M_idx = 0, N_idx = 0, L_idx = 0;
    std::int32_t k_begin = 0, k_count = 0;  // in tiles
    bool valid = false;
    CUTLASS_DEVICE bool is_valid() const { return valid; }
    CUTLASS_DEVICE std::int32_t reduction_subtile_idx() const { return -1; }
  };

  template <class ProblemShape, class... Rest>
  static Params to_underlying_arguments(const ProblemShape& shape, TileShape, ClusterShape,
                                        const cutlass::KernelHardwareInfo&, const Arguments& arguments, Rest...) {
    const auto [m, n, k, l] = shape;
    Params out{arguments};
    out.tiles_m = ceil_div(m, kTileM);
    out.clusters_n = ceil_div(n, kTileN * kClusterN);
    out.tiles_k = ceil_div(k, kTileK);
    return out;
  }

  template <class ProblemShape, class Sum, class... Rest>
  static std::size_t get_workspace_size(const Arguments&, const Rest&...) {
    return 0;
  }

  // Grid: kClusterM * clusters, kClusterN.
  CUTLASS_DEVICE explicit GroupTiles(const Params& params)
      : params_(params), tile_(static_cast<std::int32_t>(blockIdx.x) / kClusterM) {
    row_end_ = __ldg(params_.offsets);
    if (!check(row_end_, 0, 0)) group_ = params_.groups;
  }

  template <class Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) {
    return current();
  }
  template <class... Rest>
  CUTLASS_DEVICE auto fetch_next_work(const WorkTileInfo&, Rest&&...) {
    tile_ += static_cast<std::int32_t>(gridDim.x) / kClusterM;
    return cute::make_tuple(current(), true);
  }

  template <class ProblemShape, class Tile>
  CUTLASS_DEVICE static int get_work_k_tile_count(const WorkTileInfo& work, const ProblemShape&, Tile) {
    return work.k_count;
  }
  CUTLASS_DEVICE static std::uint32_t get_work_k_tile_start(const WorkTileInfo& work) {
    return static_cast<std::uint32_t>(work.k_begin);
  }
  CUTLASS_DEVICE static bool compute_epilogue(const WorkTileInfo&, const Params&) { return true; }
  template <class Sums>
  CUTLASS_DEVICE static void fixup(const Params&, const WorkTileInfo&, Sums&, std::uint32_t, std::uint32_t) {}
  CUTLASS_DEVICE static bool valid_warpgroup_in_work_tile(const WorkTileInfo&) { return true; }
  CUTLASS_DEVICE static bool requires_separate_reduction(const Params&) { return false; }

 private:
  CUTLASS_DEVICE bool check(std::int32_t value, std::int32_t before, std::int32_t at) const {
    const bool report = threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0;
    return check_offset(params_.fault, value, before, at, params_.rows, report);
  }

  CUTLASS_DEVICE WorkTileInfo current() {
    while (tile_ >= end_) {
      if (group_ + 1 >= params_.groups) return {};
      ++group_;
      begin_ = end_;
      row_begin_ = row_end_;
      row_end_ = __ldg(params_.offsets + group_ + 1);
      if (!check(row_end_, row_begin_, group_ + 1)) {
        group_ = params_.groups;
        return {};
      }
      tiles_m_ = kByRows ? (row_end_ - row_begin_) / kTileM : params_.tiles_m;
      if (!kByRows && params_.skip_empty_groups && row_end_ == row_begin_) tiles_m_ = 0;
      end_ = begin_ + (tiles_m_ + kClusterM - 1) / kClusterM * params_.clusters_n;
    }
    constexpr std::int32_t kBand = kBandRows / (kTileM * kClusterM);
    const std::int32_t clusters_m = (tiles_m_ + kClusterM - 1) / kClusterM, t = tile_ - begin_;
    const std::int32_t band = t / (kBand * params_.clusters_n), in_band = t - band * kBand * params_.clusters_n;
    const std::int32_t height = min(kBand, clusters_m - band * kBand);
    std::int32_t m = (band * kBand + in_band % height) * kClusterM + static_cast<std::int32_t>(blockIdx.x) % kClusterM;
    WorkTileInfo out{.valid = true};
    out.N_idx = in_band / height * kClusterN + static_cast<std::int32_t>(blockIdx.y);
    out.L_idx = group_;
    if constexpr (kByRows) {
      // A cluster's last tile may be of the next group: it is replaced by one outside C, which has no effect.
      m = m < tiles_m_ ? row_begin_ / kTileM + m : params_.tiles_m;
      out.k_count = params_.tiles_k;
    } else {
      out.k_begin = row_begin_ / kTileK;
      out.k_count = (row_end_ - row_begin_) / kTileK;
    }
    out.M_idx = m;
    return out;
  }

  const Params& params_;
  std::int32_t tile_;  // the next one of this cluster
  std::int32_t group_ = -1, row_begin_ = 0, row_end_ = 0, tiles_m_ = 0;
  std::int32_t begin_ = 0, end_ = 0;  // tiles of the group
};

}  // namespace hawser::ops::cuda

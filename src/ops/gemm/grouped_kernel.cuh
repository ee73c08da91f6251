// `run_groups`: a grouped GEMM on tensor cores, by CUTLASS's dense persistent kernel for Hopper with our tile scheduler
// (grouped_tiles.cuh).
//
// CUTLASS has grouped kernels too. They take pointers, strides and a shape for each group, which a kernel must write
// first, and each SM copies and changes tensor maps for every group it visits. They pad the tiles of each group to the
// height of their bands, and do not set C for a group without rows in grouped_weight_gradient. Here the groups are
// parts of one matrix that begin at multiples of the tile. So one tensor map for each operand is enough, the kernel for
// dense GEMMs does all the work (copies, tensor cores, epilogue), and only the order of its tiles depends on the
// groups. A kernel of our own would have the same structure, and only repeat what CUTLASS's does.
// The group is the kernel's batch dim L. B of grouped_gemm and C of grouped_weight_gradient have it; the other operands
// have one matrix for all groups, of which the kernel must see group 0 only.
#pragma once

#include "ops/gemm/grouped_tiles.cuh"
// After our headers: CUTLASS's turn warnings into errors. Its headers for all kernels compile for half a minute more.
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/builders/sm90_gmma_builder.inl>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8.hpp>
#include <cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp>

#include "ops/gemm/grouped_cuda.cuh"

namespace hawser::ops::cuda {

template <bool kByRows>
struct GroupTilesTag {};

}  // namespace hawser::ops::cuda

template <bool kByRows, class TileShape, class ClusterShape, std::uint32_t kStages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<hawser::ops::cuda::GroupTilesTag<kByRows>,
                                                            cutlass::arch::Sm90, TileShape, ClusterShape, kStages> {
  using Scheduler = hawser::ops::cuda::GroupTiles<kByRows, TileShape, ClusterShape>;
};

namespace hawser::ops::cuda {

// Operands without a group dim are read at group 0, and a sum without terms is 0.
template <class Base, bool kByRows, bool kAdds>
struct GroupMainloop : Base {
  template <class ProblemShape>
  CUTLASS_DEVICE auto load_init(const ProblemShape& shape, const typename Base::Params& params) const {
    const auto tensors = Base::load_init(shape, params);  // (tile rows, tile K, tiles, tiles of K, groups) of A and B
    const auto at_group_0 = [](const auto& tiles) {
      return cute::make_tensor(tiles.data(),
                               cute::make_layout(tiles.shape(), cute::replace<4>(tiles.stride(), cute::Int<0>{})));
    };
    if constexpr (kByRows) {
      return cute::make_tuple(at_group_0(cute::get<0>(tensors)), cute::get<1>(tensors));
    } else {
      return cute::make_tuple(at_group_0(cute::get<0>(tensors)), at_group_0(cute::get<1>(tensors)));
    }
  }
  template <class Pipeline, class State, class Sums, class... Rest>
  CUTLASS_DEVICE void mma(Pipeline pipeline, State state, Sums& sums, int k_tiles, Rest&&... rest) {
    // The base waits for a first tile of K, even if there is none. That of FP8 adds to `sums`.
    if (kAdds || k_tiles == 0) cute::clear(sums);
    if (k_tiles > 0) {
      Base::mma(pipeline, state, sums, k_tiles, rest...);
    }
  }
};

// C of grouped_gemm has no group dim.
template <class Base>
struct RowsEpilogue : Base {
  using Base::Base;

  template <class Pipeline, class State, class Shape, class Tile, class At, class... Rest>
  CUTLASS_DEVICE auto load(Pipeline pipeline, State state, Shape shape, Tile tile, At at, Rest&&... rest) {
    return Base::load(pipeline, state, shape, tile, at_group_0(at), rest...);
  }
  template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState, class Shape, class Tile,
            class At, class... Rest>
  CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state, StorePipeline store_pipeline,
                            StoreState store_state, Shape shape, Tile tile, At at, Rest&&... rest) {
    return Base::store(load_pipeline, load_state, store_pipeline, store_state, shape, tile, at_group_0(at), rest...);
  }

 private:
  template <class At>
  CUTLASS_DEVICE static auto at_group_0(const At& at) {
    return cute::make_coord(cute::get<0>(at), cute::get<1>(at), cute::get<2>(at), std::int32_t{0});
  }
};

// The scales of FP8 operands; b_stride 0: all groups have one.
struct GroupScales {
  const float* a = nullptr;  // null: 1
  const float* b = nullptr;
  std::int32_t b_stride = 0;
};

// Multiplies the sums by the scales of their group.
template <class Base>
struct ScaledEpilogue : Base {
  struct Arguments : Base::Arguments {
    GroupScales scales;
  };
  struct Params : Base::Params {
    GroupScales scales;
  };

  template <class Shape>
  static Params to_underlying_arguments(const Shape& shape, const Arguments& arguments, void* workspace) {
    return {Base::to_underlying_arguments(shape, arguments, workspace), arguments.scales};
  }

  CUTLASS_DEVICE ScaledEpilogue(const Params& params, typename Base::TensorStorage& shared)
      : Base(params, shared), scales_(params.scales) {}

  template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState, class Shape, class Tile,
            class At, class Sums, class... Rest>
  CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state, StorePipeline store_pipeline,
                            StoreState store_state, Shape shape, Tile tile, At at, Sums sums, Rest&&... rest) {
    const float a = scales_.a == nullptr ? 1.0f : __ldg(scales_.a);
    const float b =
        scales_.b == nullptr ? 1.0f : __ldg(scales_.b + static_cast<std::int32_t>(cute::get<3>(at)) * scales_.b_stride);
    const float factor = a * b;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(sums); ++i) sums(i) *= factor;
    return Base::store(load_pipeline, load_state, store_pipeline, store_state, shape, tile, at, sums, rest...);
  }

 private:
  const GroupScales& scales_;
};

// Tiles of C, and elements of K that are read at a time. Sums of FP8 have two accumulators, for which larger tiles have
// no registers.
template <class A>
struct GroupedTile {
  using Shape = cute::Shape<cute::_128, cute::_128, cute::_128>;
};
template <>
struct GroupedTile<cutlass::bfloat16_t> {
  using Shape = cute::Shape<cute::_128, cute::_256, cute::_64>;
};

// `GroupedKernel::Kernel`: tensor cores bound it (rates beside dense GEMMs: docs/performance.md). One block runs on
// each SM for the full call and takes its tiles from GroupTiles. One of its three warpgroups copies tiles of A and B to
// shared memory, in as many stages as fit; the other two have the sums of one tile of C in registers, half each, and
// write it. A block computes a sum completely, in order of K, so that the shapes and the rows of the group alone fix
// the order.
// Limits: compute capability 9.0; rows at multiples of 16 bytes; groups of a multiple of kGroupRows rows, so that no
// tile has rows of two groups.
// LayoutA: [M, K]; LayoutB: [K, N].
template <bool kByRows, class A, class B, class Out, class LayoutA, class LayoutB>
struct GroupedKernel {
  static constexpr bool kFp8 = sizeof(A) == 1;
  using TileShape = typename GroupedTile<A>::Shape;
  // Two SMs share tiles of A (1 x 2) or B (2 x 1). B's are larger; but groups of grouped_gemm may have an odd number of
  // tiles of rows.
  using ClusterShape =
      std::conditional_t<kByRows, cute::Shape<cute::_1, cute::_2, cute::_1>, cute::Shape<cute::_2, cute::_1, cute::_1>>;
  static constexpr int kAlign = 16 / sizeof(A), kAlignOut = 16 / sizeof(Out);

  using EpilogueBase = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Out, cutlass::layout::RowMajor, kAlignOut, Out,
      cutlass::layout::RowMajor, kAlignOut, cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
  using GroupEpilogue = std::conditional_t<kByRows, RowsEpilogue<EpilogueBase>, EpilogueBase>;
  using Epilogue = std::conditional_t<kFp8, ScaledEpilogue<GroupEpilogue>, GroupEpilogue>;
  using MainloopBase = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, LayoutA, kAlign, B, LayoutB, kAlign, float, TileShape,
      ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename EpilogueBase::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Mainloop = GroupMainloop<MainloopBase, kByRows, kFp8>;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, GroupTilesTag<kByRows>>;
};

// CUTLASS's stride of (rows, columns, group), or (columns, rows, group), of row-major matrices. A tensor map must have
// a stride of groups even if only group 0 is used.
template <class Stride>
Stride cutlass_stride(std::int64_t row, std::int64_t rows) {
  Stride out;
  if constexpr (cute::is_static<std::decay_t<decltype(cute::get<0>(out))>>::value) {
    cute::get<1>(out) = row;
  } else {
    cute::get<0>(out) = row;
  }
  cute::get<2>(out) = row * rows;
  return out;
}

template <bool kByRows, class A, class B, class Out, class LayoutA, class LayoutB>
void run_groups(const CudaNative& native, const GroupedProblem& p) {
  using Choice = GroupedKernel<kByRows, A, B, Out, LayoutA, LayoutB>;
  using Kernel = typename Choice::Kernel;
  typename Kernel::Arguments arguments;
  arguments.mode = cutlass::gemm::GemmUniversalMode::kBatched;
  arguments.problem_shape = {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k),
                             static_cast<int>(p.groups)};
  arguments.mainloop = {static_cast<const A*>(p.a), cutlass_stride<typename Kernel::StrideA>(p.lda, p.rows),
                        static_cast<const B*>(p.b),
                        cutlass_stride<typename Kernel::StrideB>(p.ldb, p.transpose_b ? p.n : p.k)};
  auto& epilogue = arguments.epilogue;
  epilogue.thread = {1.0f, p.accumulate ? 1.0f : 0.0f};
  epilogue.ptr_C = epilogue.ptr_D = static_cast<Out*>(p.c);
  epilogue.dC = epilogue.dD = cutlass_stride<typename Kernel::StrideC>(p.ldc, p.m);
  if constexpr (Choice::kFp8) epilogue.scales = {p.scale_a, p.scale_b, p.scale_b_each ? 1 : 0};
  arguments.hw_info.device_id = native.ordinal;
  arguments.hw_info.sm_count = native.sm_count;
  arguments.scheduler = {.offsets = p.offsets,
                         .groups = static_cast<std::int32_t>(p.groups),
                         .rows = static_cast<std::int32_t>(p.rows),
                         .skip_empty_groups = !kByRows && p.accumulate,
                         .fault = native.fault};
  const typename Kernel::Params params = Kernel::to_underlying_arguments(arguments, nullptr);

  constexpr auto kernel = &cutlass::device_kernel<Kernel>;
  constexpr unsigned kClusterM = cute::size<0>(typename Choice::ClusterShape{}),
                     kClusterN = cute::size<1>(typename Choice::ClusterShape{});
  HAWSER_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterM, kClusterN, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(kClusterM * (static_cast<unsigned>(native.sm_count) / (kClusterM * kClusterN)), kClusterN);
  launch.blockDim = dim3(Kernel::MaxThreadsPerBlock);
  launch.dynamicSmemBytes = Kernel::SharedStorageSize;
  launch.stream = stream_of(native);
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  HAWSER_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, params));
}

}  // namespace hawser::ops::cuda

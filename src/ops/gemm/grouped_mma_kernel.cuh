// `run_groups_with_mma`: a grouped GEMM on the tensor cores of any GPU from compute capability 8.0 on, by the main loop and
// epilogue of CUTLASS 2 with our tile scheduler (grouped_tiles.cuh). The kernel for Hopper, with its tensor memory copies
// and wider instructions, is in grouped_kernel.cuh.
#pragma once

#include "ops/gemm/grouped_tiles.cuh"
// After our headers: CUTLASS's turn warnings into errors.
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/threadblock/default_epilogue_tensor_op.h>
#include <cutlass/gemm/threadblock/default_mma.h>

#include "ops/gemm/grouped_cuda.cuh"

namespace hawser::ops::cuda {

// Types of a kernel. LayoutA: [M, K]; LayoutB: [K, N]. A tile of C has 128 x 128 elements, one warp a quarter of it. Three
// stages of A and B take 48 KiB of shared memory, so that two blocks run on an SM of any GPU.
template <bool kByRows, class A, class B, class Out, class LayoutA, class LayoutB>
struct MmaGroups {
  static constexpr bool kFp8 = sizeof(A) == 1, kRowsAreGroups = kByRows;
  static constexpr int kTileM = 128, kTileN = 128, kTileK = 64 / static_cast<int>(sizeof(A)), kStages = 3;
  static constexpr int kAlign = 16 / static_cast<int>(sizeof(A)), kAlignOut = 16 / static_cast<int>(sizeof(Out));
  using RowMajor = cutlass::layout::RowMajor;
  using Tile = cutlass::gemm::GemmShape<kTileM, kTileN, kTileK>;
  using ElementA = A;
  using ElementB = B;
  using ElementOut = Out;
  // OpMultiplyAdd: the sums of a few FP8 products go to float32 accumulators.
  using Mma = typename cutlass::gemm::threadblock::DefaultMma<
      A, LayoutA, kAlign, B, LayoutB, kAlign, float, RowMajor, cutlass::arch::OpClassTensorOp,
      std::conditional_t<kFp8, cutlass::arch::Sm89, cutlass::arch::Sm80>, Tile,
      cutlass::gemm::GemmShape<64, 64, kTileK>, cutlass::gemm::GemmShape<16, 8, kTileK / 2>, kStages,
      cutlass::arch::OpMultiplyAdd>::ThreadblockMma;
  using Output = cutlass::epilogue::thread::LinearCombination<Out, kAlignOut, float, float>;
  using Epilogue = typename cutlass::epilogue::threadblock::DefaultEpilogueTensorOp<Tile, typename Mma::Operator, 1,
                                                                                    Output, kAlignOut>::Epilogue;
  using Tiles = GroupTiles<kByRows, cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>,
                           cute::Shape<cute::_1, cute::_1, cute::_1>>;
  static constexpr int kThreads = 32 * Mma::WarpCount::kCount;

  union Shared {
    typename Mma::SharedStorage mma;
    typename Epilogue::SharedStorage epilogue;
  };
  struct Params {
    typename Tiles::Params tiles;
    typename Mma::IteratorA::Params a;
    typename Mma::IteratorB::Params b;
    typename Epilogue::OutputTileIterator::Params c;
    const A* a_data;
    const B* b_data;
    Out* c_data;
    int m, n, k;                     // m: of C if not by rows
    std::int64_t b_group, c_group;   // elements from one group to the next
    const float *scale_a, *scale_b;  // null: 1
    int scale_b_step;                // 0: all groups have one
    float beta;
  };
};

// A block takes its tiles from GroupTiles and computes each sum completely, in order of K, so that the shapes and the
// rows of the group alone fix the order.
template <class Groups>
__global__ void __launch_bounds__(Groups::kThreads)
    mma_groups_kernel(const __grid_constant__ typename Groups::Params p) {
  using Mma = typename Groups::Mma;
  using Epilogue = typename Groups::Epilogue;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<typename Groups::Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
  typename Groups::Tiles tiles(p.tiles);
  for (auto tile = tiles.initial_work_tile_info(0); tile.is_valid(); tile = cute::get<0>(tiles.fetch_next_work(tile))) {
    const int row = tile.M_idx * Groups::kTileM, column = tile.N_idx * Groups::kTileN,
              first_k = tile.k_begin * Groups::kTileK;
    const std::int64_t group = tile.L_idx;
    // CUTLASS begins with what is left of K after whole tiles. The rows of a group are whole tiles, R need not be.
    const int end_k = Groups::kRowsAreGroups ? p.k : first_k + tile.k_count * Groups::kTileK;
    typename Mma::IteratorA a(p.a, const_cast<typename Groups::ElementA*>(p.a_data), {p.m, end_k}, thread,
                              {row, first_k});
    typename Mma::IteratorB b(p.b, const_cast<typename Groups::ElementB*>(p.b_data) + group * p.b_group, {end_k, p.n},
                              thread, {first_k, column});
    typename Mma::FragmentC sums;
    sums.clear();
    if (tile.k_count > 0) {
      Mma mma(shared.mma, thread, warp, lane);
      mma(tile.k_count, sums, a, b, sums);
    }
    __syncthreads();
    const float scale_a = p.scale_a == nullptr ? 1.0f : __ldg(p.scale_a);
    const float scale_b = p.scale_b == nullptr ? 1.0f : __ldg(p.scale_b + group * p.scale_b_step);
    const typename Groups::Output output({scale_a * scale_b, p.beta});
    typename Epilogue::OutputTileIterator from(p.c, p.c_data + group * p.c_group, {p.m, p.n}, thread, {row, column}),
        to(p.c, p.c_data + group * p.c_group, {p.m, p.n}, thread, {row, column});
    Epilogue epilogue(shared.epilogue, thread, warp, lane);
    epilogue(output, to, sums, from);
    __syncthreads();  // shared memory is free again
  }
}

template <bool kByRows, class A, class B, class Out, class LayoutA, class LayoutB>
void run_groups_with_mma(const CudaNative& native, const GroupedProblem& p) {
  using Groups = MmaGroups<kByRows, A, B, Out, LayoutA, LayoutB>;
  typename Groups::Params params{};
  static_cast<GroupTilesArguments&>(params.tiles) = {.offsets = p.offsets,
                                                     .groups = static_cast<std::int32_t>(p.groups),
                                                     .rows = static_cast<std::int32_t>(p.rows),
                                                     .skip_empty_groups = !kByRows && p.accumulate,
                                                     .fault = native.fault};
  params.tiles.tiles_m = static_cast<std::int32_t>(ceil_div(p.m, Groups::kTileM));
  params.tiles.clusters_n = static_cast<std::int32_t>(ceil_div(p.n, Groups::kTileN));
  params.tiles.tiles_k = static_cast<std::int32_t>(ceil_div(p.k, Groups::kTileK));
  params.a = typename Groups::Mma::IteratorA::Params(LayoutA(p.lda));
  params.b = typename Groups::Mma::IteratorB::Params(LayoutB(p.ldb));
  params.c = typename Groups::Epilogue::OutputTileIterator::Params(cutlass::layout::RowMajor(p.ldc));
  params.a_data = static_cast<const A*>(p.a);
  params.b_data = static_cast<const B*>(p.b);
  params.c_data = static_cast<Out*>(p.c);
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.b_group = kByRows ? p.k * p.n : 0;
  params.c_group = kByRows ? 0 : p.m * p.ldc;
  params.scale_a = p.scale_a;
  params.scale_b = p.scale_b;
  params.scale_b_step = p.scale_b_each ? 1 : 0;
  params.beta = p.accumulate ? 1.0f : 0.0f;

  constexpr auto kernel = &mma_groups_kernel<Groups>;
  constexpr std::size_t kBytes = sizeof(typename Groups::Shared);
  allow_shared_memory(native, kernel, kBytes);
  int resident = 1;
  HAWSER_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, Groups::kThreads, kBytes));
  const auto blocks = static_cast<unsigned>(native.sm_count * std::max(resident, 1));
  kernel<<<blocks, Groups::kThreads, kBytes, stream_of(native)>>>(params);
}

}  // namespace hawser::ops::cuda

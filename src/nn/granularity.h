// `Granularity`: which elements of a flat share a value of an optimizer's state, or a scale of the weights.
//
// Example: q [2, 4] and k [1, 4], fused in one parameter [3, 4], have 12 values of granularity element, 6 of blocks of
// 2, 3 of rows, 8 of columns (4 of q, 4 of k), 2 of matrices and 1 of GEMM matrices.
//
// A tensor here is a segment's global tensor, and a matrix is the last two dims of one: q, k and v of a fused parameter
// are three, and so are three experts in one tensor. A tensor of one dim [n] counts as a matrix [1, n].
//
// Of a tensor with ranges of rows (Segment::range) each range counts as a tensor for row, column, matrix and
// gemm_matrix, on every mesh: q, k and v of a fused QKV. Tensor ranks with copies of key-value heads have those of q in
// a flat and those of k and v in another, and no value is of both. Such values have the name of their range,
// "NAME[first row:end]", those of element and block the tensor's name. The value of a gemm_matrix is one, and each
// range in it has it under its own name.
//
//   element      one value for each element
//   block        one for each `block` consecutive elements of a tensor; the last block of a tensor may be shorter
//   row          one for each row of each matrix       [..., out]
//   column       one for each column of each matrix    [..., in]
//   matrix       one for each matrix                   [...], or [1]
//   gemm_matrix  one for each matrix that GEMMs read   [Param::gemm_matrices()]
//
// Values of element and block are sharded like the flat. FlatSpec::grain must be a multiple of `block`, so that no
// shard cuts a block. Of the other four, each rank has all values of a flat's segments, so that the update of a shard
// can read them; ranks that have the same value must compute the same bits.
//
// Of a sliced tensor a rank has the values of its slice: its own rows, if rows are sliced, but the value of a complete
// row, if columns are. Checkpoints have the values of the global tensor, under its name; so what a mesh has saved, any
// other loads, whichever tensors it has together in one parameter and whatever it slices.
//
// Blocks are those of the global tensor. No slice may cut one, and in a parameter each segment begins with a block: so
// does each range of a fused QKV. The rows of the tensor, its last dim, are whole blocks, and so are those of the
// slice; or dim 0 is sliced, and the slice begins and ends at a multiple of `block` elements, or at the end of the
// tensor. value_count() throws InternalError otherwise, before a step::ModelState with such slots reserves memory.
//
// gemm_matrix depends on the mesh, which decides what is one parameter: an optimizer that is to train equally on every
// mesh has matrix. Values are in float32 or bf16. Checkpoints have the value once for each tensor of the matrix, as
// [1]. If the mesh that saved had these tensors in different parameters, loading takes the largest of their values: of
// scales that follow from amaxes, it is that of all the tensors together. The scales of frozen weights, which are a
// part of their values, must be equal (engine::load).
#pragma once

#include <vector>

#include "nn/flat.h"
#include "tensor/named_state.h"

namespace hawser::nn {

struct Granularity {
  enum class Kind { element, block, row, column, matrix, gemm_matrix };
  Kind kind = Kind::element;
  std::int64_t block = 0;  // of Kind::block: its elements

  bool sharded() const { return kind == Kind::element || kind == Kind::block; }
  bool operator==(const Granularity&) const = default;
};

// The scales of a flat with FlatSpec::scaled.
constexpr Granularity kScaleGranularity{.kind = Granularity::Kind::gemm_matrix};

// Of Kind::block: which block of the flat is cut, with the words of value_count()'s error; "": none.
std::string cut_block(const Flat& flat, const Granularity& granularity);

// Number of values that a rank has for `count` elements of the flat, its shard: of block, a part of a multiple of
// FlatSpec::grain; of row to gemm_matrix, all of the flat, whatever `count` is.
std::int64_t value_count(const Flat& flat, const Granularity& granularity, std::int64_t count);
// The same for all tensors of the flat, each complete and without gaps: what a checkpoint stores.
std::int64_t saved_count(const Flat& flat, const Granularity& granularity);

// row, column, matrix: values [first, first + shape.elements()) belong to a segment, and are the box at `offset`
// of those of the tensor (or range), which have shape `global`. Segments that have the same box of the same tensor
// share values. `sum_first`: the place of the tensor's values in a list of those of all tensors of the
// flat, `sum_count` long, which is the same on all ranks (optim::Phase::sums).
struct SegmentValues {
  int param = 0, segment = 0;
  std::int64_t first = 0;
  Shape shape, global, offset;
  std::int64_t sum_first = 0;
};
std::vector<SegmentValues> segment_values(const Flat& flat, const Granularity& granularity);
std::int64_t sum_count(const Flat& flat, const Granularity& granularity);

// The values of the shard [begin, begin + count) of the flat as boxes of named tensors, called prefix + name. Of what
// several ranks have, `everywhere` returns all of it, to load; otherwise that which this rank saves. Of a packed flat
// (FlatSpec::packed), with Granularity::Kind::element, the values are its blocks, and so are those of the tensors:
// [rows, columns / kNf4Block]. With Kind::block, the values of a tensor whose rows are whole blocks are [rows, columns
// / block], and otherwise a list [blocks]. With Kind::gemm_matrix, the boxes of several tensors may have one view.
// Earlier versions saved these under the parameter's name, or the tensor's if it has ranges: NamedState::former_names.
// Of row to matrix, values of ranges have no such name.
std::vector<NamedState> value_states(const Flat& flat, const Granularity& granularity, std::int64_t begin,
                                     std::int64_t count, const TensorView& values, const std::string& prefix,
                                     bool everywhere);

}  // namespace hawser::nn

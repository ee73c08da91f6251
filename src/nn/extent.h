// `Extent`: which elements of a flat share a value of an optimizer's state, or a scale of the weights.
//
// A matrix here is the last two dims of a segment's global tensor: q, k and v of a fused parameter are three, and so
// are three experts in one tensor. A tensor of one dim [n] counts as a matrix [1, n].
//
//   element    one value for each element                               sharded like the flat
//   block      one for each `block` consecutive elements of a           sharded like the flat; FlatSpec::grain must be a
//              parameter; the last block of a parameter may be shorter  multiple of `block`, so that no shard cuts one
//   row        one for each row of each matrix       [..., out]         all values of a flat's segments on each rank, so
//   column     one for each column of each matrix    [..., in]          that any update of a shard can read them. A rank
//   matrix     one for each matrix                   [...], or [1]      must compute the same bits as all others that
//   tile       one for each tile of a parameter of rank 2               have the same value
//   parameter  one for each parameter                [1]
//   part       one for each of Param::parts()        [parts]
//
// Of a sliced tensor a rank has the values of its slice: its own rows, if rows are sliced, but the value of a complete
// row, if columns are. Checkpoints have the values of the global tensor: those of element, row, column and matrix under
// the segment's name, the others under the parameter's; but each of Param::matrices [1] under the name of the segment that
// it begins with, so that other ranks may have other parts together.
#pragma once

#include <vector>

#include "nn/flat.h"
#include "tensor/named_state.h"

namespace hawser::nn {

struct Extent {
  enum class Kind { element, block, row, column, matrix, tile, parameter, part };
  Kind kind = Kind::element;
  std::int64_t block = 0;  // block: elements; tile: columns, and rows unless `rows` is given
  std::int64_t rows = 0;   // tile: its rows, if it is not square

  std::int64_t tile_rows() const { return rows > 0 ? rows : block; }
  bool sharded() const { return kind == Kind::element || kind == Kind::block; }
  bool operator==(const Extent&) const = default;
};

// The extent of FlatSpec::scaling; not for Scaling::none.
Extent scale_extent(Scaling scaling);

// Number of values that a rank has for `count` elements of the flat, its shard: of block, a part of a multiple of
// FlatSpec::grain; of row to part, all of the flat, whatever `count` is.
std::int64_t extent_count(const Flat& flat, const Extent& extent, std::int64_t count);
// The same for all tensors of the flat, each complete and without gaps: what a checkpoint stores.
std::int64_t saved_count(const Flat& flat, const Extent& extent);

// tile, parameter, part: the values of one parameter.
Shape extent_shape(const Param& param, const Extent& extent);

// row, column, matrix: values [first, first + shape.elements()) belong to a segment, and are the box at `offset` of
// those of the tensor, which have shape `global`. Segments that have the same box of the same tensor share values.
// `sum_first`: the place of the tensor's values in a list of those of all tensors of the flat, `sum_count` long, which
// is the same on all ranks (optim::Phase::sums).
struct ExtentPart {
  int param = 0, segment = 0;
  std::int64_t first = 0;
  Shape shape, global, offset;
  std::int64_t sum_first = 0;
};
std::vector<ExtentPart> extent_parts(const Flat& flat, const Extent& extent);
std::int64_t sum_count(const Flat& flat, const Extent& extent);

// The values of the shard [begin, begin + count) of the flat as boxes of named tensors, called prefix + name. Of what
// several ranks have, `everywhere` returns all of it, to load; otherwise that which this rank saves. Of a packed flat
// (FlatSpec::packed), with Extent::Kind::element, the values are its blocks, and so are those of the tensors: [rows,
// columns / kNf4Block]. Throws InternalError if a slice cuts a block or tile.
std::vector<NamedState> extent_states(const Flat& flat, const Extent& extent, std::int64_t begin, std::int64_t count,
                                      const TensorView& values, const std::string& prefix, bool everywhere);

}  // namespace hawser::nn

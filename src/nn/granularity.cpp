#include "nn/granularity.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/units.h"
#include "nn/segment_ranges.h"

namespace hawser::nn {

namespace {

using Kind = Granularity::Kind;

Shape zeros_like(const Shape& shape) {
  Shape zeros = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) zeros[dim] = 0;
  return zeros;
}

// The dims of a tensor along which values differ: not of element and block. [n] counts as [1, n].
std::vector<int> kept_dims(int rank, Kind kind) {
  std::vector<int> dims(static_cast<std::size_t>(std::max(rank, 2)));
  std::iota(dims.begin(), dims.end(), std::min(0, rank - 2));  // a missing dim has a negative number
  if (kind == Kind::column || kind == Kind::matrix) dims.erase(dims.end() - 2);
  if (kind == Kind::row || kind == Kind::matrix) dims.pop_back();
  return dims;
}

// One value for each row, column or matrix of a tensor.
Shape values_shape(const Shape& tensor, const Granularity& granularity) {
  Shape shape;
  for (const int dim : kept_dims(tensor.rank(), granularity.kind)) {
    shape.push_back(dim < 0 ? 1 : tensor[dim]);
  }
  if (shape.rank() == 0) shape.push_back(1);
  return shape;
}

// What values of row to gemm_matrix belong to: the tensor's name, and the first row of the range.
using Range = std::pair<std::string_view, std::int64_t>;
Range range_of(const Segment& segment) {
  return {segment.name, segment.range ? segment.range->begin : 0};
}

// Of row and column, the values of the rows of padding: all tensor ranks have as many.
std::int64_t padding_values(const Param& param, Kind kind) {
  return kind == (param.shape.rank() == 1 ? Kind::column : Kind::row) ? param.padding : 0;
}

std::int64_t row_elements(const Param& param) {
  return param.elements() / std::max<std::int64_t>(1, param.shape[0]);
}

// Elements of one index of a dim.
std::int64_t inner_elements(const Shape& shape, int dim) {
  std::int64_t inner = 1;
  for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  return inner;
}

bool has_rows_of_blocks(const Shape& tensor, std::int64_t block) {
  return tensor[tensor.rank() - 1] % block == 0;
}

std::string slice_text(const std::string& name, const Slice& slice, const Shape& of) {
  return cat(name, ": the slice [", slice.begin, ", ", slice.begin + slice.size, ") of dim ", slice.dim, " of ",
             of.text());
}

// Which block of the parameter is cut; "": none.
std::string cut_block_of(const Param& param, std::int64_t block) {
  for (const Segment& segment : param.segments) {
    const std::int64_t at = segment.row * row_elements(param);
    if (at % block != 0) {
      return cat(segment.name, ": begins at element ", at, " of ", param.name, ", inside of a block of ", block,
                 " that shares a value");
    }
    const Shape& global = segment.global;
    if (!segment.slice || segment.slice->size == global[segment.slice->dim]) continue;
    const auto [dim, begin, size] = *segment.slice;
    bool uncut = false;
    if (has_rows_of_blocks(global, block)) {
      uncut = dim < global.rank() - 1 || (begin % block == 0 && size % block == 0);
    } else if (dim == 0) {
      const std::int64_t inner = inner_elements(global, 0), end = begin + size;
      uncut = begin * inner % block == 0 && (end * inner % block == 0 || end == global[0]);
    }
    if (!uncut) {
      return cat(slice_text(segment.name, *segment.slice, global), " cuts a block of ", block, " that shares a value");
    }
  }
  return "";
}

void expect_no_cut_block(const Param& param, std::int64_t block) {
  const std::string cut = cut_block_of(param, block);
  HAWSER_CHECK(cut.empty(), cut);
}

// The tensor and slice of a segment, whose elements are blocks of `block`.
Segment in_blocks(Segment segment, std::int64_t block) {
  if (block == 1) return segment;
  Shape& global = segment.global;
  std::optional<Slice>& slice = segment.slice;
  if (slice && slice->size == global[slice->dim]) slice = {};
  if (has_rows_of_blocks(global, block)) {
    const int last = global.rank() - 1;
    global[last] /= block;
    if (slice && slice->dim == last) slice->begin /= block, slice->size /= block;
    return segment;
  }
  const std::int64_t inner = inner_elements(global, 0);
  if (slice)
    slice = Slice{.dim = 0, .begin = slice->begin * inner / block, .size = ceil_div(slice->size * inner, block)};
  global = {ceil_div(global.elements(), block)};
  return segment;
}

// The GEMM matrix of a parameter that a segment is in.
std::int64_t gemm_matrix_of(const Param& param, const Segment& segment) {
  const std::int64_t rows = std::max<std::int64_t>(1, param.shape[0] / param.gemm_matrices()),
                     part = segment.row / rows;
  HAWSER_CHECK(param.matrices == 0 || segment.row + segment.rows <= (part + 1) * rows, segment.name,
               ": in two GEMM matrices of ", param.name);
  return param.matrices == 0 ? 0 : part;
}

class Lister {
 public:
  Lister(const Flat& flat, const Granularity& granularity, std::int64_t begin, std::int64_t count,
         const TensorView& values, const std::string& prefix, bool everywhere)
      : flat_(flat),
        granularity_(granularity),
        begin_(begin),
        count_(count),
        values_(values.reshape({values.elements()})),
        prefix_(prefix),
        everywhere_(everywhere) {}

  std::vector<NamedState> list() {
    if (granularity_.sharded()) {
      blocks();
    } else if (granularity_.kind == Kind::gemm_matrix) {
      std::int64_t at = 0;
      for (int p = 0; p < static_cast<int>(flat_.params().size()); ++p) {
        const std::int64_t own = param(p).gemm_matrices();
        parameter(p, values_.rows(at, own));
        at += own;
      }
    } else {
      parts();
    }
    return std::move(states_);
  }

 private:
  NamedState& state(const std::string& name, const Shape& shape) {
    const auto [place, is_new] = places_.emplace(name, states_.size());
    if (is_new) states_.push_back({.name = prefix_ + name, .shape = shape, .dtype = values_.dtype(), .boxes = {}});
    return states_[place->second];
  }
  const Param& param(int p) const { return flat_.params()[static_cast<std::size_t>(p)]; }
  bool holds(std::int64_t element) const { return element >= begin_ && element < begin_ + count_; }
  std::int64_t start_of(int p, const Segment& segment) const {
    return flat_.offset(p) + segment.row * row_elements(param(p));
  }

  // Of element and block: values are elements, blocks of a packed dtype, or one for each block.
  void blocks() {
    const std::int64_t block =
        granularity_.kind == Kind::block ? granularity_.block : values_per_element(values_.dtype());
    for (const Param& of : flat_.params()) expect_no_cut_block(of, block);
    for (SegmentRange piece : segment_ranges(flat_, begin_, count_)) {
      const Segment segment = in_blocks(segment_of(flat_, piece), block);
      piece.first /= block, piece.at /= block, piece.count = ceil_div(piece.count, block);
      const std::vector<Box> boxes = global_boxes(segment, piece, values_.rows(piece.at, piece.count));
      std::vector<Box>& all = state(segment.name, segment.global).boxes;
      all.insert(all.end(), boxes.begin(), boxes.end());
    }
  }

  void parameter(int p, const TensorView& values) {
    const Param& of = param(p);
    const Segment& first = of.segments.front();
    const bool saves = holds(flat_.offset(p)) && (!is_sliced(first) || range_slice(first)->begin == 0);
    const Segment* begin = nullptr;  // of the GEMM matrix
    for (const Segment& segment : of.segments) {
      const std::int64_t matrix = gemm_matrix_of(of, segment);
      if (begin == nullptr || matrix != gemm_matrix_of(of, *begin)) begin = &segment;
      const std::string name = range_name(segment);
      NamedState& to = state(name, {1});
      to.former_names.clear();
      for (const std::string& former : {of.matrices > 0 ? begin->name : of.name, segment.name}) {
        const bool known = !to.former_names.empty() && to.former_names.back() == prefix_ + former;
        if (former != name && !known) to.former_names.push_back(prefix_ + former);
      }
      if (!everywhere_ && !saves) continue;
      const TensorView value = values.rows(matrix, 1);
      // A tensor may be several slices in one GEMM matrix.
      HAWSER_CHECK(to.boxes.empty() || to.boxes.front().view.raw() == value.raw(), segment.name,
                   ": in two parameters, with a value each of ", prefix_);
      if (to.boxes.empty()) to.boxes.push_back({.offset = {0}, .extent = {1}, .view = value});
    }
  }

  void parts() {
    std::set<std::int64_t> done;  // shared values
    for (const SegmentValues& part : segment_values(flat_, granularity_)) {
      const Segment& segment = param(part.param).segments[static_cast<std::size_t>(part.segment)];
      NamedState& to = state(range_name(segment), part.global);
      if (!done.insert(part.first).second) continue;
      const bool own_box = !is_sliced(segment) || range_slice(segment)->begin == 0 || !(part.shape == part.global);
      if (!everywhere_ && !(own_box && holds(start_of(part.param, segment)))) continue;
      to.boxes.push_back(
          {.offset = part.offset, .extent = part.shape, .view = values_.rows(part.first, part.shape.elements())});
    }
  }

  const Flat& flat_;
  const Granularity& granularity_;
  std::int64_t begin_, count_;
  TensorView values_;
  const std::string& prefix_;
  bool everywhere_;
  std::vector<NamedState> states_;
  std::unordered_map<std::string, std::size_t> places_;  // of names in `states_`
};

}  // namespace

std::string cut_block(const Flat& flat, const Granularity& granularity) {
  if (granularity.kind != Kind::block) return "";
  for (const Param& param : flat.params()) {
    if (std::string cut = cut_block_of(param, granularity.block); !cut.empty()) return cut;
  }
  return "";
}

std::vector<SegmentValues> segment_values(const Flat& flat, const Granularity& granularity) {
  HAWSER_CHECK(!granularity.sharded() && granularity.kind != Kind::gemm_matrix, flat.name(),
               ": values of another granularity than row, column or matrix");
  std::vector<SegmentValues> parts;
  std::map<Range, std::vector<std::size_t>> known;  // earlier parts of the same tensor
  std::int64_t first = 0, sum_first = 0;
  for (std::size_t p = 0; p < flat.params().size(); ++p) {
    const Param& param = flat.params()[p];
    for (std::size_t s = 0; s < param.segments.size(); ++s) {
      const Segment& segment = param.segments[s];
      const std::optional<Slice> slice = range_slice(segment);
      const int rank = segment.global.rank();
      const std::vector<int> dims = kept_dims(rank, granularity.kind);
      SegmentValues part{.param = static_cast<int>(p),
                         .segment = static_cast<int>(s),
                         .first = first,
                         .shape = values_shape(segment_shape(segment), granularity),
                         .global = values_shape(range_shape(segment), granularity),
                         .sum_first = sum_first};
      part.offset = zeros_like(part.shape);
      for (std::size_t d = 0; d < dims.size(); ++d) {
        if (slice && dims[d] == slice->dim) part.offset[static_cast<int>(d)] = slice->begin;
      }
      bool shared = false;
      std::vector<std::size_t>& others = known[range_of(segment)];
      for (const std::size_t i : others) {
        const SegmentValues& other = parts[i];
        part.sum_first = other.sum_first;
        if (!(other.shape == part.shape && other.offset == part.offset)) continue;
        shared = true;
        part.first = other.first;
      }
      if (!shared) first += part.shape.elements();
      if (others.empty()) sum_first += part.global.elements();
      others.push_back(parts.size());
      parts.push_back(part);
    }
    first += padding_values(param, granularity.kind);
  }
  return parts;
}

std::int64_t sum_count(const Flat& flat, const Granularity& granularity) {
  std::int64_t count = 0;
  for (const SegmentValues& part : segment_values(flat, granularity)) {
    count = std::max(count, part.sum_first + part.global.elements());
  }
  return count;
}

std::int64_t value_count(const Flat& flat, const Granularity& granularity, std::int64_t count) {
  switch (granularity.kind) {
    case Kind::element:
      return count;
    case Kind::block:
      HAWSER_CHECK(granularity.block > 0 && flat.spec().grain % granularity.block == 0, flat.name(),
                   ": values for blocks of ", granularity.block, " elements in shards of multiples of ",
                   flat.spec().grain);
      for (const Param& param : flat.params()) expect_no_cut_block(param, granularity.block);
      return count / granularity.block;
    case Kind::gemm_matrix: {
      std::int64_t all = 0;
      for (const Param& param : flat.params()) all += param.gemm_matrices();
      return all;
    }
    default: {
      std::int64_t all = 0;
      for (const SegmentValues& part : segment_values(flat, granularity)) {
        const std::int64_t padding =
            padding_values(flat.params()[static_cast<std::size_t>(part.param)], granularity.kind);
        all = std::max(all, part.first + part.shape.elements() + padding);
      }
      return all;
    }
  }
}

std::int64_t saved_count(const Flat& flat, const Granularity& granularity) {
  if (!granularity.sharded() && granularity.kind != Kind::gemm_matrix) return sum_count(flat, granularity);
  std::int64_t all = 0;
  std::set<Range> known;  // a tensor may be several segments
  for (const Param& param : flat.params()) {
    for (const Segment& segment : param.segments) {
      if (!known.insert(range_of(segment)).second) continue;
      const std::int64_t block = granularity.kind == Kind::block ? granularity.block : 1;
      all += granularity.kind == Kind::gemm_matrix ? 1 : ceil_div(range_shape(segment).elements(), block);
    }
  }
  return all;
}

std::vector<NamedState> value_states(const Flat& flat, const Granularity& granularity, std::int64_t begin,
                                     std::int64_t count, const TensorView& values, const std::string& prefix,
                                     bool everywhere) {
  const std::int64_t expected = value_count(flat, granularity, count) / values_per_element(values.dtype());
  HAWSER_CHECK(values.dense() && values.elements() == expected, flat.name(), ": ", expected, " values in ",
               values.text());
  return Lister(flat, granularity, begin, count, values, prefix, everywhere).list();
}

}  // namespace hawser::nn

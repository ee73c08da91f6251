#include "nn/extent.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/units.h"
#include "nn/flat_pieces.h"

namespace hawser::nn {

namespace {

using Kind = Extent::Kind;

Shape zeros_like(const Shape& shape) {
  Shape zeros = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) zeros[dim] = 0;
  return zeros;
}

// The dims of a tensor of which row, column or matrix keep one value for each index; [n] counts as [1, n].
std::vector<int> kept_dims(int rank, Kind kind) {
  std::vector<int> dims(static_cast<std::size_t>(std::max(rank, 2)));
  std::iota(dims.begin(), dims.end(), std::min(0, rank - 2));  // a missing dim has a negative number
  if (kind != Kind::row) dims.erase(dims.end() - 2);
  if (kind != Kind::column) dims.pop_back();
  return dims;
}

Shape shape_of(const Shape& tensor, const std::vector<int>& dims) {
  Shape shape;
  for (const int dim : dims) shape.push_back(dim < 0 ? 1 : tensor[dim]);
  if (dims.empty()) shape.push_back(1);
  return shape;
}

bool is_sliced(const Segment& segment) {
  return segment.slice.extent > 0 && segment.slice.extent < segment.global[segment.slice.dim];
}

bool is_sliced(const Param& param) {
  return std::ranges::any_of(param.segments, [](const Segment& segment) { return is_sliced(segment); });
}

// The segments of a parameter, whose global tensors are together a matrix [rows, columns] or a list of elements.
struct GlobalParam {
  std::vector<std::int64_t> row, element;  // by segment: where its global tensor begins
  std::int64_t rows = 0, elements = 0;
};

GlobalParam global_of(const Param& param) {
  GlobalParam global;
  for (const Segment& segment : param.segments) {
    global.row.push_back(global.rows);
    global.element.push_back(global.elements);
    const int rank = segment.global.rank();
    global.rows += rank == 0 ? 1 : segment.global.elements() / std::max<std::int64_t>(1, segment.global[rank - 1]);
    global.elements += segment.global.elements();
  }
  return global;
}

const Segment& segment_at(const Param& param, std::int64_t row) {
  const auto found = std::ranges::find(param.segments, row, &Segment::row);
  HAWSER_CHECK(found != param.segments.end(), param.name, ": no segment begins at row ", row);
  return *found;
}

class Lister {
 public:
  Lister(const Flat& flat, const Extent& extent, std::int64_t begin, std::int64_t count, const TensorView& values,
         const std::string& prefix, bool everywhere)
      : flat_(flat),
        extent_(extent),
        begin_(begin),
        count_(count),
        values_(values.reshape({values.elements()})),
        prefix_(prefix),
        everywhere_(everywhere) {}

  std::vector<NamedState> list() {
    if (extent_.kind == Kind::element) {
      elements();
    } else if (extent_.sharded()) {
      blocks();
    } else if (extent_.kind == Kind::tile || extent_.kind == Kind::parameter || extent_.kind == Kind::part) {
      for (int p = 0; p < static_cast<int>(flat_.params().size()); ++p) parameter(p);
    } else {
      parts();
    }
    return std::move(states_);
  }

 private:
  NamedState& state(const std::string& name, const Shape& shape) {
    const auto found = std::ranges::find(states_, prefix_ + name, &NamedState::name);
    if (found != states_.end()) return *found;
    states_.push_back({.name = prefix_ + name, .shape = shape, .dtype = values_.dtype(), .boxes = {}});
    return states_.back();
  }
  const Param& param(int p) const { return flat_.params()[static_cast<std::size_t>(p)]; }
  bool holds(std::int64_t element) const { return element >= begin_ && element < begin_ + count_; }
  std::int64_t start_of(int p, const Segment& segment) const {
    return flat_.offset(p) + segment.row * (param(p).elements() / std::max<std::int64_t>(1, param(p).shape[0]));
  }
  void expect_uncut(const Param& of, bool uncut) const {
    HAWSER_CHECK(uncut, of.name, ": a slice of the tensor cuts a ", extent_.kind == Kind::tile ? "tile" : "block",
                 " of ", extent_.block, " that shares a value of ", prefix_);
  }

  void elements() {
    const std::int64_t values = values_per_element(values_.dtype());
    for (SegmentPiece piece : segment_pieces(flat_, begin_, count_)) {
      Segment segment = segment_of(flat_, piece);
      if (values > 1) {  // a row is a list of blocks
        const int last = segment.global.rank() - 1;
        segment.global[last] /= values;
        if (segment.slice.dim == last) segment.slice.begin /= values, segment.slice.extent /= values;
        piece.first /= values, piece.at /= values, piece.count /= values;
      }
      const std::vector<Box> boxes = global_boxes(segment, piece, values_.rows(piece.at, piece.count));
      std::vector<Box>& all = state(segment.name, segment.global).boxes;
      all.insert(all.end(), boxes.begin(), boxes.end());
    }
  }

  // Values [at, at + size) of a list of blocks.
  void add_blocks(const std::string& name, std::int64_t blocks, std::int64_t first, std::int64_t at,
                  std::int64_t size) {
    state(name, {blocks}).boxes.push_back({.offset = {first}, .extent = {size}, .view = values_.rows(at, size)});
  }

  void blocks() {
    const std::int64_t block = extent_.block;
    for (int p = 0; p < static_cast<int>(flat_.params().size()); ++p) {
      const Param& of = param(p);
      const std::int64_t from = std::max(begin_, flat_.offset(p));
      const std::int64_t to = std::min(begin_ + count_, flat_.offset(p) + of.elements());
      if (from >= to || is_sliced(of)) continue;
      add_blocks(of.name, ceil_div(of.elements(), block), (from - flat_.offset(p)) / block, (from - begin_) / block,
                 ceil_div(to - from, block));
    }
    for (const SegmentPiece& piece : segment_pieces(flat_, begin_, count_)) {
      const Param& of = param(piece.param);
      if (!is_sliced(of)) continue;
      const Segment& segment = segment_of(flat_, piece);
      const GlobalParam global = global_of(of);
      const std::int64_t inner = segment.global.elements() / segment.global[0];
      const std::int64_t slice = is_sliced(segment) ? segment.slice.begin * inner : 0;
      const std::int64_t first = global.element[static_cast<std::size_t>(piece.segment)] + slice + piece.first;
      const std::int64_t end = first + piece.count;
      expect_uncut(of, (!is_sliced(segment) || segment.slice.dim == 0) && piece.at % block == 0 && first % block == 0 &&
                           (end % block == 0 || end == global.elements));
      add_blocks(of.name, ceil_div(global.elements, block), first / block, piece.at / block,
                 ceil_div(piece.count, block));
    }
  }

  void parameter(int p) {
    const Param& of = param(p);
    const Shape own = extent_shape(of, extent_);
    std::int64_t at = 0;
    for (int before = 0; before < p; ++before) at += extent_shape(param(before), extent_).elements();
    const TensorView values = values_.rows(at, own.elements());
    const Segment& first = of.segments.front();
    const bool saves = holds(flat_.offset(p)) && (!is_sliced(first) || first.slice.begin == 0);
    if (extent_.kind == Kind::part && of.matrices > 0) {
      for (std::int64_t i = 0; i < of.matrices; ++i) {
        NamedState& to = state(segment_at(of, i * (of.shape[0] / of.matrices)).name, {1});
        if (everywhere_ || saves) to.boxes.push_back({.offset = {0}, .extent = {1}, .view = values.rows(i, 1)});
      }
      return;
    }
    if (extent_.kind != Kind::tile || !is_sliced(of)) {
      NamedState& to = state(of.name, own);
      if (everywhere_ || saves) to.boxes.push_back({.offset = zeros_like(own), .extent = own, .view = values});
      return;
    }
    const std::int64_t height = extent_.tile_rows(), width = extent_.block;
    const GlobalParam global = global_of(of);
    const Shape all{ceil_div(global.rows, height), ceil_div(first.global[1], width)};
    NamedState& to = state(of.name, all);
    for (std::size_t s = 0; s < of.segments.size(); ++s) {
      const Segment& segment = of.segments[s];
      const Slice slice = is_sliced(segment) ? segment.slice : Slice{};
      const std::int64_t row = global.row[s] + (slice.dim == 0 ? slice.begin : 0);
      const std::int64_t column = slice.dim == 1 ? slice.begin : 0;
      expect_uncut(of, segment.global.rank() == 2 && segment.row % height == 0 && row % height == 0 &&
                           column % width == 0 &&
                           ((row + segment.rows) % height == 0 || row + segment.rows == global.rows) &&
                           ((column + of.shape[1]) % width == 0 || column + of.shape[1] == first.global[1]));
      if (!everywhere_ && !holds(start_of(p, segment))) continue;
      const std::int64_t rows = ceil_div(segment.rows, height);
      to.boxes.push_back({.offset = {row / height, column / width},
                          .extent = {rows, own[1]},
                          .view = values.rows(segment.row / height * own[1], rows * own[1])});
    }
  }

  void parts() {
    std::set<std::int64_t> done;  // shared values
    for (const ExtentPart& part : extent_parts(flat_, extent_)) {
      const Param& of = param(part.param);
      const Segment& segment = of.segments[static_cast<std::size_t>(part.segment)];
      NamedState& to = state(segment.name, part.global);
      if (!done.insert(part.first).second) continue;
      const bool own_box = !is_sliced(segment) || segment.slice.begin == 0 || !(part.shape == part.global);
      if (!everywhere_ && !(own_box && holds(start_of(part.param, segment)))) continue;
      to.boxes.push_back(
          {.offset = part.offset, .extent = part.shape, .view = values_.rows(part.first, part.shape.elements())});
    }
  }

  const Flat& flat_;
  const Extent& extent_;
  std::int64_t begin_, count_;
  TensorView values_;
  const std::string& prefix_;
  bool everywhere_;
  std::vector<NamedState> states_;
};

}  // namespace

Extent scale_extent(Scaling scaling) {
  HAWSER_CHECK(scaling != Scaling::none, "the extent of no scales");
  if (scaling == Scaling::tensor) return {.kind = Kind::part};
  return {.kind = Kind::tile, .block = kScalingBlock, .rows = scaling == Scaling::row ? 1 : 0};
}

Shape extent_shape(const Param& param, const Extent& extent) {
  if (extent.kind == Kind::parameter) return {1};
  if (extent.kind == Kind::part) return {param.parts()};
  HAWSER_CHECK(extent.kind == Kind::tile && extent.block > 0 && param.shape.rank() == 2, param.name,
               ": values for tiles of ", param.shape.text());
  return {ceil_div(param.shape[0], extent.tile_rows()), ceil_div(param.shape[1], extent.block)};
}

std::vector<ExtentPart> extent_parts(const Flat& flat, const Extent& extent) {
  HAWSER_CHECK(extent.kind == Kind::row || extent.kind == Kind::column || extent.kind == Kind::matrix, flat.name(),
               ": parts of another extent than row, column or matrix");
  std::vector<ExtentPart> parts;
  std::int64_t first = 0, sum_first = 0;
  for (std::size_t p = 0; p < flat.params().size(); ++p) {
    const Param& param = flat.params()[p];
    for (std::size_t s = 0; s < param.segments.size(); ++s) {
      const Segment& segment = param.segments[s];
      const std::vector<int> dims = kept_dims(segment.global.rank(), extent.kind);
      ExtentPart part{.param = static_cast<int>(p),
                      .segment = static_cast<int>(s),
                      .first = first,
                      .shape = shape_of(segment_shape(segment), dims),
                      .global = shape_of(segment.global, dims),
                      .sum_first = sum_first};
      part.offset = zeros_like(part.shape);
      for (std::size_t d = 0; d < dims.size(); ++d) {
        if (segment.slice.extent > 0 && dims[d] == segment.slice.dim)
          part.offset[static_cast<int>(d)] = segment.slice.begin;
      }
      bool shared = false, known = false;
      for (const ExtentPart& other : parts) {
        if (flat.params()[static_cast<std::size_t>(other.param)]
                .segments[static_cast<std::size_t>(other.segment)]
                .name != segment.name) {
          continue;
        }
        known = true;
        part.sum_first = other.sum_first;
        if (!(other.shape == part.shape && other.offset == part.offset)) continue;
        shared = true;
        part.first = other.first;
      }
      if (!shared) first += part.shape.elements();
      if (!known) sum_first += part.global.elements();
      parts.push_back(part);
    }
    // All tensor ranks have as many values.
    if (extent.kind == Kind::row) first += param.padding;
  }
  return parts;
}

std::int64_t sum_count(const Flat& flat, const Extent& extent) {
  std::int64_t count = 0;
  for (const ExtentPart& part : extent_parts(flat, extent)) {
    count = std::max(count, part.sum_first + part.global.elements());
  }
  return count;
}

std::int64_t extent_count(const Flat& flat, const Extent& extent, std::int64_t count) {
  switch (extent.kind) {
    case Kind::element:
      return count;
    case Kind::block:
      HAWSER_CHECK(extent.block > 0 && flat.spec().grain % extent.block == 0, flat.name(), ": values for blocks of ",
                   extent.block, " elements in shards of multiples of ", flat.spec().grain);
      return count / extent.block;
    case Kind::tile:
    case Kind::parameter:
    case Kind::part: {
      std::int64_t all = 0;
      for (const Param& param : flat.params()) all += extent_shape(param, extent).elements();
      return all;
    }
    default: {
      std::int64_t all = 0;
      for (const ExtentPart& part : extent_parts(flat, extent)) {
        const std::int64_t padding =
            extent.kind == Kind::row ? flat.params()[static_cast<std::size_t>(part.param)].padding : 0;
        all = std::max(all, part.first + part.shape.elements() + padding);
      }
      return all;
    }
  }
}

std::int64_t saved_count(const Flat& flat, const Extent& extent) {
  std::int64_t all = 0;
  std::set<std::string> known;  // a tensor may be several segments
  switch (extent.kind) {
    case Kind::element:
      for (const Param& param : flat.params()) {
        for (const Segment& segment : param.segments) {
          if (known.insert(segment.name).second) all += segment.global.elements();
        }
      }
      return all;
    case Kind::block:
      for (const Param& param : flat.params()) all += ceil_div(global_of(param).elements, extent.block);
      return all;
    case Kind::tile:
      for (const Param& param : flat.params()) {
        all += is_sliced(param) ? ceil_div(global_of(param).rows, extent.tile_rows()) *
                                      ceil_div(param.segments.front().global[1], extent.block)
                                : extent_shape(param, extent).elements();
      }
      return all;
    case Kind::parameter:
      return static_cast<std::int64_t>(flat.params().size());
    case Kind::part:
      for (const Param& param : flat.params()) all += param.parts();
      return all;
    default:
      return sum_count(flat, extent);
  }
}

std::vector<NamedState> extent_states(const Flat& flat, const Extent& extent, std::int64_t begin, std::int64_t count,
                                      const TensorView& values, const std::string& prefix, bool everywhere) {
  const std::int64_t expected = extent_count(flat, extent, count) / values_per_element(values.dtype());
  HAWSER_CHECK(values.dense() && values.elements() == expected, flat.name(), ": ", expected, " values in ",
               values.text());
  return Lister(flat, extent, begin, count, values, prefix, everywhere).list();
}

}  // namespace hawser::nn

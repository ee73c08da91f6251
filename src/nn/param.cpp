#include "nn/param.h"

#include <algorithm>

#include "base/cat.h"
#include "base/units.h"

namespace hawser::nn {

namespace {

std::string slice_text(const Segment& segment) {
  if (!segment.slice) return cat(segment.name, ": all of ", segment.global.text());
  const auto& [dim, begin, size] = *segment.slice;
  return cat(segment.name, ": [", begin, ", ", begin + size, ") of dim ", dim, " of ", segment.global.text());
}

// The slice must have the shape `own` of the segment's rows on this rank, leading dims flattened.
void expect_slice(const Segment& segment, const Shape& own) {
  const Shape& global = segment.global;
  const std::string text = slice_text(segment);
  if (const auto& slice = segment.slice) {
    HAWSER_CHECK(slice->dim >= 0 && slice->dim < global.rank() && slice->begin >= 0 && slice->size > 0 &&
                     slice->begin + slice->size <= global[slice->dim],
                 text);
  }
  const Shape sliced = segment_shape(segment);
  const int more = sliced.rank() - own.rank();
  bool same = more >= 0 && sliced.elements() == own.elements();
  for (int dim = 1; same && dim < own.rank(); ++dim) same = own[dim] == sliced[dim + more];
  HAWSER_CHECK(same, segment.name, ": a slice ", sliced.text(), " as ", own.text());
  if (!segment.range) return;
  const IndexRange& range = *segment.range;
  const auto& slice = segment.slice;
  HAWSER_CHECK(slice && slice->dim == 0 && range.begin >= 0 && range.begin <= slice->begin &&
                   slice->begin + slice->size <= range.end() && range.end() <= global[0],
               text, " in the range [", range.begin, ", ", range.end(), ")");
}

void expect_file_form(const Segment& segment) {
  const FileForm& file = segment.file;
  HAWSER_CHECK(!file.transposed || segment.global.rank() == 2, segment.name, ": transposed, but ",
               segment.global.text());
  if (file.row_order.empty()) return;
  std::vector<IndexRange> runs = file.row_order;
  std::ranges::sort(runs, {}, &IndexRange::begin);
  std::int64_t row = 0;
  for (const IndexRange& run : runs) {
    HAWSER_CHECK(run.begin == row && run.count > 0, segment.name, ": row_order has row ", row, " not once");
    row += run.count;
  }
  HAWSER_CHECK(row == segment.global[0], segment.name, ": row_order of ", row, " rows for ", segment.global.text());
}

}  // namespace

std::int64_t DimSlice::real(std::int64_t size) const {
  if (!sliced()) return size;
  HAWSER_CHECK(begin >= 0 && begin < total, "a slice that begins at ", begin, " of ", total);
  return std::min(size, total - begin);
}

const std::vector<Segment>& Segments::list() const {
  static const std::vector<Segment> kNone;
  return list_ == nullptr ? kNone : *list_;
}

std::vector<Segment>& Segments::edit() {
  if (list_ == nullptr || list_.use_count() > 1) list_ = std::make_shared<std::vector<Segment>>(list());
  return *list_;
}

Param full_param(const std::string& name, const Shape& shape, Initial initial, bool decay) {
  return fused_param(name, {{.name = name, .row = 0, .rows = shape[0]}}, shape, initial, decay);
}

Param replicated_param(const std::string& name, const Shape& shape, Initial initial) {
  Param param = full_param(name, shape, initial, false);
  param.flat.domain = Domain::replicated;
  return param;
}

Param partial_param(const std::string& name, const Shape& shape, Initial initial, bool decay) {
  Param param = full_param(name, shape, initial, decay);
  param.flat.domain = Domain::replicated;
  param.flat.partial_gradient = true;
  return param;
}

void set_unsliced(Param& param) {
  for (const Segment& segment : param.segments) {
    HAWSER_CHECK(!is_sliced(segment), segment.name, ": a slice for a Linear that is not sliced");
  }
  param.flat.domain = Domain::replicated;
  param.flat.partial_gradient = false;
  param.of_residual_rows = true;
}

Param sliced_param(const std::string& name, const Shape& shape, int dim, DimSlice slice, Initial initial, bool decay) {
  Segment segment{.name = name, .row = 0, .rows = shape[0]};
  if (slice.sliced()) {
    if (dim == 0) segment.rows = slice.real(shape[0]);
    segment.slice = Slice{.dim = dim, .begin = slice.begin, .size = dim == 0 ? segment.rows : shape[dim]};
    segment.global = shape;
    segment.global[dim] = slice.total;
  }
  const std::int64_t padding = shape[0] - segment.rows;
  return fused_param(name, {segment}, shape, initial, decay, padding);
}

Param fused_param(const std::string& name, std::vector<Segment> segments, const Shape& shape, Initial initial,
                  bool decay, std::int64_t padding) {
  Param param{.name = name, .shape = shape, .initial = initial, .decay = decay, .padding = padding};
  std::int64_t row = 0;
  for (Segment& segment : segments) {
    HAWSER_CHECK(segment.row == row, name, ": segment ", segment.name, " starts at row ", segment.row);
    row += segment.rows;
    Shape own = shape;
    own[0] = segment.rows;
    if (segment.global.rank() == 0) segment.global = own;
    expect_slice(segment, own);
    expect_file_form(segment);
  }
  HAWSER_CHECK(padding >= 0 && row + padding == shape[0], name, ": segments of ", row, " rows and ", padding,
               " of padding in ", shape.text());
  param.segments = std::move(segments);
  return param;
}

Param with_whole_blocks(const Param& param) {
  const Segment& first = param.segments.front();
  const int last = first.global.rank() - 1;
  if (!first.slice || first.slice->dim != last || last == 0 || first.global[last] % kNf4Block != 0) return param;
  const std::int64_t total = first.global[last], size = first.slice->size;
  if (size % kNf4Block == 0) return param;
  // The most that a rank needs: slices begin at multiples of their size.
  std::int64_t stored = 0;
  for (std::int64_t begin = 0; begin < total; begin += size) {
    const std::int64_t end = std::min(total, begin + size);
    stored = std::max(stored, round_up(end, kNf4Block) - begin / kNf4Block * kNf4Block);
  }
  Param out = param;
  out.shape[out.shape.rank() - 1] = stored;
  for (Segment& segment : out.segments.edit()) {
    HAWSER_CHECK(segment.slice && segment.slice->dim == segment.global.rank() - 1 && segment.slice->size == size,
                 param.name, ": segments with other slices");
    Slice& slice = *segment.slice;
    const std::int64_t begin = std::min(slice.begin / kNf4Block * kNf4Block, total - stored);
    out.read_columns = IndexRange{slice.begin - begin, size};
    slice.begin = begin;
    slice.size = stored;
  }
  return out;
}

Segment row_segment(const std::string& name, std::int64_t row, std::int64_t rows, const Shape& shape, DimSlice slice,
                    std::optional<IndexRange> range) {
  Segment segment{.name = name, .row = row, .rows = rows, .range = range};
  if (slice.sliced()) {
    segment.slice = Slice{.dim = 0, .begin = slice.begin, .size = rows};
    segment.global = shape;
    segment.global[0] = slice.total;
  }
  return segment;
}

Shape segment_shape(const Segment& segment) {
  Shape shape = segment.global;
  if (segment.slice) shape[segment.slice->dim] = segment.slice->size;
  return shape;
}

Shape file_shape(const Segment& segment) {
  Shape shape = segment.global;
  if (segment.file.transposed) std::swap(shape[0], shape[1]);
  return shape;
}

Shape range_shape(const Segment& segment) {
  Shape shape = segment.global;
  if (segment.range) shape[0] = segment.range->count;
  return shape;
}

std::optional<Slice> range_slice(const Segment& segment) {
  std::optional<Slice> slice = segment.slice;
  if (segment.range) slice->begin -= segment.range->begin;
  return slice;
}

std::string range_name(const Segment& segment) {
  if (!segment.range) return segment.name;
  return cat(segment.name, '[', segment.range->begin, ':', segment.range->end(), ']');
}

bool is_sliced(const Segment& segment) {
  return segment.slice && segment.slice->size < range_shape(segment)[segment.slice->dim];
}

}  // namespace hawser::nn

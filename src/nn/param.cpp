#include "nn/param.h"

#include <algorithm>

#include "base/cat.h"

namespace hawser::nn {

namespace {

// The slice must have the shape `own` of the segment's rows on this rank, leading dims flattened.
void expect_slice(const Segment& segment, const Shape& own) {
  const Slice& slice = segment.slice;
  const Shape& global = segment.global;
  HAWSER_CHECK(slice.extent == 0 || (slice.dim >= 0 && slice.dim < global.rank() && slice.begin >= 0 &&
                                     slice.begin + slice.extent <= global[slice.dim]),
               segment.name, ": [", slice.begin, ", ", slice.begin + slice.extent, ") of dim ", slice.dim, " of ",
               global.text());
  const Shape sliced = segment_shape(segment);
  const int more = sliced.rank() - own.rank();
  bool same = more >= 0 && sliced.elements() == own.elements();
  for (int dim = 1; same && dim < own.rank(); ++dim) same = own[dim] == sliced[dim + more];
  HAWSER_CHECK(same, segment.name, ": a slice ", sliced.text(), " as ", own.text());
  const FileForm::Rows& range = segment.range;
  if (range.rows == 0) return;
  HAWSER_CHECK(slice.dim == 0 && slice.extent > 0 && range.row >= 0 && range.row <= slice.begin &&
                   slice.begin + slice.extent <= range.row + range.rows && range.row + range.rows <= global[0],
               segment.name, ": [", slice.begin, ", ", slice.begin + slice.extent, ") of dim ", slice.dim, " of ",
               global.text(), " in the range [", range.row, ", ", range.row + range.rows, ")");
}

void expect_file_form(const Segment& segment) {
  const FileForm& file = segment.file;
  HAWSER_CHECK(!file.transposed || segment.global.rank() == 2, segment.name, ": transposed, but ",
               segment.global.text());
  if (file.row_order.empty()) return;
  std::vector<FileForm::Rows> runs = file.row_order;
  std::ranges::sort(runs, {}, &FileForm::Rows::row);
  std::int64_t row = 0;
  for (const FileForm::Rows& run : runs) {
    HAWSER_CHECK(run.row == row && run.rows > 0, segment.name, ": row_order has row ", row, " not once");
    row += run.rows;
  }
  HAWSER_CHECK(row == segment.global[0], segment.name, ": row_order of ", row, " rows for ", segment.global.text());
}

}  // namespace

std::int64_t PartOf::real(std::int64_t extent) const {
  if (total == 0) return extent;
  HAWSER_CHECK(begin >= 0 && begin < total, "a part that begins at ", begin, " of ", total);
  return std::min(extent, total - begin);
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

Param sliced_param(const std::string& name, const Shape& shape, int dim, PartOf part, Initial initial, bool decay) {
  Segment segment{.name = name, .row = 0, .rows = shape[0]};
  if (part.total > 0) {
    if (dim == 0) segment.rows = part.real(shape[0]);
    segment.slice = {.dim = dim, .begin = part.begin, .extent = dim == 0 ? segment.rows : shape[dim]};
    segment.global = shape;
    segment.global[dim] = part.total;
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

Segment row_segment(const std::string& name, std::int64_t row, std::int64_t rows, const Shape& shape, PartOf part,
                    FileForm::Rows range) {
  Segment segment{.name = name, .row = row, .rows = rows, .range = range};
  if (part.total > 0) {
    segment.slice = {.dim = 0, .begin = part.begin, .extent = rows};
    segment.global = shape;
    segment.global[0] = part.total;
  }
  return segment;
}

Shape segment_shape(const Segment& segment) {
  Shape shape = segment.global;
  if (segment.slice.extent > 0) shape[segment.slice.dim] = segment.slice.extent;
  return shape;
}

Shape file_shape(const Segment& segment) {
  Shape shape = segment.global;
  if (segment.file.transposed) std::swap(shape[0], shape[1]);
  return shape;
}

Shape range_shape(const Segment& segment) {
  Shape shape = segment.global;
  if (segment.range.rows > 0) shape[0] = segment.range.rows;
  return shape;
}

Slice range_slice(const Segment& segment) {
  Slice slice = segment.slice;
  slice.begin -= segment.range.row;
  return slice;
}

std::string range_name(const Segment& segment) {
  const FileForm::Rows& range = segment.range;
  return range.rows > 0 ? cat(segment.name, '[', range.row, ':', range.row + range.rows, ']') : segment.name;
}

bool is_sliced(const Segment& segment) {
  const Slice& slice = segment.slice;
  const std::int64_t all = segment.range.rows > 0 && slice.dim == 0 ? segment.range.rows : segment.global[slice.dim];
  return slice.extent > 0 && slice.extent < all;
}

}  // namespace hawser::nn

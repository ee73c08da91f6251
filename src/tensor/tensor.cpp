#include "tensor/tensor.h"

#include <algorithm>

namespace hawser {

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) push_back(size);
}

void Shape::push_back(std::int64_t size) {
  HAWSER_CHECK(rank_ < kMaxRank, "a shape of more than ", kMaxRank, " dims");
  HAWSER_CHECK(size >= 0, "a negative size ", size);
  sizes_[static_cast<std::size_t>(rank_++)] = size;
}

std::int64_t Shape::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : *this) count *= size;
  return count;
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string Shape::text() const {
  std::string out = "[";
  for (int dim = 0; dim < rank_; ++dim) out += cat(dim > 0 ? ", " : "", (*this)[dim]);
  return out + "]";
}

TensorView::TensorView(std::byte* data, DType dtype, const Shape& shape, DeviceKind device)
    : data_(data), dtype_(dtype), device_(device), shape_(shape), strides_(shape) {
  std::int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides_[dim] = stride;
    stride *= shape[dim];
  }
}

bool TensorView::dense() const {
  std::int64_t stride = 1;
  for (int dim = rank() - 1; dim >= 0; --dim) {
    if (shape_[dim] != 1 && strides_[dim] != stride) return false;
    stride *= shape_[dim];
  }
  return true;
}

TensorView TensorView::slice(int dim, std::int64_t begin, std::int64_t count) const {
  HAWSER_CHECK(dim >= 0 && dim < rank() && begin >= 0 && count >= 0 && begin + count <= size(dim), "entries [", begin,
               ", ", begin + count, ") of dim ", dim, " of ", text());
  TensorView out = *this;
  out.data_ += begin * strides_[dim] * size_of(dtype_);
  out.shape_[dim] = count;
  return out;
}

TensorView TensorView::rows(std::int64_t begin, std::int64_t count) const {
  return slice(0, begin, count);
}

TensorView TensorView::columns(std::int64_t begin, std::int64_t count) const {
  return slice(rank() - 1, begin, count);
}

TensorView TensorView::reshape(const Shape& shape) const {
  HAWSER_CHECK(dense() && shape.elements() == elements(), "reshape of ", text(), " to ", shape.text());
  return TensorView(data_, dtype_, shape, device_);
}

TensorView TensorView::split_last(std::int64_t a, std::int64_t b) const {
  HAWSER_CHECK(rank() >= 1 && a * b == size(rank() - 1), "split of the last dim of ", text(), " into ", a, " x ", b);
  TensorView out = *this;
  const int last = rank() - 1;
  out.shape_[last] = a;
  out.strides_[last] = b;
  out.shape_.push_back(b);
  out.strides_.push_back(1);
  return out;
}

std::string TensorView::text() const {
  return cat(to_string(dtype_), " ", shape_.text(), " on ", to_string(device_));
}

namespace {

Access access(const TensorView& view, bool write) {
  const std::int64_t element = size_of(view.dtype());
  const auto address = reinterpret_cast<std::uint64_t>(view.raw());
  if (view.elements() == 0) return {.address = address, .write = write};
  // Merge dense inner dims into one run. The outer dims must be one strided sequence of runs; otherwise use the hull.
  int dim = view.rank() - 1;
  std::int64_t run = 1;
  while (dim >= 0 && (view.size(dim) == 1 || view.stride(dim) == run)) run *= view.size(dim--);
  if (dim < 0) return {.address = address, .row_bytes = run * element, .write = write};
  const std::int64_t stride = view.stride(dim);
  std::int64_t rows = view.size(dim--);
  while (dim >= 0 && (view.size(dim) == 1 || view.stride(dim) == rows * stride)) rows *= view.size(dim--);
  Access out{.address = address, .row_bytes = run * element, .rows = rows, .stride = stride * element, .write = write};
  if (dim < 0) return out;
  std::int64_t last = 0;
  for (int d = 0; d < view.rank(); ++d) last += (view.size(d) - 1) * view.stride(d);
  return {.address = address, .row_bytes = (last + 1) * element, .write = write};
}

}  // namespace

Access reads(const TensorView& view) {
  return access(view, false);
}
Access writes(const TensorView& view) {
  return access(view, true);
}

Storage::Storage(Device& device, DType dtype, const Shape& shape)
    : arena_(device, shape.elements() * size_of(dtype)), view_(arena_.data(), dtype, shape, device.kind()) {}

}  // namespace hawser

// `Shape`, `TensorView`, `Storage`. A TensorView borrows device memory, owns nothing and is cheap to copy. Storage owns
// its memory.
//
// Views carry no constness: the parameter names of a function tell which views it writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "device/device.h"
#include "tensor/dtype.h"

namespace hawser {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  template <class Range>
  static Shape from(const Range& range) {
    Shape shape;
    for (const auto size : range) shape.push_back(static_cast<std::int64_t>(size));
    return shape;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return sizes_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return sizes_[static_cast<std::size_t>(dim)]; }
  std::int64_t elements() const;  // 1 for rank 0
  void push_back(std::int64_t size);
  bool operator==(const Shape& other) const;
  std::string text() const;  // "[16, 4096]"
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

// Strides are in elements. The last dim is always dense (stride 1); outer dims may be padded (columns of a wider
// matrix).
class TensorView {
 public:
  TensorView() = default;
  TensorView(std::byte* data, DType dtype, const Shape& shape, DeviceKind device);  // dense, row-major

  bool empty() const { return data_ == nullptr; }
  std::byte* raw() const { return data_; }
  template <class T>
  T* data() const {
    HAWSER_CHECK(dtype_ == dtype_of<T>(), "a view of ", to_string(dtype_), " read as ", to_string(dtype_of<T>()));
    return reinterpret_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  DeviceKind device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t size(int dim) const { return shape_[dim]; }
  std::int64_t stride(int dim) const { return strides_[dim]; }
  std::int64_t elements() const { return shape_.elements(); }
  std::int64_t bytes() const { return elements() * size_of(dtype_); }  // of the elements, without gaps
  bool dense() const;

  // Rows [begin, begin + count) of the first dim.
  TensorView rows(std::int64_t begin, std::int64_t count) const;
  // Columns [begin, begin + count) of the last dim; keeps the strides.
  TensorView columns(std::int64_t begin, std::int64_t count) const;
  // Entries [begin, begin + count) of one dim; keeps the strides.
  TensorView slice(int dim, std::int64_t begin, std::int64_t count) const;
  // The same elements with another shape; the view must be dense.
  TensorView reshape(const Shape& shape) const;
  // Splits the last dim into [a, b]; outer dims may be padded.
  TensorView split_last(std::int64_t a, std::int64_t b) const;

  std::string text() const;  // "float32 [16, 4096] on cpu"

 private:
  std::byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  DeviceKind device_ = DeviceKind::cpu;
  Shape shape_;
  Shape strides_;
};

// The bytes that work on a view accesses, for an OpRecord.
Access reads(const TensorView& view);
Access writes(const TensorView& view);

// Owns the memory of one tensor; for tests and for tensors outside a step.
class Storage {
 public:
  Storage() = default;
  Storage(Device& device, DType dtype, const Shape& shape);
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: a Storage converts to its view

 private:
  Arena arena_;
  TensorView view_;
};

}  // namespace hawser

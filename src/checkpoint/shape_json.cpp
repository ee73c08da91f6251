#include "checkpoint/shape_json.h"

namespace hawser::checkpoint {

std::optional<Shape> as_shape(const io::Json& value) {
  if (!value.is_array() || value.size() > static_cast<std::size_t>(Shape::kMaxRank)) return std::nullopt;
  Shape shape;
  for (const io::Json& size : value) {
    const auto count = io::as_count(size);
    if (!count) return std::nullopt;
    shape.push_back(*count);
  }
  return shape;
}

std::optional<std::int64_t> checked_product(const Shape& shape, std::int64_t scale) {
  // A zero makes the product zero, but partial products are computed elsewhere and must fit too.
  std::int64_t product = scale;
  bool zero = false;
  for (const std::int64_t size : shape) {
    if (size == 0) {
      zero = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return zero ? 0 : product;
}

}  // namespace hawser::checkpoint

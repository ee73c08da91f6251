// Shapes in the JSON headers of checkpoint files.
#pragma once

#include <cstdint>
#include <optional>

#include "io/json.h"
#include "tensor/tensor.h"

namespace hawser::checkpoint {

// An array of at most Shape::kMaxRank counts.
std::optional<Shape> as_shape(const io::Json& value);
// The product of the sizes and `scale`; nullopt if it does not fit in 63 bits.
std::optional<std::int64_t> checked_product(const Shape& shape, std::int64_t scale);

}  // namespace hawser::checkpoint

// `dispatch_float`: from a floating-point dtype to a C++ type, `by_float`: to a value. Code that tells dtypes apart in
// another way names all that it knows and rejects the others: a new DType must fail where no code handles it.
#pragma once

#include "base/error.h"
#include "tensor/dtype.h"

namespace hawser {

// Returns body(F32{}) for float32 and body(BF16{}) for bfloat16: the types that the caller computes with. Throws
// InternalError for other dtypes. A DType that is not listed does not compile (-Werror=switch).
template <class F32, class BF16, class Body>
auto dispatch_float_as(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(F32{});
    case DType::bf16:
      return body(BF16{});
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::nf4:
    case DType::nf4_double:
      break;
  }
  throw InternalError(cat("no computation with ", to_string(dtype)), std::source_location::current());
}

// Calls body with a value of the C++ type:
//   dispatch_float(view.dtype(), [&](auto tag) { using T = decltype(tag); });
template <class Body>
auto dispatch_float(DType dtype, const Body& body) {
  return dispatch_float_as<float, Bf16>(dtype, body);
}

// The value that belongs to a floating-point dtype. Throws InternalError for other dtypes.
template <class Value>
Value by_float(DType dtype, Value f32, Value bf16) {
  return dispatch_float(dtype, [&](auto tag) -> Value { return dtype_of<decltype(tag)>() == DType::f32 ? f32 : bf16; });
}

}  // namespace hawser

// What every op does the same way: check the arguments once, then either book (meta) or run.
//
// An op family is one folder:
//   x.h          the contract: formula, shapes, dtypes, aliasing, errors, source
//   x.cpp        checks, booking, choice of the implementation
//   x_cpu.cpp    the CPU kernels; they receive checked arguments
//   x_cases.cpp  one table of cases for all tests: finite differences, refusals, repeatability
//
// Every op takes the stream first, returns at once, and may be read when the stream has reached that point.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "tensor/tensor.h"

namespace hawser::ops {

// Throws an InternalError unless the view has one of the dtypes, exactly this shape and a dense last dim.
void expect(const char* op, const char* argument, const TensorView& view, std::initializer_list<DType> dtypes,
            const Shape& shape);

// Enqueues `kernel` with the op's booking. `kernel` runs on the stream's worker: it must hold views, not references.
void run(Stream& stream, const char* op, std::initializer_list<TensorView> read, std::initializer_list<TensorView> written,
         double flops, std::function<void()> kernel);

}  // namespace hawser::ops

// Functions shared by all ops: argument checks, and `run`, which records an op (meta) or executes it.
//
// An op family is one folder:
//   x.h            the contract: formula, shapes, dtypes, aliasing, errors, source; HAWSER_BACKENDS_OF
//   x.cpp          checks and op record; passes checked arguments to the backend
//   x_cpu.cpp      the CPU backend: threads and memory
//   x_kernels.inc  its inner loops, compiled once for each vector level (ops/cpu/levels.h)
//   x_cuda.cu      the CUDA backend: enqueues kernels (ops/cuda/kernel.cuh); built with HAWSER_CUDA
//   x_cases.cpp    one table of cases for all tests: finite differences, rejections, repeatability
//
// Every op takes the stream as its first argument and returns at once; its results are valid when the stream has
// reached that point. A broken contract throws InternalError from the call itself. An error in the data (such as an id
// out of range) is thrown by the work, and poisons the stream.
// Letters in shapes: T tokens, C channels, F hidden channels of the MLP, V vocabulary, H heads, D head dim. "act" is
// float32 or bf16, the same for all "act" tensors of an op. Arithmetic is float32 inside. Results do not depend on the
// number of threads: the shapes alone determine the order of every sum.
//
// Views are dense unless the contract allows padded rows (columns of a wider matrix). In formulas, (+)= is +=, or =
// without accumulate.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "device/cuda/native.h"
#include "tensor/tensor.h"

namespace hawser::ops {

enum class Rows { dense, padded };  // padded: the view may be columns of a wider matrix

// Throws InternalError unless the view has one of the dtypes, exactly this shape and a dense last dim. Rows::padded:
// the first dim may have any stride that keeps rows from overlapping; the dims after it are dense.
void expect(const char* op, const char* argument, const TensorView& view, std::initializer_list<DType> dtypes,
            const Shape& shape, Rows rows = Rows::dense);

// Throws InternalError unless the view has two dims.
void expect_matrix(const char* op, const char* argument, const TensorView& view);

// Throws InternalError unless the view holds at least `bytes` dense bytes, aligned to 64. It may be empty if bytes is
// 0.
void expect_workspace(const char* op, const TensorView& view, std::int64_t bytes);

// Throws InternalError if two views share a byte and are not the same view.
void expect_apart_or_same(const char* op, const TensorView& a, const TensorView& b);
// Throws InternalError if two views share a byte.
void expect_apart(const char* op, const TensorView& a, const TensorView& b);

// Throws InternalError unless `there`: the op has a backend for this kind of device.
void expect_backend(const char* op, DeviceKind kind, bool there);

// What is recorded of an op besides its arguments.
struct Op {
  const char* name;  // a string literal
  OpKind kind;
};

// Enqueues `kernel` with the op record. Empty views are not recorded; all others must be on the stream's device.
// `kernel` runs on the stream's worker: it must capture views, not references.
void run(Stream& stream, const Op& op, std::initializer_list<TensorView> read,
         std::initializer_list<TensorView> written, double flops, std::function<void()> kernel,
         std::string implementation = {});

// Same, with the backend for the stream's device. With HAWSER_BACKENDS(x) at the end of the arguments it calls
// cpu::x(args) or cuda::x(native, args). A null backend throws there.
template <class Args>
void run(Stream& stream, const Op& op, std::initializer_list<TensorView> read,
         std::initializer_list<TensorView> written, double flops, const Args& args, void (*cpu)(const Args&),
         void (*cuda)(const CudaNative&, const std::type_identity_t<Args>&), std::string implementation = {}) {
  if (stream.kind() == DeviceKind::cuda) {
    const CudaNative* native = stream.native();
    expect_backend(op.name, DeviceKind::cuda, cuda != nullptr && native != nullptr);
    run(stream, op, read, written, flops,
        [native, cuda, &args] { cuda(*native, args); });  // runs before launch returns
  } else {
    run(
        stream, op, read, written, flops, [cpu, args] { cpu(args); }, std::move(implementation));
  }
}

// Only in an op's x.cpp: the other sources do not see HAWSER_CUDA (cmake/modules.cmake).
#ifdef HAWSER_CUDA
#define HAWSER_BACKENDS(name) cpu::name, cuda::name
#else
#define HAWSER_BACKENDS(name) cpu::name, nullptr
#endif

// In the header of an op: declares its backends, which get checked arguments.
#define HAWSER_BACKENDS_OF(name, Args)                   \
  namespace cpu {                                        \
  void name(const Args& args);                           \
  }                                                      \
  namespace cuda {                                       \
  void name(const CudaNative& native, const Args& args); \
  }                                                      \
  static_assert(true)

}  // namespace hawser::ops

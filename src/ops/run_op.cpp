#include "ops/run_op.h"

#include <algorithm>

namespace hawser::ops {

void expect(const char* op, const char* argument, const TensorView& view, std::initializer_list<DType> dtypes,
            const Shape& shape, Rows rows) {
  HAWSER_CHECK(!view.empty() || (view.rank() > 0 && view.elements() == 0), op, ": ", argument, " is missing");
  HAWSER_CHECK(std::find(dtypes.begin(), dtypes.end(), view.dtype()) != dtypes.end(), op, ": ", argument, " is ",
               to_string(view.dtype()));
  HAWSER_CHECK(view.rank() == shape.rank() && view.shape() == shape, op, ": ", argument, " has shape ",
               view.shape().text(), ", not ", shape.text());
  if (rows == Rows::dense) {
    HAWSER_CHECK(view.dense(), op, ": ", argument, " has gaps between its rows");
    return;
  }
  std::int64_t row = 1;
  for (int dim = view.rank() - 1; dim > 0; --dim) {
    HAWSER_CHECK(view.size(dim) <= 1 || view.stride(dim) == row, op, ": ", argument, "'s rows have gaps inside");
    row *= view.size(dim);
  }
  HAWSER_CHECK(view.rank() == 0 || view.size(0) <= 1 || view.stride(0) >= row, op, ": ", argument, "'s rows overlap");
}

void expect_matrix(const char* op, const char* argument, const TensorView& view) {
  HAWSER_CHECK(view.rank() == 2, op, ": ", argument, " ", view.text(), " is no matrix");
}

void expect_workspace(const char* op, const TensorView& view, std::int64_t bytes) {
  if (bytes == 0) return;
  HAWSER_CHECK(!view.empty(), op, ": workspace is missing, it needs ", bytes, " bytes");
  HAWSER_CHECK(view.dense() && view.bytes() >= bytes, op, ": workspace has ", view.bytes(), " bytes, it needs ", bytes);
  HAWSER_CHECK(reinterpret_cast<std::uint64_t>(view.raw()) % 64 == 0, op, ": workspace is not aligned to 64 bytes");
}

namespace {

bool touch(const TensorView& a, const TensorView& b) {
  if (a.empty() || b.empty() || a.elements() == 0 || b.elements() == 0) return false;
  return overlap(reads(a), reads(b));
}

bool same(const TensorView& a, const TensorView& b) {
  if (a.raw() != b.raw() || a.dtype() != b.dtype() || a.rank() != b.rank() || !(a.shape() == b.shape())) return false;
  for (int dim = 0; dim < a.rank(); ++dim) {
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

}  // namespace

void expect_apart(const char* op, const TensorView& a, const TensorView& b) {
  HAWSER_CHECK(!touch(a, b), op, ": ", a.text(), " and ", b.text(), " share memory");
}

void expect_apart_or_same(const char* op, const TensorView& a, const TensorView& b) {
  HAWSER_CHECK(!touch(a, b) || same(a, b), op, ": ", a.text(), " and ", b.text(), " share memory but are not the same");
}

void expect_backend(const char* op, DeviceKind kind, bool there) {
  HAWSER_CHECK(there, op, ": there is no backend for ", to_string(kind));
}

void run(Stream& stream, const Op& op, std::initializer_list<TensorView> read,
         std::initializer_list<TensorView> written, double flops, std::function<void()> kernel,
         std::string implementation) {
  OpRecord record{.name = op.name, .kind = op.kind, .flops = flops, .implementation = std::move(implementation)};
  const auto record_access = [&](const TensorView& view, bool write) {
    if (view.empty() || view.elements() == 0) return;
    HAWSER_CHECK(view.device() == stream.kind(), op.name, ": ", view.text(), " given to stream ", stream.name(), " of ",
                 to_string(stream.kind()));
    record.accesses.push_back(write ? writes(view) : reads(view));
  };
  for (const TensorView& view : read) record_access(view, false);
  for (const TensorView& view : written) record_access(view, true);
  stream.launch(std::move(record), std::move(kernel));
}

}  // namespace hawser::ops

#include "ops/common.h"

#include <algorithm>

namespace hawser::ops {

void expect(const char* op, const char* argument, const TensorView& view, std::initializer_list<DType> dtypes,
            const Shape& shape) {
  HAWSER_CHECK(!view.empty() || view.elements() == 0, op, ": ", argument, " is missing");
  HAWSER_CHECK(std::find(dtypes.begin(), dtypes.end(), view.dtype()) != dtypes.end(), op, ": ", argument, " is ",
               to_string(view.dtype()));
  HAWSER_CHECK(view.rank() == shape.rank(), op, ": ", argument, " has shape ", view.shape().text(), ", not ",
               shape.text());
  for (int dim = 0; dim < shape.rank(); ++dim) {
    HAWSER_CHECK(shape[dim] == view.size(dim), op, ": ", argument, " has shape ", view.shape().text(), ", not ",
                 shape.text());
  }
  HAWSER_CHECK(view.rank() == 0 || view.size(view.rank() - 1) <= 1 || view.stride(view.rank() - 1) == 1, op, ": ",
               argument, "'s last dim is not dense");
}

void run(Stream& stream, const char* op, std::initializer_list<TensorView> read,
         std::initializer_list<TensorView> written, double flops, std::function<void()> kernel) {
  Booking booking{.name = op, .flops = flops};
  for (const TensorView& view : read) {
    if (!view.empty() && view.elements() > 0) booking.accesses.push_back(reads(view));
  }
  for (const TensorView& view : written) {
    if (!view.empty() && view.elements() > 0) booking.accesses.push_back(writes(view));
  }
  stream.launch(std::move(booking), std::move(kernel));
}

}  // namespace hawser::ops

#include "ops/loss/softcap.h"
#include "ops/loss/softcap_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

struct CapRows {
  Rows2<float> y;
  CappedLogits<float> capped;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    float& value = y.row(row)[at];
    value = capped(value, at);
  }
};

}  // namespace

void softcap(const CudaNative& native, const Softcap& args) {
  const auto y = rows2<float>(args.y);
  map<1>(native, y.count, y.columns, CapRows{y, {nullptr, args.softcap}});
}

}  // namespace hawser::ops::cuda

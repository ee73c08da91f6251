// Replaces device/cuda/ in builds without CUDA.
#include "base/cat.h"
#include "base/error.h"
#include "device/cuda/activities.h"
#include "device/cuda/links.h"
#include "device/cuda/native.h"
#include "device/cuda/time_mark.h"
#include "device/device.h"
#include "device/gpus.h"

namespace hawser {

CudaInfo cuda_info() {
  CudaInfo info{.problem = "this binary was built without CUDA"};
  const std::string gpus = list_gpus(driver_gpus());
  if (!gpus.empty()) info.unused = cat(info.problem, " and cannot use ", gpus);
  return info;
}

std::unique_ptr<Device> make_cuda_device(int) {
  throw UserError(Problem{.what = "no GPU: this binary was built without CUDA",
                          .hint = "cmake --preset cuda && cmake --build --preset cuda"});
}

namespace cuda {

void copy_async(const CudaNative&, void*, const void*, std::int64_t) {
  throw UserError(Problem{.what = "no GPU: this binary was built without CUDA"});
}

TimeMark::TimeMark(const CudaNative&) {
  throw UserError(Problem{.what = "no GPU: this binary was built without CUDA"});
}
TimeMark::~TimeMark() = default;
double TimeMark::seconds_since(const TimeMark&) const {
  return 0;
}

GpuLinks gpu_links() {
  return {};
}

std::string activities_problem() {
  return "this binary was built without CUDA";
}

ActivityRecorder::ActivityRecorder() {
  throw UserError(Problem{.what = "no GPU: this binary was built without CUDA"});
}
ActivityRecorder::~ActivityRecorder() = default;
std::uint32_t ActivityRecorder::stream_number(const CudaNative&) const {
  return 0;
}
void ActivityRecorder::start() {}
std::vector<Activity> ActivityRecorder::stop() {
  return {};
}

}  // namespace cuda
}  // namespace hawser

// `World`: the device, stream and tensors of one test case (tests only). It detects writes outside the tensors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/run_op.h"

namespace hawser::ops::testing {

using Values = std::vector<double>;

inline double rounded(double value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  return dtype == DType::bf16 ? static_cast<double>(static_cast<float>(Bf16(narrow))) : static_cast<double>(narrow);
}

// Standard normal numbers times `scale`, rounded to dtype.
inline Values random_values(std::int64_t count, std::uint64_t seed, DType dtype = DType::f32, double scale = 1.0) {
  const RandomStream random(seed, "cases");
  Values out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(rounded(scale * random.normal(static_cast<std::uint64_t>(i)), dtype));
  }
  return out;
}

// The GPU of the tests: one device and one arena for all cases, since creating them is expensive.
struct Gpu {
  std::unique_ptr<Device> device = make_cuda_device();
  Arena arena{*device, std::int64_t{256} << 20};
  std::int64_t cases = 0;
  std::set<std::string> without;  // cases of ops without a CUDA backend
};

// Null if there is no GPU.
inline Gpu* gpu() {
  static const std::unique_ptr<Gpu> made = cuda_info().devices > 0 ? std::make_unique<Gpu>() : nullptr;
  return made.get();
}

inline bool only_cuda() {
  const char* cases = std::getenv("HAWSER_CASES");
  return cases != nullptr && std::string(cases) == "cuda";
}

// The devices that hold data.
inline std::vector<DeviceKind> devices() {
  std::vector<DeviceKind> out{DeviceKind::cpu};
  if (gpu() != nullptr) out.push_back(DeviceKind::cuda);
  return out;
}

// The device, stream and tensors of one run. On meta, tensors have no data and values() are zeros. Only one World at a
// time may use the GPU.
class World {
 public:
  World(DeviceKind kind, int threads) : kind_(kind) {
    if (kind == DeviceKind::cpu) own_ = make_cpu_device({.threads = threads});
    if (kind == DeviceKind::meta) own_ = std::make_unique<MetaDevice>();
    device_ = kind == DeviceKind::cuda ? gpu()->device.get() : own_.get();
    stream_ = device_->make_stream("test");
  }

  Stream& stream() { return *stream_; }
  bool meta() const { return kind_ == DeviceKind::meta; }
  const Trace& trace() const { return static_cast<const MetaDevice&>(*device_).trace(); }

  // A tensor that the op reads; values of FP8 are codes. pad: elements between the rows of the first dim.
  TensorView in(DType dtype, const Shape& shape, const Values& values, std::int64_t pad = 0) {
    const TensorView view = make(dtype, shape, pad);
    set(view, values);
    read_.insert(view.raw());
    return view;
  }
  // A tensor that the op writes; filled with NaN (77 for integers) or `before`.
  TensorView out(DType dtype, const Shape& shape, std::int64_t pad = 0, const Values& before = {}) {
    const TensorView view = make(dtype, shape, pad);
    const double unset = dtype == DType::i32 || size_of(dtype) == 1 ? 77.0 : std::numeric_limits<double>::quiet_NaN();
    set(view, before.empty() ? Values(static_cast<std::size_t>(shape.elements()), unset) : before);
    written_.insert(view.raw());
    return view;
  }
  TensorView in_out(DType dtype, const Shape& shape, const Values& values, std::int64_t pad = 0) {
    const TensorView view = in(dtype, shape, values, pad);
    written_.insert(view.raw());
    return view;
  }
  TensorView workspace(std::int64_t bytes) {
    if (bytes == 0) return {};
    const TensorView view = make(DType::u8, {bytes}, 0);
    if (!meta()) std::memset(host(view), 0xff, static_cast<std::size_t>(bytes));
    upload(view);
    written_.insert(view.raw());
    return view;
  }

  // Waits for the stream and returns the elements in row-major order.
  Values values(const TensorView& view) {
    stream_->synchronize();
    download(view);
    Values out;
    for_each(view, [&](std::byte* at) { out.push_back(get(at, view.dtype())); });
    return out;
  }

  void check_gaps() {
    stream_->synchronize();
    if (meta()) return;
    for (const Made& made : made_) {
      download(made.view);
      const std::byte* const data = host(made.view);
      const std::int64_t row = made.columns * size_of(made.view.dtype());
      const std::int64_t gap = made.pad * size_of(made.view.dtype());
      for (std::int64_t r = 0; r < made.rows; ++r) {
        for (std::int64_t i = row; i < row + gap; ++i) {
          ASSERT_EQ(data[r * (row + gap) + i], kGap) << "a gap between rows was overwritten";
        }
      }
      for (auto i = static_cast<std::size_t>(made.bytes); i < made.mirror.size(); ++i) {
        ASSERT_EQ(made.mirror[i], kGap) << "bytes after a tensor were overwritten";
      }
    }
  }

  void check_record() {
    ASSERT_EQ(trace().items.size(), 1u) << "an op records one work item";
    std::set<std::uint64_t> read, written;
    for (const Access& access : trace().items[0].record.accesses)
      (access.write ? written : read).insert(access.address);
    const auto addresses = [](const std::set<std::byte*>& from) {
      std::set<std::uint64_t> out;
      for (const std::byte* p : from) out.insert(reinterpret_cast<std::uint64_t>(p));
      return out;
    };
    EXPECT_EQ(read, addresses(read_)) << "recorded reads";
    EXPECT_EQ(written, addresses(written_)) << "recorded writes";
  }

 private:
  static constexpr std::byte kGap{0xa5};

  struct Made {
    Storage storage;  // cpu, meta
    TensorView view;
    std::int64_t rows, columns, pad, bytes;
    std::vector<std::byte> mirror;  // cuda: host copy of the tensor and of kGuardBytes bytes after it
  };
  static constexpr std::int64_t kGuardBytes = 256;

  Made& made_of(const TensorView& view) {
    for (Made& made : made_) {
      if (view.raw() >= made.view.raw() && view.raw() < made.view.raw() + std::max<std::int64_t>(made.bytes, 1))
        return made;
    }
    throw std::logic_error("not a tensor of this World");
  }
  // Host address of a tensor's elements.
  std::byte* host(const TensorView& view) {
    if (kind_ != DeviceKind::cuda) return view.raw();
    Made& made = made_of(view);
    return made.mirror.data() + (view.raw() - made.view.raw());
  }
  void upload(const TensorView& view) { exchange(view, true); }
  void download(const TensorView& view) { exchange(view, false); }
  void exchange(const TensorView& view, bool up) {
    if (kind_ != DeviceKind::cuda) return;
    Made& made = made_of(view);
    std::byte *to = made.view.raw(), *from = made.mirror.data();
    if (!up) std::swap(to, from);
    transfer(*stream_, to, from, static_cast<std::int64_t>(made.mirror.size()));
    stream_->synchronize();
  }

  TensorView make(DType dtype, const Shape& shape, std::int64_t pad) {
    const std::int64_t rows = shape.rank() > 1 ? shape[0] : 1;
    const std::int64_t columns = rows > 0 ? shape.elements() / rows : 0;
    const Shape all{std::max<std::int64_t>(rows, 1), std::max<std::int64_t>(columns + pad, 1)};
    Made made{.rows = rows, .columns = columns, .pad = shape.rank() > 1 ? pad : 0};
    TensorView view;
    if (kind_ == DeviceKind::cuda) {
      view = TensorView(gpu()->arena.data() + used_, dtype, all, kind_);
      made.mirror.assign(static_cast<std::size_t>(view.bytes() + kGuardBytes), kGap);
      used_ += round_up(view.bytes() + kGuardBytes, Device::kAlignment);
      if (used_ > gpu()->arena.bytes()) throw std::logic_error("the test arena is too small");
    } else {
      made.storage = Storage(*device_, dtype, all);
      view = made.storage.view();
      if (!meta()) std::memset(view.raw(), std::to_integer<int>(kGap), static_cast<std::size_t>(view.bytes()));
    }
    made.bytes = view.bytes();
    if (pad == 0 || shape.rank() < 2) {
      view = TensorView(view.raw(), dtype, shape, kind_);
    } else {
      view = view.columns(0, columns);
      if (shape.rank() == 3) view = view.split_last(shape[1], shape[2]);
    }
    made.view = view;
    made_.push_back(std::move(made));
    return view;
  }

  template <class Body>
  void for_each(const TensorView& view, const Body& body) {
    if (meta()) return;
    const std::int64_t rows = view.rank() > 1 ? view.size(0) : 1;
    const std::int64_t columns = rows > 0 ? view.elements() / rows : 0;
    const std::int64_t stride = view.rank() > 1 ? view.stride(0) : 0;
    std::byte* const data = host(view);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) body(data + (r * stride + c) * size_of(view.dtype()));
    }
  }

  static double get(const std::byte* at, DType dtype) {
    switch (dtype) {
      case DType::f32:
        return *reinterpret_cast<const float*>(at);
      case DType::bf16:
        return static_cast<float>(*reinterpret_cast<const Bf16*>(at));
      case DType::i32:
        return *reinterpret_cast<const std::int32_t*>(at);
      default:
        return std::to_integer<int>(*at);
    }
  }

  void set(const TensorView& view, const Values& values) {
    ASSERT_EQ(static_cast<std::int64_t>(values.size()), view.elements());
    std::size_t i = 0;
    for_each(view, [&](std::byte* at) {
      const double value = values[i++];
      switch (view.dtype()) {
        case DType::f32:
          *reinterpret_cast<float*>(at) = static_cast<float>(value);
          break;
        case DType::bf16:
          *reinterpret_cast<Bf16*>(at) = Bf16(static_cast<float>(value));
          break;
        case DType::i32:
          *reinterpret_cast<std::int32_t*>(at) = static_cast<std::int32_t>(value);
          break;
        default:
          *at = static_cast<std::byte>(value);
          break;
      }
    });
    upload(view);
  }

  DeviceKind kind_;
  std::unique_ptr<Device> own_;
  Device* device_ = nullptr;
  std::int64_t used_ = 0;  // of the GPU's arena
  std::unique_ptr<Stream> stream_;
  std::vector<Made> made_;
  std::set<std::byte*> read_, written_;
};

}  // namespace hawser::ops::testing

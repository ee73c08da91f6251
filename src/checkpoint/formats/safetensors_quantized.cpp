// Tensors of a SafetensorsFolder that bitsandbytes has quantized.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/formats/safetensors.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::checkpoint {

namespace {

const SafetensorsType kNf4Type{.name = "NF4", .bits = 4, .dtype = std::nullopt};

}  // namespace

template <class T>
std::vector<T> SafetensorsFolder::read_all(const std::string& name) const {
  std::vector<T> values(static_cast<std::size_t>(find(name)->bytes) / sizeof(T));
  read_bytes(name, 0, reinterpret_cast<std::byte*>(values.data()),
             static_cast<std::int64_t>(values.size() * sizeof(T)));
  return values;
}

void SafetensorsFolder::find_quantized_tensors(Problems& problems) {
  std::vector<std::string> states;
  for (const auto& [name, info] : tensors_) {
    if (name.find(kQuantState) != std::string::npos) states.push_back(name);
  }
  std::sort(states.begin(), states.end());
  for (const std::string& state : states) {
    const std::string name = state.substr(0, state.find(kQuantState));
    const Problem place{.file = file_of(*find(state)), .at = io::in_quotes(state)};
    const std::vector<char> text = read_all<char>(state);
    const std::string format = state.substr(name.size() + std::strlen(kQuantState));
    const auto tensor = parse_quant_state(format, {text.begin(), text.end()}, place, problems);
    if (!tensor) continue;
    const QuantizedNames names(name);
    const bool doubly = tensor->mean.has_value();
    const std::int64_t groups = (tensor->blocks() + kNf4GroupBlocks - 1) / kNf4GroupBlocks;
    const auto has = [&](const std::string& part, std::int64_t bytes) {
      const TensorInfo* const info = find(part);
      if (info != nullptr && info->bytes == bytes) return true;
      problems.add({.file = place.file,
                    .what = info == nullptr ? "a tensor of quantized weights is missing"
                                            : "a tensor of quantized weights has another size",
                    .expected = cat(bytes, " bytes"),
                    .got = info == nullptr ? "" : cat(info->bytes),
                    .at = io::in_quotes(part)});
      return false;
    };
    bool complete = has(name, tensor->shape.elements() / 2);
    complete = has(names.scales, tensor->blocks() * (doubly ? 1 : 4)) && complete;
    complete = has(names.levels, 4 * kNf4Levels) && complete;
    if (doubly) complete = has(names.group_scales, 4 * groups) && has(names.map, 4 * 256) && complete;
    if (!complete) continue;
    // Blocks that are taken as they are have our values.
    const auto expect_values = [&](const std::string& part, const auto& values) {
      const auto near = [](float a, float b) { return std::abs(a - b) <= 1e-6f; };
      if (std::ranges::equal(read_all<float>(part), values, near)) return;
      problems.add({.file = place.file,
                    .what = "codes have other values than those of bitsandbytes",
                    .at = io::in_quotes(part)});
    };
    expect_values(names.levels, kNf4Values);
    if (doubly) expect_values(names.map, kSignedDynamicMap);
    TensorInfo& info = tensors_.at(name);
    info.type = &kNf4Type;
    info.shape = tensor->shape;
    quantized_.emplace(name, *tensor);
  }
  // The parts are still found by name, but are no tensors of the folder.
  for (const auto& [name, tensor] : quantized_) {
    const QuantizedNames names(name);
    for (const std::string& part : {names.scales, names.levels, names.group_scales, names.map}) hidden_.insert(part);
  }
  for (const std::string& state : states) hidden_.insert(state);
}

const QuantizedTensor* SafetensorsFolder::find_quantized(const std::string& name) const {
  const auto found = quantized_.find(name);
  return found == quantized_.end() ? nullptr : &found->second;
}

const std::vector<float>& SafetensorsFolder::scales_of(const std::string& name) {
  if (scaled_ == name) return scales_;
  const QuantizedNames names(name);
  if (!quantized_.at(name).mean) {
    scales_ = read_all<float>(names.scales);
  } else {
    const std::vector<std::uint8_t> codes = read_all<std::uint8_t>(names.scales);
    const std::vector<float> group_scales = read_all<float>(names.group_scales), map = read_all<float>(names.map);
    const float mean = *quantized_.at(name).mean;
    scales_.resize(codes.size());
    for (std::size_t b = 0; b < codes.size(); ++b) {
      const float product = map[codes[b]] * group_scales[b / kNf4GroupBlocks];
      scales_[b] = product + mean;
    }
  }
  scaled_ = name;
  return scales_;
}

std::vector<Nf4Group> SafetensorsFolder::read_groups(const std::string& name) const {
  std::vector<Nf4Group> groups;
  for (const float scale : read_all<float>(QuantizedNames(name).group_scales)) {
    groups.push_back({.scale = scale, .mean = *quantized_.at(name).mean});
  }
  return groups;
}

void SafetensorsFolder::read_blocks(const std::string& name, std::int64_t first, std::int64_t count,
                                    Nf4DoubleBlock* out) const {
  constexpr std::int64_t kCodes = kNf4Block / 2;
  std::vector<std::byte> codes(static_cast<std::size_t>(kCodes * count)), scales(static_cast<std::size_t>(count));
  read_bytes(name, kCodes * first, codes.data(), kCodes * count);
  read_bytes(QuantizedNames(name).scales, first, scales.data(), count);
  for (std::int64_t b = 0; b < count; ++b) {
    out[b].scale = static_cast<std::uint8_t>(scales[static_cast<std::size_t>(b)]);
    std::memcpy(out[b].codes.data(), &codes[static_cast<std::size_t>(kCodes * b)], kCodes);
  }
}

void SafetensorsFolder::read_quantized(const std::string& name, const Region& region, const TensorView& out) {
  constexpr std::int64_t kPiece = 2 * kStagingBytes;  // elements
  const std::vector<float>& scales = scales_of(name);
  std::vector<float> values;
  std::int64_t done = 0;
  for_each_run(find(name)->shape, region, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t at = first; at < first + count;) {
      const std::int64_t piece = std::min(kPiece, first + count - at), begin = at / 2, end = (at + piece + 1) / 2;
      staging_.resize(std::max(staging_.size(), static_cast<std::size_t>(end - begin)));
      read_bytes(name, begin, staging_.data(), end - begin);
      values.resize(static_cast<std::size_t>(piece));
      dequantize_to(staging_.data(), scales, at, piece, values.data());
      dispatch_float(out.dtype(), [&](auto tag) {
        using T = decltype(tag);
        T* const to = reinterpret_cast<T*>(out.raw()) + done;
        for (std::int64_t i = 0; i < piece; ++i) to[i] = T(values[static_cast<std::size_t>(i)]);
      });
      at += piece;
      done += piece;
    }
  });
}

}  // namespace hawser::checkpoint

#include "checkpoint/formats/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/hub_name.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace {

constexpr std::int64_t kMaxIndexBytes = 100'000'000;

// float16 to float32, exact; NaN stays NaN.
float from_f16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

template <class To, class Bits, float (*kToFloat)(Bits)>
void convert(const std::byte* from, std::byte* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    const To value(kToFloat(bits));
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(To)), &value, sizeof(To));
  }
}

float from_f64(std::uint64_t bits) {
  return static_cast<float>(std::bit_cast<double>(bits));
}

CastRun cast_from(const SafetensorsType& type, DType to) {
  if (type.dtype) return cast_run(*type.dtype, to);
  const std::string name = type.name;
  if (name == "F16" && to == DType::f32) return convert<float, std::uint16_t, from_f16>;
  if (name == "F16" && to == DType::bf16) return convert<Bf16, std::uint16_t, from_f16>;
  if (name == "F64" && to == DType::f32) return convert<float, std::uint64_t, from_f64>;
  if (name == "F64" && to == DType::bf16) return convert<Bf16, std::uint64_t, from_f64>;
  return nullptr;
}

// File name of each tensor of an index; adds problems.
std::map<std::string, std::string> read_index(const std::string& path, Problems& problems) {
  std::map<std::string, std::string> files;
  std::string text;
  try {
    text = io::read_text(path, kMaxIndexBytes);
  } catch (const UserError& error) {
    return problems.add({.what = error.what()}), files;
  }
  const auto json = io::parse_json(text, path, "index", 0, problems);
  if (!json) return files;
  const auto map = json->is_object() ? json->find("weight_map") : json->end();
  if (!json->is_object() || map == json->end() || !map->is_object()) {
    return problems.add({.file = path, .what = "index without a weight_map"}), files;
  }
  for (const auto& [name, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (!io::is_plain_name(file) || !file.ends_with(".safetensors")) {
      problems.add({.file = path,
                    .what = "the index names a file that is not a .safetensors file of its own folder",
                    .got = value.is_string() ? io::in_quotes(file) : "a non-string value",
                    .at = cat("weight_map.", io::in_quotes(name))});
    } else {
      files.emplace(name, file);
    }
  }
  if (map->empty()) problems.add({.file = path, .what = "the index lists no tensor"});
  return files;
}

}  // namespace

void SafetensorsFolder::add_file(const std::string& path, Problems& problems) {
  try {
    io::File file = io::File::open(path);
    for (auto& [name, info] : read_safetensors_header(file, problems)) {
      info.file = static_cast<int>(files_.size());
      const auto [place, is_new] = tensors_.try_emplace(name, info);
      if (!is_new) {
        problems.add({.file = path,
                      .what = "a tensor that is also in another file",
                      .got = file_of(place->second),
                      .at = io::in_quotes(name)});
      }
    }
    files_.push_back(std::move(file));
  } catch (const UserError& error) {
    problems.add({.what = error.what(), .cause = "a file cannot be read"});
  }
}

std::optional<SafetensorsFolder> SafetensorsFolder::open(const std::string& path, Problems& problems) {
  const std::size_t before = problems.size();
  std::string file = path;
  if (io::is_folder(path)) {
    file = path + "/model.safetensors";
    if (!io::exists(file)) file = path + "/model.safetensors.index.json";
    if (!io::exists(file)) {
      const bool pickled =
          io::exists(path + "/pytorch_model.bin") || io::exists(path + "/pytorch_model.bin.index.json");
      const auto hub = pickled ? std::nullopt : hub_name_of(path);
      problems.add(
          {.file = path,
           .what = "no weights in this folder",
           .expected = "model.safetensors or model.safetensors.index.json",
           .got = pickled ? "pytorch_model.bin" : "",
           .hint = pickled ? cat("python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('",
                                 path, "', dtype='auto').save_pretrained('FOLDER')\", and that folder with the ",
                                 "tokenizer's files")
                   : hub   ? download_command(*hub)
                           : ""});
      return std::nullopt;
    }
  }
  SafetensorsFolder folder;
  if (file.ends_with(".json")) {
    const auto index = read_index(file, problems);
    std::string parent = std::filesystem::path(file).parent_path().string();
    if (!parent.empty()) parent += '/';
    std::set<std::string> names;
    for (const auto& [name, shard] : index) names.insert(shard);
    // Compares index and files only if all could be read.
    const auto hub = hub_name_of(parent);
    for (const std::string& name : names) {
      if (hub && !io::exists(parent + name)) {
        problems.add({.file = parent + name,
                      .what = "a file of the index is missing in the Hugging Face cache",
                      .hint = download_command(*hub)});
      } else {
        folder.add_file(parent + name, problems);
      }
    }
    if (problems.size() == before) {
      for (const auto& [name, shard] : index) {
        const TensorInfo* info = folder.find(name);
        if (info == nullptr || folder.file_of(*info) != parent + shard) {
          problems.add({.file = parent + shard, .what = "a tensor of the index is missing", .at = io::in_quotes(name)});
        }
      }
      for (const auto& [name, info] : folder.tensors_) {
        if (!index.contains(name)) {
          problems.add({.file = folder.file_of(info),
                        .what = "a tensor that the index does not list",
                        .at = io::in_quotes(name)});
        }
      }
    }
  } else {
    folder.add_file(file, problems);
  }
  if (problems.size() == before) folder.find_quantized_tensors(problems);
  if (problems.size() > before) return std::nullopt;
  for (const auto& [name, info] : folder.tensors_) {
    if (!folder.hidden_.contains(name)) folder.names_.push_back(name);
  }
  std::sort(folder.names_.begin(), folder.names_.end());
  return folder;
}

const TensorInfo* SafetensorsFolder::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const std::string& SafetensorsFolder::file_of(const TensorInfo& info) const {
  return files_[static_cast<std::size_t>(info.file)].path();
}

void SafetensorsFolder::read(const std::string& name, const Region& region, const TensorView& out) {
  const TensorInfo* info = find(name);
  HAWSER_CHECK(info != nullptr, "no tensor ", io::in_quotes(name));
  HAWSER_CHECK(is_inside(region, info->shape), io::in_quotes(name), " ", info->shape.text(), ": box ", region.text());
  HAWSER_CHECK(out.device() == DeviceKind::cpu && out.dense() && out.elements() == region.elements(),
               io::in_quotes(name), ": box ", region.text(), " into a view of ", out.text());
  const bool in_float = out.dtype() == DType::f32 || out.dtype() == DType::bf16;
  if (find_quantized(name) != nullptr && in_float) return read_quantized(name, region, out);
  const CastRun cast = cast_from(*info->type, out.dtype());
  if (cast == nullptr) {
    throw UserError(Problem{.file = file_of(*info),
                            .what = "dtype cannot be converted",
                            .expected = to_string(out.dtype()),
                            .got = info->type->name,
                            .at = io::in_quotes(name)});
  }
  const io::File& file = files_[static_cast<std::size_t>(info->file)];
  const std::int64_t element = info->type->bits / 8;
  std::byte* to = out.raw();
  const std::int64_t to_element = size_of(out.dtype());

  // Ranges of the file, [begin, begin + bytes); nearby ones are merged into one read.
  struct Stretch {
    std::int64_t begin, bytes;
  };
  std::vector<Stretch> batch;
  const auto flush = [&] {
    if (batch.empty()) return;
    const std::int64_t begin = batch.front().begin, span = batch.back().begin + batch.back().bytes - begin;
    staging_.resize(static_cast<std::size_t>(std::max<std::int64_t>(span, static_cast<std::int64_t>(staging_.size()))));
    file.read_at(begin, staging_.data(), span);
    for (const Stretch& stretch : batch) {
      const std::int64_t count = stretch.bytes / element;
      cast(staging_.data() + (stretch.begin - begin), to, count);
      to += count * to_element;
    }
    batch.clear();
  };
  const std::int64_t max = kStagingBytes / element * element;
  for_each_run(info->shape, region, [&](std::int64_t first, std::int64_t count) {
    std::int64_t begin = info->begin + first * element;
    std::int64_t bytes = count * element;
    while (bytes > 0) {
      const std::int64_t piece = std::min(bytes, max);
      if (!batch.empty() && (begin + piece - batch.front().begin > max ||
                             begin - (batch.back().begin + batch.back().bytes) > kGapBytes)) {
        flush();
      }
      batch.push_back({begin, piece});
      begin += piece;
      bytes -= piece;
    }
  });
  flush();
}

void SafetensorsFolder::read_bytes(const std::string& name, std::int64_t begin, std::byte* out,
                                   std::int64_t count) const {
  const TensorInfo* info = find(name);
  HAWSER_CHECK(info != nullptr && begin >= 0 && count >= 0 && begin <= info->bytes && count <= info->bytes - begin,
               io::in_quotes(name), ": bytes ", begin, " to ", begin + count);
  files_[static_cast<std::size_t>(info->file)].read_at(info->begin + begin, out, count);
}

std::uint64_t SafetensorsFolder::identity() const {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  std::vector<std::byte> sample(static_cast<std::size_t>(kSampleBytes));
  for (const std::string& name : names_) {
    const TensorInfo& info = *find(name);
    const std::string head = cat(name, " ", info.type->name, " ", info.shape.text(), "\n");
    XXH3_64bits_update(hash.get(), head.data(), head.size());
    const std::int64_t last = std::max<std::int64_t>(0, info.bytes - kSampleBytes);
    std::int64_t done = 0;
    for (const std::int64_t at : {std::int64_t{0}, last / 2, last}) {
      const std::int64_t begin = std::max(at, done), count = std::min(kSampleBytes, info.bytes - begin);
      if (count <= 0) continue;
      read_bytes(name, begin, sample.data(), count);
      XXH3_64bits_update(hash.get(), sample.data(), static_cast<std::size_t>(count));
      done = begin + count;
    }
  }
  return XXH3_64bits_digest(hash.get());
}

}  // namespace hawser::checkpoint

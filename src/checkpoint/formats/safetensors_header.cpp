#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/shape_json.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit

constexpr std::array<SafetensorsType, 21> kTypes{{
    {"F32", 32, DType::f32},      {"BF16", 16, DType::bf16},    {"F16", 16, std::nullopt},
    {"F64", 64, std::nullopt},    {"I32", 32, DType::i32},      {"I64", 64, DType::i64},
    {"U8", 8, DType::u8},         {"BOOL", 8, std::nullopt},    {"I8", 8, std::nullopt},
    {"I16", 16, std::nullopt},    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt}, {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt}, {"F4", 4, std::nullopt},      {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"C64", 64, std::nullopt},    {"F8_E4M3FNUZ", 8, std::nullopt},
}};

// The problem of one entry, without its file and name; `what` is empty if it is valid.
Problem read_entry(const io::Json& entry, std::int64_t data_begin, std::int64_t data_bytes, TensorInfo& info) {
  if (!entry.is_object()) return {.what = "a tensor's entry is not an object"};
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end()) {
    return {.what = "a tensor without dtype, shape or data_offsets"};
  }
  info.type = dtype->is_string() ? find_safetensors_type(dtype->get<std::string>()) : nullptr;
  if (info.type == nullptr) {
    return {.what = "unknown dtype",
            .got = dtype->is_string() ? io::in_quotes(dtype->get<std::string>()) : "a non-string value"};
  }
  const auto sizes = as_shape(*shape);
  if (!sizes) return {.what = "invalid shape", .expected = cat("at most ", Shape::kMaxRank, " whole numbers")};
  const auto bits = checked_product(*sizes, info.type->bits);
  if (!bits) return {.what = "shape overflows", .got = sizes->text()};
  if (!offsets->is_array() || offsets->size() != 2) return {.what = "data_offsets are not two numbers"};
  const auto begin = io::as_count((*offsets)[0]), end = io::as_count((*offsets)[1]);
  if (!begin || !end || *begin > *end) {
    return {.what = "invalid data_offsets", .expected = "begin <= end, below 2^63"};
  }
  if (*end > data_bytes) {
    return {.what = "data past the end of the file: the file is truncated, or its header is wrong",
            .expected = cat("data_offsets up to ", data_bytes),
            .got = cat(*end)};
  }
  if (*bits % 8 != 0 || *bits / 8 != *end - *begin) {
    return {.what = "bytes do not match dtype and shape", .expected = cat(*bits / 8), .got = cat(*end - *begin)};
  }
  info.shape = *sizes;
  info.begin = data_begin + *begin;
  info.bytes = *end - *begin;
  return {};
}

// The tensors must tile the data: no overlap, no gap, nothing after the last.
void check_tiling(const std::string& file, std::int64_t begin, std::int64_t end,
                  const std::map<std::string, TensorInfo>& tensors, Problems& problems) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  for (const auto& [name, info] : tensors) order.emplace_back(&name, &info);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->bytes) < std::pair(b.second->begin, b.second->bytes);
  });
  std::int64_t at = begin;
  for (const auto& [name, info] : order) {
    if (info->begin < at) {
      problems.add({.file = file,
                    .what = "overlapping tensors",
                    .expected = cat("data from byte ", at, " on"),
                    .got = cat("byte ", info->begin),
                    .at = io::in_quotes(*name)});
    } else if (info->begin > at) {
      problems.add({.file = file,
                    .what = "a gap between tensors",
                    .expected = cat("data from byte ", at, " on"),
                    .got = cat("byte ", info->begin),
                    .at = io::in_quotes(*name)});
    }
    at = std::max(at, info->begin + info->bytes);
  }
  if (at < end) {
    problems.add({.file = file,
                  .what = "bytes after the last tensor",
                  .expected = cat(at, " bytes in the file"),
                  .got = cat(end)});
  }
}

}  // namespace

const SafetensorsType* find_safetensors_type(const std::string& name) {
  for (const SafetensorsType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::map<std::string, TensorInfo> read_safetensors_header(const io::File& file, Problems& problems) {
  std::map<std::string, TensorInfo> tensors;
  const std::string& path = file.path();
  const std::int64_t bytes = file.bytes();
  const auto reject = [&](Problem problem) {
    problem.file = path;
    problems.add(std::move(problem));
    return std::map<std::string, TensorInfo>{};
  };
  if (bytes < kLengthBytes) {
    return reject(
        {.what = "not a safetensors file: too short for a header", .expected = "8 bytes at least", .got = cat(bytes)});
  }
  std::array<std::uint8_t, kLengthBytes> word{};
  file.read_at(0, reinterpret_cast<std::byte*>(word.data()), kLengthBytes);
  std::uint64_t length = 0;  // little-endian
  for (std::size_t i = 0; i < word.size(); ++i) length |= std::uint64_t{word[i]} << (8 * i);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    return reject({.what = "header too long",
                   .expected = cat("at most ", kMaxHeaderBytes, " bytes"),
                   .got = cat(length),
                   .at = "byte 0"});
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes < 2) {
    return reject({.what = "header too short", .expected = "2 bytes at least", .got = cat(length), .at = "byte 0"});
  }
  if (header_bytes > bytes - kLengthBytes) {
    return reject({.what = "header longer than the file: the file is truncated, or is not safetensors",
                   .expected = cat(kLengthBytes + header_bytes, " bytes at least"),
                   .got = cat(bytes),
                   .at = "byte 0"});
  }
  std::string text(static_cast<std::size_t>(header_bytes), '\0');
  file.read_at(kLengthBytes, reinterpret_cast<std::byte*>(text.data()), header_bytes);
  if (text[0] != '{') return reject({.what = "header does not begin with {", .at = "byte 8"});
  const auto json = io::parse_json(text, path, "header", kLengthBytes, problems);
  if (!json) return {};

  const std::int64_t data_begin = kLengthBytes + header_bytes;
  const std::size_t before = problems.size();
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") {
      const bool texts = entry.is_object() && std::all_of(entry.begin(), entry.end(),
                                                          [](const io::Json& value) { return value.is_string(); });
      if (!texts) problems.add({.file = path, .what = "__metadata__ is not an object of strings"});
      continue;
    }
    TensorInfo info;
    Problem problem = read_entry(entry, data_begin, bytes - data_begin, info);
    if (problem.what.empty()) {
      tensors.emplace(name, info);
    } else {
      problem.file = path;
      problem.at = io::in_quotes(name);
      problems.add(std::move(problem));
    }
  }
  // If an entry is missing, its bytes would be reported a second time, as a gap.
  if (problems.size() == before) check_tiling(path, data_begin, bytes, tensors, problems);
  return tensors;
}

}  // namespace hawser::checkpoint

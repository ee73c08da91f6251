#include "checkpoint/formats/safetensors_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/paths.h"
#include "checkpoint/boxes.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace {

constexpr float kF16Overflow = 65520;  // this and larger values round to infinity in float16
constexpr std::int64_t kStagingElements = std::int64_t{1} << 20;

// float32 to float16, rounded to nearest even; NaN stays NaN.
std::uint16_t to_f16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(word >> 16 & 0x8000u);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (std::bit_cast<float>(magnitude) >= kF16Overflow) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: multiples of 2^-24
    half = static_cast<std::uint32_t>(std::lrint(std::bit_cast<float>(magnitude) * 0x1p24f));
  } else {
    const std::uint32_t shifted = magnitude - (112u << 23);
    half = (shifted + 0xfffu + (shifted >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

void to_f16_run(const std::byte* from, std::byte* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, from + 4 * i, 4);
    const std::uint16_t half = to_f16(value);
    std::memcpy(to + 2 * i, &half, 2);
  }
}

// The least float32 that rounds to infinity in bf16.
constexpr float kBf16Overflow = 0x1.ffp+127f;

// Throws UserError for a finite float32 that float16, or bf16, would make infinite.
void check_range(const std::string& tensor, bool f16, const std::byte* from, std::int64_t count) {
  const float overflow = f16 ? kF16Overflow : kBf16Overflow;
  for (std::int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, from + 4 * i, 4);
    if (!std::isfinite(value) || std::abs(value) < overflow) continue;
    throw UserError(Problem{.what = cat("a weight is outside the range of ", f16 ? "float16" : "bf16"),
                            .expected = f16 ? "at most 65504" : "at most 3.38953e+38",
                            .got = cat(value),
                            .at = tensor,
                            .hint = f16 ? "--dtype bf16" : "--dtype float32"});
  }
}

const char* type_name(const SafetensorsSpec& spec) {
  if (spec.f16) return "F16";
  switch (spec.dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
    case DType::f8e4m3:
      return "F8_E4M3";
    case DType::f8e5m2:
      return "F8_E5M2";
    case DType::nf4:
    case DType::nf4_double:
      HAWSER_CHECK(false, spec.name, ": safetensors have no ", to_string(spec.dtype));
  }
  return "?";
}

std::int64_t element_size(const SafetensorsSpec& spec) {
  return spec.f16 ? 2 : size_of(spec.dtype);
}

std::int64_t bytes_of(const SafetensorsSpec& spec) {
  return spec.shape.elements() * element_size(spec);
}

// Removes temporary folders of killed exports to the same folder: they are no longer locked. If folders cannot be
// locked, liveness is unknown and they stay.
void clean_leftovers_of_exports(const std::string& parent, const std::string& prefix) {
  constexpr std::size_t kNonceDigits = 16;
  for (const std::string& name : io::list_folder(parent)) {
    const std::string path = cat(parent, "/", name);
    if (name.rfind(prefix, 0) != 0 || name.size() != prefix.size() + kNonceDigits || !io::is_folder(path)) continue;
    if (io::File::open_folder(path).try_lock() == io::File::Lock::taken) io::remove_tree(path);
  }
}

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string folder, std::vector<SafetensorsSpec> specs, SafetensorsOptions options)
    : folder_(without_slash(std::move(folder))), specs_(std::move(specs)), options_(std::move(options)) {
  std::set<std::string> names;
  for (const SafetensorsSpec& spec : specs_) {
    HAWSER_CHECK(spec.name != "__metadata__" && names.insert(spec.name).second, "two tensors named ", spec.name);
  }
  HAWSER_CHECK(!specs_.empty() && options_.max_shard_bytes > 0, specs_.size(), " tensors in shards of ",
               options_.max_shard_bytes, " bytes");
  plan_shards();
  const std::string parent = folder_of(folder_);
  io::make_folders(parent);
  check_target();
  std::int64_t needed = 0;
  for (const SafetensorsSpec& spec : specs_) needed += bytes_of(spec);
  for (const std::string& header : headers_) needed += static_cast<std::int64_t>(header.size());
  io::check_space(folder_, needed);
  const std::string prefix = cat(".", std::filesystem::path(folder_).filename().string(), ".tmp-");
  clean_leftovers_of_exports(parent, prefix);
  temporary_ = cat(parent, "/", prefix, io::make_nonce());
  io::make_folder(temporary_);
  lock_ = io::File::open_folder(temporary_);
  lock_.try_lock();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (temporary_.empty()) return;
  file_ = io::File();
  io::remove_tree(temporary_);
}

void SafetensorsWriter::check_target() const {
  if (!io::exists(folder_)) return;
  const auto reject = [this](const std::string& what, const std::string& hint) {
    throw UserError(Problem{.file = folder_, .what = what, .hint = hint});
  };
  if (!io::is_folder(folder_)) reject("is a file, not a folder", "another folder");
  const std::vector<std::string> names = io::list_folder(folder_);
  if (names.empty()) return;
  if (!options_.replace) reject("the export folder is not empty", "another folder");
  // Replacing deletes, so only what is clearly an export.
  const bool has_weights = io::exists(cat(folder_, "/", single_name())) || io::exists(cat(folder_, "/", index_name()));
  const bool has_folders = std::any_of(
      names.begin(), names.end(), [this](const std::string& name) { return io::is_folder(cat(folder_, "/", name)); });
  if (!has_weights || has_folders) reject("the folder contains files that are not part of an export", "another folder");
}

void SafetensorsWriter::plan_shards() {
  // Shards follow the order of the specs, so that one file is open at a time.
  std::vector<std::vector<std::size_t>> shards(1);
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::int64_t bytes = bytes_of(specs_[i]);
    if (!shards.back().empty() && bytes > options_.max_shard_bytes - filled) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  places_.resize(specs_.size());
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    // Wide dtypes first, as in the reference implementation, so that every tensor is aligned to its dtype.
    std::vector<std::size_t>& members = shards[shard];
    std::stable_sort(members.begin(), members.end(), [this](std::size_t a, std::size_t b) {
      return element_size(specs_[a]) > element_size(specs_[b]);
    });
    io::Json header = io::Json::object();
    header["__metadata__"] = options_.metadata;
    std::int64_t at = 0;
    for (const std::size_t i : members) {
      const std::int64_t bytes = bytes_of(specs_[i]);
      const Shape& shape = specs_[i].shape;
      header[specs_[i].name] = {{"dtype", type_name(specs_[i])},
                                {"shape", std::vector<std::int64_t>(shape.begin(), shape.end())},
                                {"data_offsets", {at, at + bytes}}};
      places_[i] = {static_cast<int>(shard), at};
      at += bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
    headers_.push_back(length + text);
    for (const std::size_t i : members) places_[i].begin += static_cast<std::int64_t>(headers_.back().size());
  }
}

std::string SafetensorsWriter::shard_name(int shard) const {
  if (headers_.size() == 1) return single_name();
  char name[64];
  std::snprintf(name, sizeof(name), "-%05d-of-%05zu.safetensors", shard + 1, headers_.size());
  return options_.name + name;
}

void SafetensorsWriter::open_shard(int shard) {
  if (open_shard_ == shard) return;
  if (file_.is_open()) {
    file_.sync();
    file_.close();
  }
  open_shard_ = shard;
  file_ = io::File::create(cat(temporary_, "/", shard_name(shard)));
  const std::string& header = headers_[static_cast<std::size_t>(shard)];
  file_.write_at(0, reinterpret_cast<const std::byte*>(header.data()), static_cast<std::int64_t>(header.size()));
}

void SafetensorsWriter::skip_empty() {
  while (next_ < specs_.size() && specs_[next_].shape.elements() == 0) open_shard(places_[next_++].shard);
}

void SafetensorsWriter::append(const TensorView& piece) {
  skip_empty();
  if (piece.elements() == 0) return;
  HAWSER_CHECK(next_ < specs_.size() && !temporary_.empty(), "a piece after the last tensor");
  const SafetensorsSpec& spec = specs_[next_];
  HAWSER_CHECK(piece.device() == DeviceKind::cpu && piece.dense() && piece.elements() <= spec.shape.elements() - done_,
               spec.name, " ", spec.shape.text(), ", ", done_, " elements written: a piece ", piece.text());
  const CastRun cast = spec.f16 && piece.dtype() == DType::f32 ? to_f16_run : cast_run(piece.dtype(), spec.dtype);
  HAWSER_CHECK(cast != nullptr, spec.name, " of ", to_string(spec.dtype), ": a piece ", piece.text());
  open_shard(places_[next_].shard);
  const std::int64_t element = element_size(spec);
  const std::int64_t begin = places_[next_].begin + done_ * element;
  if (piece.dtype() == spec.dtype && !spec.f16) {
    file_.write_at(begin, piece.raw(), piece.bytes());
  } else {
    const std::int64_t total = piece.elements();
    staging_.resize(static_cast<std::size_t>(std::min(kStagingElements, total) * element));
    for (std::int64_t at = 0; at < total; at += kStagingElements) {
      const std::int64_t count = std::min(kStagingElements, total - at);
      const std::byte* from = piece.raw() + at * size_of(piece.dtype());
      if (piece.dtype() == DType::f32) check_range(spec.name, spec.f16, from, count);
      cast(from, staging_.data(), count);
      file_.write_at(begin + at * element, staging_.data(), count * element);
    }
  }
  done_ += piece.elements();
  if (done_ == spec.shape.elements()) {
    ++next_;
    done_ = 0;
  }
}

void SafetensorsWriter::add_file(const std::string& name, const std::string& content, const std::string& folder) {
  HAWSER_CHECK(io::is_plain_name(name) && !temporary_.empty(), "a file ", io::in_quotes(name), " for an export");
  if (folder.empty()) {
    io::write_text_atomically(cat(temporary_, "/", name), content);
    return;
  }
  HAWSER_CHECK(io::is_plain_name(folder), "a folder ", io::in_quotes(folder), " for an export");
  const std::string in = cat(temporary_, "/", folder);
  if (!io::exists(in)) io::make_folder(in);
  io::write_text_atomically(cat(in, "/", name), content);
  io::sync_folder(in);
}

void SafetensorsWriter::write_index() {
  std::int64_t total = 0;
  io::Json map = io::Json::object();
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    map[specs_[i].name] = shard_name(places_[i].shard);
    total += bytes_of(specs_[i]);
  }
  const io::Json index{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  add_file(index_name(), index.dump(2) + "\n");
}

void SafetensorsWriter::finish() {
  HAWSER_CHECK(!temporary_.empty(), "an export finished twice");
  skip_empty();
  HAWSER_CHECK(next_ == specs_.size(), specs_[next_].name, " is not complete: ", done_, " elements of ",
               specs_[next_].shape.text());
  file_.sync();
  file_.close();
  if (headers_.size() > 1) write_index();
  io::sync_folder(temporary_);
  check_target();
  bool swapped = false;
  if (io::exists(folder_) && !io::list_folder(folder_).empty()) {
    swapped = io::exchange_paths(temporary_, folder_);
    if (!swapped) {
      const std::string old = temporary_ + ".old";
      io::rename_path(folder_, old);
      io::rename_path(temporary_, folder_);
      io::remove_tree(old);
    }
  } else {
    io::rename_path(temporary_, folder_);
  }
  if (swapped) io::remove_tree(temporary_);  // the replaced export
  temporary_.clear();
  io::sync_folder(folder_of(folder_));
}

void write_safetensors(const std::string& folder, const std::vector<SafetensorsSpec>& specs,
                       const std::function<TensorView(const SafetensorsSpec&)>& supply,
                       const SafetensorsOptions& options) {
  SafetensorsWriter writer(folder, specs, options);
  for (const SafetensorsSpec& spec : specs) writer.append(supply(spec));
  writer.finish();
}

}  // namespace hawser::checkpoint

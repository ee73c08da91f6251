#include "checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>

#include "checkpoint/root.h"
#include "checkpoint/shape_json.h"
#include "io/files.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace {

constexpr const char* kFormat = "hawser-checkpoint";

io::Json json_of(const Shape& shape) {
  return io::Json(std::vector<std::int64_t>(shape.begin(), shape.end()));
}

io::Json json_of(const SavedTensor& tensor) {
  io::Json boxes = io::Json::array();
  for (const SavedBox& box : tensor.boxes) {
    boxes.push_back(io::Json::array({box.file, box.begin, box.bytes, json_of(box.region.offset),
                                     json_of(box.region.extent), checksum_text(box.checksum)}));
  }
  return io::Json{{"name", tensor.name},
                  {"shape", json_of(tensor.shape)},
                  {"dtype", to_string(tensor.dtype)},
                  {"boxes", std::move(boxes)}};
}

std::optional<std::uint64_t> checksum_from(const io::Json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
  return std::stoull(text, nullptr, 16);
}

std::optional<ObjectSize> file_from(const io::Json& value) {
  if (!value.is_array() || value.size() != 2 || !value[0].is_string()) return std::nullopt;
  const auto bytes = io::as_count(value[1]);
  if (!bytes || !io::is_plain_name(value[0].get_ref<const std::string&>())) return std::nullopt;
  return ObjectSize{value[0].get<std::string>(), *bytes};
}

std::optional<SavedAttachment> attachment_from(const io::Json& value) {
  if (!value.is_array() || value.size() != 3 || !value[0].is_string()) return std::nullopt;
  const auto bytes = io::as_count(value[1]);
  const auto checksum = checksum_from(value[2]);
  if (!bytes || !checksum || !io::is_plain_name(value[0].get_ref<const std::string&>())) return std::nullopt;
  return SavedAttachment{value[0].get<std::string>(), *bytes, *checksum};
}

// "" if the box is valid.
std::string read_box(const io::Json& value, const std::vector<ObjectSize>& files, const SavedTensor& tensor,
                     SavedBox& box) {
  if (!value.is_array() || value.size() != 6) return "a box is not an array of six";
  const auto file = io::as_count(value[0]), begin = io::as_count(value[1]), bytes = io::as_count(value[2]);
  const auto offset = as_shape(value[3]), extent = as_shape(value[4]);
  const auto checksum = checksum_from(value[5]);
  if (!file || !begin || !bytes || !offset || !extent || !checksum) return "a box with an invalid entry";
  box.region = {*offset, *extent};
  if (!is_inside(box.region, tensor.shape) || box.region.elements() == 0) return "a box outside its tensor";
  if (*bytes != box.region.elements() * size_of(tensor.dtype)) return "a box whose bytes do not match its extent";
  if (*file >= static_cast<std::int64_t>(files.size())) return "a box in a file that is not listed";
  const std::int64_t limit = files[static_cast<std::size_t>(*file)].bytes;
  if (*bytes > limit || *begin > limit - *bytes) return "a box past the end of its file";
  box.file = static_cast<int>(*file);
  box.begin = *begin;
  box.bytes = *bytes;
  box.checksum = *checksum;
  return "";
}

// "" if the tensor is valid.
std::string read_tensor(const io::Json& value, const std::vector<ObjectSize>& files, SavedTensor& tensor) {
  if (!value.is_object()) return "a tensor is not an object";
  const auto name = value.find("name"), shape = value.find("shape"), dtype = value.find("dtype");
  const auto boxes = value.find("boxes");
  if (name == value.end() || !name->is_string()) return "a tensor without a name";
  tensor.name = name->get<std::string>();
  if (shape == value.end() || dtype == value.end() || !dtype->is_string() || boxes == value.end() ||
      !boxes->is_array()) {
    return "a tensor without shape, dtype or boxes";
  }
  const auto type = dtype_from(dtype->get<std::string>());
  if (!type) return "an unknown dtype";
  tensor.dtype = *type;
  const auto sizes = as_shape(*shape);
  if (!sizes || !checked_product(*sizes, size_of(*type))) return "an invalid shape";
  tensor.shape = *sizes;
  for (const io::Json& entry : *boxes) {
    const std::string wrong = read_box(entry, files, tensor, tensor.boxes.emplace_back());
    if (!wrong.empty()) return wrong;
  }
  const std::string overlap = find_overlap(tensor);
  return overlap.empty() ? "" : "boxes overlap: " + overlap;
}

std::string checksum_of(const io::Json& document) {
  const std::string text = document.dump();
  return checksum_text(XXH3_64bits(text.data(), text.size()));
}

// One key and one tensor per line, for readability.
std::string printed(const io::Json& document) {
  std::string text = "{";
  for (const char* key : {"format", "version", "step", "world", "meta", "files", "attached", "checksum"}) {
    if (!document.contains(key)) continue;
    text += cat("\"", key, "\": ", document[key].dump(), ",\n ");
  }
  text += "\"tensors\": [";
  const char* between = "\n  ";
  for (const io::Json& tensor : document["tensors"]) {
    text += between + tensor.dump();
    between = ",\n  ";
  }
  return text + "]}\n";
}

// The value of a key, moved out; null if missing.
io::Json take(io::Json& document, const char* key) {
  const auto found = document.find(key);
  return found == document.end() ? io::Json() : std::move(*found);
}

// Whether `document` was saved with this version, so that its other one is damage: then its checksum fits.
bool was_saved_with_this_version(io::Json document) {
  const io::Json checksum = take(document, "checksum");
  document.erase("checksum");
  document["version"] = kManifestVersion;
  return checksum == io::Json(checksum_of(document));
}

// Checks that `text`, parsed as `document`, is an unchanged manifest of this format and version. Removes the checksum
// from `document`. nullopt if valid. IoError for one of a newer version: nothing is known about its contents, so a
// caller must not pass over it as corrupt.
std::optional<Problem> find_change(io::Json& document, const std::string& text, const std::string& path) {
  if (!document.is_object() || !document.contains("format") || document["format"] != io::Json(kFormat)) {
    return Problem{.what = "not a checkpoint manifest", .expected = cat("\"format\": \"", kFormat, "\"")};
  }
  const auto version = io::count_at(document, "version");
  if (version != kManifestVersion) {
    const Problem unknown{.file = path,
                          .what = "unknown checkpoint version",
                          .expected = cat(kManifestVersion),
                          .got = version ? cat(*version) : "none",
                          .hint = "the Hawser version that wrote it"};
    if (version && *version > kManifestVersion && !was_saved_with_this_version(document)) {
      throw io::IoError(unknown.line());
    }
    return unknown;
  }
  const bool printable = document.contains("tensors") && document["tensors"].is_array();
  const std::string canonical = printable ? printed(document) : "";
  const io::Json checksum = take(document, "checksum");
  document.erase("checksum");
  const std::string computed = checksum_of(document);
  if (checksum != io::Json(computed)) {
    return Problem{.what = "checksum mismatch: the manifest changed since it was saved",
                   .expected = checksum.dump(),
                   .got = cat("\"", computed, "\"")};
  }
  if (printable && canonical != text) {
    const auto differs = std::ranges::mismatch(canonical, text).in2 - text.begin();
    return Problem{.what = "changed since it was saved", .at = cat("byte ", differs)};
  }
  return std::nullopt;
}

void check_length(const StorageReader& reader, const ObjectSize& file, Problems& problems) {
  try {
    const std::int64_t bytes = reader.bytes(file.name);
    if (bytes == file.bytes) return;
    problems.add({.file = reader.path_of(file.name),
                  .what = bytes < file.bytes ? "truncated file" : "file too long",
                  .expected = cat(file.bytes, " bytes"),
                  .got = cat(bytes)});
  } catch (const io::IoError&) {
    throw;  // says nothing about the contents
  } catch (const UserError& error) {
    problems.add({.what = error.what(), .cause = "a file of the checkpoint cannot be opened"});
  }
}

}  // namespace

std::string rank_file(int rank) {
  const std::string digits = cat(rank);
  return cat("rank-", std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0'), digits, ".bin");
}

std::string checksum_text(std::uint64_t checksum) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(checksum));
  return text;
}

std::optional<DType> dtype_from(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    if (name == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

std::string find_overlap(const SavedTensor& tensor) {
  // Sorted by first element: two boxes share elements only if their ranges of the flat tensor overlap.
  struct Stretch {
    std::int64_t first, last;
    const Region* region;
  };
  std::vector<Stretch> stretches;
  for (const SavedBox& box : tensor.boxes) {
    Shape last = box.region.offset;
    for (int dim = 0; dim < last.rank(); ++dim) last[dim] += box.region.extent[dim] - 1;
    stretches.push_back({flat_index(tensor.shape, box.region.offset), flat_index(tensor.shape, last), &box.region});
  }
  std::sort(stretches.begin(), stretches.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // Boxes of a run interleave as its ranks do; the limit stops a malicious file from taking hours.
  constexpr std::int64_t kMaxPairs = 10'000'000;
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    for (std::size_t j = i + 1; j < stretches.size() && stretches[j].first <= stretches[i].last; ++j) {
      if (++pairs > kMaxPairs) return cat("more than ", kMaxPairs, " pairs may overlap");
      if (intersect(*stretches[i].region, *stretches[j].region)) {
        return cat(stretches[i].region->text(), " and ", stretches[j].region->text());
      }
    }
  }
  return "";
}

std::string part_text(const Part& part) {
  io::Json json{{"rank", part.rank}, {"step", part.step}};
  if (!part.failure.empty()) {
    json["failure"] = part.failure;
  } else {
    json["file"] = io::Json::array({part.file.name, part.file.bytes});
    json["tensors"] = io::Json::array();
    for (const SavedTensor& tensor : part.tensors) json["tensors"].push_back(json_of(tensor));
  }
  return json.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

Part read_part(const std::string& text) {
  const io::Json json = io::parse_own_json(text);
  const auto rank = io::count_at(json, "rank");
  HAWSER_CHECK(rank.has_value() && json.contains("step"), "a part of a checkpoint without rank or step");
  Part part{.rank = static_cast<int>(*rank), .step = json["step"].get<std::int64_t>()};
  if (json.contains("failure")) {
    part.failure = json["failure"].get<std::string>();
    return part;
  }
  HAWSER_CHECK(json.contains("file") && json.contains("tensors"), "a part of a checkpoint without file or tensors");
  const auto file = file_from(json["file"]);
  HAWSER_CHECK(file.has_value(), "a part of a checkpoint without a file name");
  part.file = *file;
  for (const io::Json& entry : json["tensors"]) {
    const std::string wrong = read_tensor(entry, {part.file}, part.tensors.emplace_back());
    HAWSER_CHECK(wrong.empty(), "rank ", part.rank, ", tensor ", io::in_quotes(part.tensors.back().name), ": ", wrong);
  }
  return part;
}

Manifest merge_parts(std::vector<Part> parts, std::int64_t step, const std::string& metadata) {
  Manifest manifest{.step = step, .world = static_cast<int>(parts.size()), .metadata = metadata};
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    Part& part = parts[rank];
    HAWSER_CHECK(part.rank == static_cast<int>(rank) && part.step == step, "part ", rank, " is that of rank ",
                 part.rank, " at step ", part.step, ", not ", step);
    manifest.files.push_back(part.file);
    for (SavedTensor& tensor : part.tensors) {
      for (SavedBox& box : tensor.boxes) box.file = static_cast<int>(rank);
      const auto [place, is_new] = places.try_emplace(tensor.name, manifest.tensors.size());
      if (is_new) {
        manifest.tensors.push_back(std::move(tensor));
        continue;
      }
      SavedTensor& merged = manifest.tensors[place->second];
      HAWSER_CHECK(merged.shape == tensor.shape && merged.dtype == tensor.dtype, "rank ", rank, " saves ", tensor.name,
                   " as ", to_string(tensor.dtype), " ", tensor.shape.text(), ", another as ", to_string(merged.dtype),
                   " ", merged.shape.text());
      merged.boxes.insert(merged.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
    }
  }
  for (const SavedTensor& tensor : manifest.tensors) {
    const std::string overlap = find_overlap(tensor);
    HAWSER_CHECK(overlap.empty(), "two ranks save the same elements of ", tensor.name, ": ", overlap);
    std::int64_t elements = 0;
    for (const SavedBox& box : tensor.boxes) elements += box.region.elements();
    HAWSER_CHECK(elements == tensor.shape.elements(), "only ", elements, " of ", tensor.shape.elements(),
                 " elements of ", tensor.name, " are saved");
  }
  HAWSER_CHECK(io::parse_own_json(metadata).is_object(), "meta of a checkpoint is not a JSON object");
  return manifest;
}

std::string manifest_text(const Manifest& manifest) {
  io::Json files = io::Json::array();
  for (const ObjectSize& file : manifest.files) files.push_back(io::Json::array({file.name, file.bytes}));
  io::Json tensors = io::Json::array();
  for (const SavedTensor& tensor : manifest.tensors) tensors.push_back(json_of(tensor));
  io::Json document{{"format", kFormat},
                    {"version", kManifestVersion},
                    {"step", manifest.step},
                    {"world", manifest.world},
                    {"files", std::move(files)},
                    {"tensors", std::move(tensors)},
                    {"meta", io::parse_own_json(manifest.metadata)}};
  if (!manifest.attached.empty()) {
    io::Json& attached = document["attached"] = io::Json::array();
    for (const SavedAttachment& file : manifest.attached) {
      attached.push_back(io::Json::array({file.name, file.bytes, checksum_text(file.checksum)}));
    }
  }
  document["checksum"] = checksum_of(document);
  return printed(document);
}

std::optional<Manifest> read_manifest(const std::string& folder, Problems& problems) {
  try {
    return read_manifest(*storage_of(folder).peek(folder), problems);
  } catch (const io::IoError&) {
    throw;  // says nothing about the contents
  } catch (const UserError& error) {
    return problems.add({.what = error.what()}), std::nullopt;
  }
}

std::optional<Manifest> read_manifest(StorageReader& reader, Problems& problems) {
  const std::string path = reader.path_of(kManifestName);
  const auto reject = [&](Problem problem) {
    problem.file = path;
    problems.add(std::move(problem));
    return std::nullopt;
  };
  std::string text;
  if (!reader.has(kManifestName)) return reject({.what = "no manifest: the save was not finished"});
  try {
    text = reader.read_text(kManifestName, kMaxManifestBytes);
  } catch (const io::IoError&) {
    throw;  // says nothing about the contents
  } catch (const UserError& error) {
    return problems.add({.what = error.what()}), std::nullopt;
  }
  auto parsed = io::parse_json(text, path, "manifest", 0, problems);
  if (!parsed) return std::nullopt;
  io::Json& document = *parsed;
  if (auto wrong = find_change(document, text, path)) return reject(*std::move(wrong));
  const auto step = io::count_at(document, "step"), world = io::count_at(document, "world");
  const io::Json files = take(document, "files"), tensors = take(document, "tensors"),
                 metadata = take(document, "meta"), attached = take(document, "attached");
  if (!step || !world || *world < 1 || *world > INT32_MAX || !files.is_array() || !tensors.is_array() ||
      !metadata.is_object()) {
    return reject({.what = "a manifest without step, world, files, tensors or meta"});
  }
  if (const auto named = step_of(split_path(reader.path()).name); named && *named != *step) {
    return reject({.what = "the manifest names another step", .expected = cat(*named), .got = cat(*step)});
  }
  Manifest manifest{.step = *step, .world = static_cast<int>(*world), .metadata = metadata.dump()};
  const std::size_t before = problems.size();
  for (const io::Json& entry : files) {
    const auto file = file_from(entry);
    if (!file) return reject({.what = "a manifest with an invalid file entry"});
    manifest.files.push_back(*file);
    check_length(reader, *file, problems);
  }
  for (const io::Json& entry : attached) {  // null has no entries
    const auto file = attachment_from(entry);
    if (!file) return reject({.what = "a manifest with an invalid entry of an attached file"});
    manifest.attached.push_back(*file);
  }
  std::unordered_map<std::string, int> seen;
  for (const io::Json& entry : tensors) {
    SavedTensor& tensor = manifest.tensors.emplace_back();
    std::string wrong = read_tensor(entry, manifest.files, tensor);
    if (wrong.empty() && !seen.emplace(tensor.name, 0).second) wrong = "a duplicate tensor";
    if (!wrong.empty()) problems.add({.file = path, .what = "manifest: " + wrong, .at = io::in_quotes(tensor.name)});
  }
  if (problems.size() > before) return std::nullopt;
  return manifest;
}

}  // namespace hawser::checkpoint

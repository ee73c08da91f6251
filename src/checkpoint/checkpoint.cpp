#include "checkpoint/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "checkpoint/root.h"
#include "io/files.h"

namespace hawser::checkpoint {
namespace {

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

std::optional<Checkpoint> Checkpoint::latest(const std::string& root, Problems& skipped) {
  std::vector<std::string> folders = step_folders(root);
  while (true) {
    Problems passed_over;
    for (const std::string& folder : folders) {
      try {
        auto reader = storage_of(folder).open(folder);
        if (auto manifest = read_manifest(*reader, passed_over)) {
          skipped.add(passed_over);
          return Checkpoint(std::move(reader), *std::move(manifest));
        }
      } catch (const io::IoError&) {
        throw;  // says nothing about the contents
      } catch (const UserError& error) {
        passed_over.add_lines(error.what());
      }
    }
    // A running job may have saved a newer one meanwhile and removed the listed ones.
    std::vector<std::string> now = step_folders(root);
    if (now == folders) {
      skipped.add(passed_over);
      return std::nullopt;
    }
    folders = std::move(now);
  }
}

Checkpoint Checkpoint::open(const std::string& folder) {
  Problems problems;
  auto reader = storage_of(folder).open(folder);
  auto manifest = read_manifest(*reader, problems);
  if (!manifest) {
    Problems offered;
    const std::string before = complete_before(folder);
    for (Problem problem : problems.all()) {
      if (problem.hint.empty()) problem.hint = before;
      offered.add(std::move(problem));
    }
    offered.throw_if_any();
  }
  return Checkpoint(std::move(reader), *std::move(manifest));
}

Checkpoint::Checkpoint(std::unique_ptr<StorageReader> reader, Manifest manifest)
    : reader_(std::move(reader)), folder_(reader_->path()), manifest_(std::move(manifest)) {
  struct End {
    std::int64_t begin, end;
    std::int64_t* padding;
  };
  std::vector<std::vector<End>> in_file(manifest_.files.size());
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const SavedTensor& tensor = manifest_.tensors[i];
    places_.emplace(tensor.name, static_cast<int>(i));
    verified_.emplace_back(tensor.boxes.size(), false);
    padding_.emplace_back(tensor.boxes.size());
    for (std::size_t b = 0; b < tensor.boxes.size(); ++b) {
      const SavedBox& box = tensor.boxes[b];
      in_file[static_cast<std::size_t>(box.file)].push_back({box.begin, box.begin + box.bytes, &padding_[i][b]});
    }
  }
  for (std::vector<End>& boxes : in_file) {
    std::ranges::sort(boxes, {}, &End::begin);
    std::int64_t end = 0;
    for (const End& box : boxes) {
      *box.padding = std::min(end, box.begin);
      end = std::max(end, box.end);
    }
  }
}

const SavedTensor* Checkpoint::find(const std::string& name) const {
  auto place = preferred_.empty() ? places_.end() : places_.find(preferred_ + "/" + name);
  if (place == places_.end()) place = places_.find(name);
  return place == places_.end() ? nullptr : &manifest_.tensors[static_cast<std::size_t>(place->second)];
}

const SavedTensor* Checkpoint::find(const NamedState& state) const {
  const SavedTensor* saved = find(state.name);
  for (const std::string& former : state.former_names) {
    if (saved == nullptr) saved = find(former);
  }
  return saved;
}

void Checkpoint::read(const std::vector<NamedState>& wanted) {
  Problems problems;
  for (const NamedState& state : wanted) {
    const SavedTensor* saved = find(state);
    if (saved == nullptr) {
      problems.add({.file = folder_, .what = "a tensor is missing in the checkpoint", .at = state.name});
      continue;
    }
    if (!(saved->shape == state.shape)) {
      problems.add({.file = folder_,
                    .what = "the checkpoint has a different shape",
                    .expected = state.shape.text(),
                    .got = saved->shape.text(),
                    .at = state.name});
      continue;
    }
    if (cast_run(saved->dtype, state.dtype) == nullptr) {
      problems.add({.file = folder_,
                    .what = "the checkpoint has a different dtype",
                    .expected = to_string(state.dtype),
                    .got = to_string(saved->dtype),
                    .at = state.name});
      continue;
    }
    for (const Box& box : state.boxes) {
      const Region region = region_of(box);
      HAWSER_CHECK(is_inside(region, state.shape), state.name, " ", state.shape.text(), " has a box ", region.text());
      HAWSER_CHECK(box.view.device() == DeviceKind::cpu && box.view.dense() && box.view.dtype() == state.dtype &&
                       box.view.elements() == region.elements(),
                   state.name, ": a box ", region.text(), " in a view of ", box.view.text());
      std::int64_t covered = 0;  // saved boxes do not overlap
      for (const SavedBox& from : saved->boxes) {
        if (const auto common = intersect(region, from.region)) covered += common->elements();
      }
      if (covered != region.elements()) {
        problems.add({.file = folder_,
                      .what = "elements missing in the checkpoint",
                      .expected = cat(region.elements()),
                      .got = cat(covered),
                      .at = cat(state.name, " ", region.text())});
      }
    }
  }
  problems.throw_if_any();

  for (const NamedState& state : wanted) {
    const SavedTensor& saved = *find(state);
    const CastRun cast = cast_run(saved.dtype, state.dtype);
    for (std::size_t i = 0; i < saved.boxes.size(); ++i) {
      std::vector<Target> targets;
      for (const Box& box : state.boxes) {
        if (const auto common = intersect(region_of(box), saved.boxes[i].region)) {
          targets.push_back({*common, {region_of(box), box.view.raw(), size_of(state.dtype)}});
        }
      }
      if (targets.empty()) continue;
      std::optional<Problem> problem;
      try {
        problem = read_box(saved, static_cast<int>(i), targets, cast);
      } catch (const io::IoError&) {
        throw;  // says nothing about the contents
      } catch (const UserError& error) {
        problem = Problem{.what = error.what()};
      }
      if (!problem) continue;
      problem->hint = complete_before(folder_);
      throw CorruptCheckpoint(*problem);
    }
  }
}

std::optional<Problem> Checkpoint::check_padding(const std::string& file, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t count = std::min(kStagingBytes, end - at);
    if (static_cast<std::int64_t>(staging_.size()) < count) staging_.resize(static_cast<std::size_t>(count));
    reader_->read(file, at, staging_.data(), count);
    const auto wrong =
        std::find_if(staging_.begin(), staging_.begin() + count, [](std::byte b) { return b != std::byte{0}; });
    if (wrong != staging_.begin() + count) {
      return Problem{.file = reader_->path_of(file),
                     .what = "the bytes between tensors changed since it was saved",
                     .expected = "zeros",
                     .at = cat("byte ", at + (wrong - staging_.begin()))};
    }
    at += count;
  }
  return std::nullopt;
}

std::optional<Problem> Checkpoint::read_box(const SavedTensor& tensor, int index, const std::vector<Target>& targets,
                                            CastRun cast) {
  const SavedBox& box = tensor.boxes[static_cast<std::size_t>(index)];
  std::vector<bool>& verified = verified_[static_cast<std::size_t>(places_.at(tensor.name))];
  const bool verify = !verified[static_cast<std::size_t>(index)];
  const std::int64_t element = size_of(tensor.dtype);
  const Shape& extent = box.region.extent;

  // Range of the box to read: all of it if its checksum is not verified yet, else the span of the targets.
  std::int64_t begin = verify ? 0 : extent.elements(), end = verify ? extent.elements() : 0;
  for (const Target& target : targets) {
    Shape first = target.common.offset, last = target.common.offset;
    for (int dim = 0; dim < first.rank(); ++dim) {
      first[dim] -= box.region.offset[dim];
      last[dim] += target.common.extent[dim] - 1 - box.region.offset[dim];
    }
    begin = std::min(begin, flat_index(extent, first));
    end = std::max(end, flat_index(extent, last) + 1);
  }

  const std::unique_ptr<XXH3_state_t, FreeHash> hash(verify ? XXH3_createState() : nullptr);
  if (verify) XXH3_64bits_reset(hash.get());
  const std::int64_t step = kStagingBytes / element;
  const std::string& file = manifest_.files[static_cast<std::size_t>(box.file)].name;
  if (verify) {
    const std::int64_t padding =
        padding_[static_cast<std::size_t>(places_.at(tensor.name))][static_cast<std::size_t>(index)];
    if (auto problem = check_padding(file, padding, box.begin)) return problem;
  }
  staging_.resize(static_cast<std::size_t>(std::min(step, end - begin) * element));
  for (std::int64_t at = begin; at < end; at += step) {
    const std::int64_t count = std::min(step, end - at);
    reader_->read(file, box.begin + at * element, staging_.data(), count * element);
    if (verify) XXH3_64bits_update(hash.get(), staging_.data(), static_cast<std::size_t>(count * element));
    if (targets.empty()) continue;
    const TensorView chunk(staging_.data(), tensor.dtype, {count}, DeviceKind::cpu);
    for (const Box& part : boxes_of_range(extent, at, count, chunk)) {
      BoxMemory from{region_of(part), part.view.raw(), element};
      for (int dim = 0; dim < extent.rank(); ++dim) from.region.offset[dim] += box.region.offset[dim];
      for (const Target& target : targets) {
        const auto common = intersect(from.region, target.common);
        if (common) copy_region(*common, from, target.memory, cast);
      }
    }
  }
  if (!verify) return std::nullopt;
  const std::uint64_t checksum = XXH3_64bits_digest(hash.get());
  if (checksum != box.checksum) {
    return Problem{
        .file = reader_->path_of(file),
        .what = "checksum mismatch: the data changed since it was saved",
        .expected = checksum_text(box.checksum),
        .got = checksum_text(checksum),
        .at = cat("bytes ", box.begin, " to ", box.begin + box.bytes, ", ", tensor.name, " ", box.region.text())};
  }
  verified[static_cast<std::size_t>(index)] = true;
  return std::nullopt;
}

std::vector<std::string> Checkpoint::attached() const {
  std::vector<std::string> names;
  for (const SavedAttachment& file : manifest_.attached) names.push_back(file.name);
  return names;
}

std::string Checkpoint::read_attached(const std::string& name) const {
  const auto saved = std::ranges::find(manifest_.attached, name, &SavedAttachment::name);
  HAWSER_CHECK(saved != manifest_.attached.end(), "no ", name, " in ", folder_);
  const std::string path = cat(folder_, "/", name);
  if (!reader_->has(name)) {
    throw CorruptCheckpoint(Problem{.file = path, .what = "a file of the checkpoint is missing"});
  }
  const std::int64_t bytes = reader_->bytes(name);
  if (bytes != saved->bytes) {
    throw CorruptCheckpoint(Problem{.file = path,
                                    .what = bytes < saved->bytes ? "truncated file" : "file too long",
                                    .expected = cat(saved->bytes, " bytes"),
                                    .got = cat(bytes)});
  }
  const std::string text = reader_->read_text(name, bytes);
  if (XXH3_64bits(text.data(), text.size()) != saved->checksum) {
    throw CorruptCheckpoint(Problem{.file = path, .what = "checksum mismatch: the file changed since it was saved"});
  }
  return text;
}

std::int64_t Checkpoint::data_bytes() const {
  std::int64_t bytes = 0;
  for (const SavedTensor& tensor : manifest_.tensors) {
    for (const SavedBox& box : tensor.boxes) bytes += box.bytes;
  }
  return bytes;
}

void Checkpoint::verify_attached(Problems& problems) const {
  for (const SavedAttachment& small : manifest_.attached) {
    try {
      read_attached(small.name);
    } catch (const io::IoError&) {
      throw;  // says nothing about the contents
    } catch (const UserError& error) {
      problems.add_lines(error.what());
    }
  }
}

void Checkpoint::verify(Problems& problems, const Progress& progress) {
  const std::int64_t total = data_bytes();
  std::int64_t done = 0;
  for (const SavedTensor& tensor : manifest_.tensors) {
    for (std::size_t i = 0; i < tensor.boxes.size(); ++i) {
      done += tensor.boxes[i].bytes;
      if (verified_[static_cast<std::size_t>(places_.at(tensor.name))][i]) continue;
      try {
        if (auto problem = read_box(tensor, static_cast<int>(i), {}, nullptr)) problems.add(*std::move(problem));
      } catch (const io::IoError&) {
        throw;  // says nothing about the contents
      } catch (const UserError& error) {
        problems.add({.what = error.what()});
      }
      if (progress) progress(done, total);
    }
  }
  verify_attached(problems);
}

}  // namespace hawser::checkpoint

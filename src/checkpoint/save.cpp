#include "checkpoint/save.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "io/files.h"

namespace hawser::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 64;  // of a box in its file

std::string folder_of(const SaveOptions& options) {
  return cat(options.root, "/", step_name(options.step));
}

// Splits a box that is too large for one checksum into boxes over the same memory.
std::vector<Box> pieces_of(const Box& box, DType dtype, std::int64_t max_bytes) {
  if (box.view.bytes() <= max_bytes) return {box};
  const std::int64_t elements = box.extent.elements();
  std::int64_t slice = 1;  // full inner dims, as many as fit
  std::int64_t count = std::max<std::int64_t>(max_bytes / size_of(dtype), 1);
  for (int dim = box.extent.rank() - 1; dim >= 0 && slice * box.extent[dim] <= count; --dim) slice *= box.extent[dim];
  count = count / slice * slice;
  const TensorView line = box.view.reshape({elements});
  std::vector<Box> pieces;
  for (std::int64_t at = 0; at < elements; at += count) {
    const std::int64_t part = std::min(count, elements - at);
    for (Box& piece : boxes_of_range(box.extent, at, part, line.rows(at, part))) {
      for (int dim = 0; dim < box.offset.rank(); ++dim) piece.offset[dim] += box.offset[dim];
      pieces.push_back(piece);
    }
  }
  return pieces;
}

void check_box(const NamedState& state, const Box& box) {
  HAWSER_CHECK(is_inside(region_of(box), state.shape), state.name, " ", state.shape.text(), " has a box ",
               region_of(box).text());
  HAWSER_CHECK(box.view.device() == DeviceKind::cpu && box.view.dense() && box.view.dtype() == state.dtype &&
                   box.view.elements() == box.extent.elements(),
               state.name, ": a box ", region_of(box).text(), " in a view of ", box.view.text());
}

}  // namespace

SaveSession SaveSession::begin(const SaveOptions& options) {
  HAWSER_CHECK(options.step >= 0 && options.world >= 1, "step ", options.step, ", world ", options.world);
  const std::string folder = folder_of(options);
  return SaveSession(options, storage_of(folder).stage(folder, rank_file(0), options.expected_bytes), 0);
}

SaveSession SaveSession::join(const SaveOptions& options, const std::string& ticket, int rank) {
  HAWSER_CHECK(rank > 0 && rank < options.world, "rank ", rank, " of ", options.world);
  const std::string folder = folder_of(options);
  return SaveSession(options, storage_of(folder).join(folder, ticket), rank);
}

std::string SaveSession::write(const std::vector<NamedState>& states) {
  HAWSER_CHECK(staging_ != nullptr && !written_, "a save session writes once");
  Part part{.rank = rank_, .step = options_.step, .file = {.name = rank_file(rank_)}};
  std::int64_t needed = 0;
  for (const NamedState& state : states) {
    for (const Box& box : state.boxes) {
      check_box(state, box);
      needed += round_up(box.view.bytes(), kAlignment);
    }
  }
  try {
    const auto file = staging_->create(part.file.name, needed);
    for (const NamedState& state : states) {
      SavedTensor tensor{.name = state.name, .shape = state.shape, .dtype = state.dtype};
      for (const Box& box : state.boxes) {
        if (box.extent.elements() == 0) continue;
        for (const Box& piece : pieces_of(box, state.dtype, options_.max_box_bytes)) {
          const std::int64_t begin = round_up(part.file.bytes, kAlignment);
          const std::int64_t bytes = piece.view.bytes();
          file->write(begin, piece.view.raw(), bytes);
          tensor.boxes.push_back({.begin = begin,
                                  .bytes = bytes,
                                  .region = region_of(piece),
                                  .checksum = XXH3_64bits(piece.view.raw(), static_cast<std::size_t>(bytes))});
          part.file.bytes = begin + bytes;
        }
      }
      if (!tensor.boxes.empty() || state.shape.elements() == 0) part.tensors.push_back(std::move(tensor));
    }
    file->finish();
  } catch (...) {
    // Rank 0's staging area stays until commit or the end of the session: other ranks may still write to it.
    if (rank_ != 0) staging_.reset();
    throw;
  }
  written_ = true;
  if (rank_ != 0) staging_->hand_over();
  return part_text(part);
}

std::string SaveSession::failed_part(int rank, const std::string& message) {
  return part_text({.rank = rank, .failure = message.empty() ? "unknown failure" : message});
}

std::string SaveSession::commit(const std::vector<std::string>& parts, const std::string& metadata,
                                const std::vector<Attachment>& attached) {
  HAWSER_CHECK(rank_ == 0, "rank ", rank_, " commits a checkpoint");
  HAWSER_CHECK(static_cast<int>(parts.size()) == options_.world, parts.size(), " parts of ", options_.world);
  try {
    std::vector<Part> read;
    Problems problems;
    for (const std::string& text : parts) {
      read.push_back(read_part(text));
      if (!read.back().failure.empty()) {
        problems.add(
            {.what = cat("rank ", read.back().rank, ": ", read.back().failure), .cause = "ranks that could not save"});
      }
    }
    problems.throw_if_any();
    HAWSER_CHECK(staging_ != nullptr && written_, "commit of a save session that did not write");
    Manifest manifest = merge_parts(std::move(read), options_.step, metadata);
    for (const Attachment& small : attached) {
      HAWSER_CHECK(io::is_plain_name(small.name) && small.name != kManifestName && !small.name.starts_with("rank-"),
                   "attached under the name ", io::in_quotes(small.name));
      staging_->put(small.name, small.text);
      manifest.attached.push_back({small.name, static_cast<std::int64_t>(small.text.size()),
                                   XXH3_64bits(small.text.data(), small.text.size())});
    }
    staging_->commit(kManifestName, manifest_text(manifest), manifest.files);
    staging_.reset();
    return folder_of(options_);
  } catch (...) {
    staging_.reset();
    throw;
  }
}

}  // namespace hawser::checkpoint

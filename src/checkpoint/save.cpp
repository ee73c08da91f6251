#include "checkpoint/save.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/root.h"

namespace hawser::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 64;  // of a box in its file

std::string path_in(const std::string& folder, const std::string& name) {
  return cat(folder, "/", name);
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
      pieces.push_back(std::move(piece));
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

SaveSession::SaveSession(SaveOptions options, std::string ticket, int rank)
    : options_(std::move(options)), ticket_(std::move(ticket)), folder_(path_in(options_.root, ticket_)), rank_(rank) {}

SaveSession::SaveSession(SaveSession&& other) noexcept
    : options_(std::move(other.options_)),
      ticket_(std::move(other.ticket_)),
      folder_(std::move(other.folder_)),
      rank_(other.rank_),
      open_(std::exchange(other.open_, false)),
      written_(other.written_),
      file_(std::move(other.file_)) {}

SaveSession SaveSession::begin(const SaveOptions& options) {
  HAWSER_CHECK(options.step >= 0 && options.world >= 1, "step ", options.step, ", world ", options.world);
  io::make_folders(options.root);
  const RootLock lock(options.root);
  if (lock.held()) clean_leftovers(options.root, rank_file(0));
  SaveSession session(options, temporary_name(options.step), 0);
  io::check_space(session.folder_, options.expected_bytes);
  io::make_folder(session.folder_);
  session.file_ = io::File::create(path_in(session.folder_, rank_file(0)));
  session.file_.try_lock();
  return session;
}

SaveSession SaveSession::join(const SaveOptions& options, const std::string& ticket, int rank) {
  HAWSER_CHECK(rank > 0 && rank < options.world && leftover_kind(ticket) == Leftover::temporary, "rank ", rank, " of ",
               options.world, " with ticket ", io::in_quotes(ticket));
  return SaveSession(options, ticket, rank);
}

SaveSession::~SaveSession() {
  if (open_) abandon();
}

void SaveSession::abandon() noexcept {
  open_ = false;
  if (rank_ == 0) {
    io::remove_tree(folder_);
    file_ = io::File();
  } else if (file_.is_open()) {
    file_ = io::File();
    io::remove_tree(path_in(folder_, rank_file(rank_)));
  }
}

std::string SaveSession::write(const std::vector<NamedState>& states) {
  HAWSER_CHECK(open_ && !written_, "a save session writes once");
  Part part{.rank = rank_, .step = options_.step, .file = {.name = rank_file(rank_)}};
  std::int64_t needed = 0;
  for (const NamedState& state : states) {
    for (const Box& box : state.boxes) {
      check_box(state, box);
      needed += round_up(box.view.bytes(), kAlignment);
    }
  }
  const std::string path = path_in(folder_, part.file.name);
  try {
    io::check_space(path, needed);
    if (rank_ != 0) file_ = io::File::create(path);
    for (const NamedState& state : states) {
      SavedTensor tensor{.name = state.name, .shape = state.shape, .dtype = state.dtype};
      for (const Box& box : state.boxes) {
        if (box.extent.elements() == 0) continue;
        for (const Box& piece : pieces_of(box, state.dtype, options_.max_box_bytes)) {
          const std::int64_t begin = round_up(part.file.bytes, kAlignment);
          const std::int64_t bytes = piece.view.bytes();
          file_.write_at(begin, piece.view.raw(), bytes);
          tensor.boxes.push_back({.begin = begin,
                                  .bytes = bytes,
                                  .region = region_of(piece),
                                  .checksum = XXH3_64bits(piece.view.raw(), static_cast<std::size_t>(bytes))});
          part.file.bytes = begin + bytes;
        }
      }
      if (!tensor.boxes.empty() || state.shape.elements() == 0) part.tensors.push_back(std::move(tensor));
    }
    file_.sync();
  } catch (...) {
    // Rank 0's folder stays until commit or the end of the session: other ranks may still write to it.
    if (rank_ != 0) abandon();
    throw;
  }
  written_ = true;
  if (rank_ != 0) {
    file_.close();
    open_ = false;  // from here on rank 0 owns the file, and commits or removes it
  }
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
    HAWSER_CHECK(open_ && written_, "commit of a save session that did not write");
    Manifest manifest = merge_parts(std::move(read), options_.step, metadata);
    for (const SavedFile& file : manifest.files) {
      const std::string path = path_in(folder_, file.name);
      const std::int64_t bytes = io::exists(path) ? io::File::open(path).bytes() : -1;
      if (bytes == file.bytes) continue;
      problems.add({.file = path,
                    .what = "rank 0 sees a different file size than was written",
                    .expected = cat(file.bytes, " bytes"),
                    .got = bytes < 0 ? "no file" : cat(bytes),
                    .hint = "an output folder that all nodes share"});
    }
    problems.throw_if_any();
    for (const Attachment& small : attached) {
      HAWSER_CHECK(io::is_plain_name(small.name) && small.name != kManifestName && !small.name.starts_with("rank-"),
                   "attached under the name ", io::in_quotes(small.name));
      const std::string path = path_in(folder_, small.name);
      const auto bytes = static_cast<std::int64_t>(small.text.size());
      io::check_space(path, bytes);
      io::File file = io::File::create(path);
      file.write_at(0, reinterpret_cast<const std::byte*>(small.text.data()), bytes);
      file.sync();
      file.close();
      manifest.attached.push_back({small.name, bytes, XXH3_64bits(small.text.data(), small.text.size())});
    }
    const std::string text = manifest_text(manifest);
    io::check_space(path_in(folder_, kManifestName), static_cast<std::int64_t>(text.size()));
    io::write_text_atomically(path_in(folder_, kManifestName), text);
    io::sync_folder(folder_);

    const RootLock lock(options_.root);
    const std::string name = step_name(options_.step);
    const std::string final_folder = path_in(options_.root, name);
    bool swapped = false;
    if (io::exists(final_folder)) {
      swapped = io::exchange_paths(folder_, final_folder);
      // Where a swap is not possible, neither exists for a moment; older checkpoints cover it.
      if (!swapped) discard(options_.root, name);
    }
    if (!swapped) io::rename_path(folder_, final_folder);
    open_ = false;
    io::sync_folder(options_.root);
    file_.close();
    if (swapped) io::remove_tree(folder_);  // the replaced one, already under a dot-name
    return final_folder;
  } catch (...) {
    if (open_) abandon();
    throw;
  }
}

}  // namespace hawser::checkpoint

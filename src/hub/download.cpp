#include "hub/download.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/units.h"
#include "hub/checksum.h"

namespace hawser::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPiece = std::int64_t{1} << 20;

void remove_file(const std::string& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

// ETAG.incomplete, and the checksum of what it has.
class Incomplete {
 public:
  Incomplete(const std::string& path, const RemoteFile& file, Transferred& transferred)
      : path_(path), remote_(file), transferred_(transferred) {
    const bool verifiable = Checksum::of_etag(file.etag, file.bytes).has_value();
    // Without a checksum, nothing says that bytes of another time belong to this file.
    if (!verifiable) remove_file(path);
    file_ = io::File::open_or_create(path);
    if (file.bytes && file_.bytes() > *file.bytes) restart();
    checksum_ = Checksum::of_etag(file.etag, file.bytes);
    if (checksum_) add_earlier();
  }

  std::int64_t bytes() const { return bytes_; }
  bool is_complete() const { return remote_.bytes && bytes_ == *remote_.bytes; }

  // Bytes of the file from `first` on: where the last ones ended, or 0 if the server sends the file from its start.
  void write(std::int64_t first, std::string_view bytes) {
    if (first == 0 && bytes_ > 0 && !arriving_) restart();
    arriving_ = true;
    const auto count = static_cast<std::int64_t>(bytes.size());
    if (remote_.bytes && bytes_ + count > *remote_.bytes) throw Interrupted("more bytes than the file has");
    // Written at its place: a process that writes the same blob, where locks do not work, writes the same bytes.
    file_.write_at(bytes_, reinterpret_cast<const std::byte*>(bytes.data()), count);
    if (checksum_) checksum_->add(bytes);
    bytes_ += count;
    transferred_.complete += count;
    transferred_.bytes += count;
  }
  void begin_attempt() { arriving_ = false; }

  void restart() {
    remove_file(path_);
    file_ = io::File::open_or_create(path_);
    transferred_.complete -= bytes_;
    bytes_ = 0;
    checksum_ = Checksum::of_etag(remote_.etag, remote_.bytes);
  }

  // The checksum; the ETag itself for a file without one.
  std::string finish() {
    file_.sync();
    return checksum_ ? checksum_->finish() : remote_.etag;
  }

 private:
  void add_earlier() {
    const std::int64_t earlier = file_.bytes();
    std::vector<char> piece(static_cast<std::size_t>(std::min(kPiece, earlier)));
    while (bytes_ < earlier) {
      const std::int64_t count = std::min(kPiece, earlier - bytes_);
      file_.read_at(bytes_, reinterpret_cast<std::byte*>(piece.data()), count);
      checksum_->add({piece.data(), static_cast<std::size_t>(count)});
      bytes_ += count;
    }
    transferred_.complete += bytes_;
  }

  std::string path_;
  const RemoteFile& remote_;
  Transferred& transferred_;
  io::File file_;
  std::optional<Checksum> checksum_;
  std::int64_t bytes_ = 0;
  bool arriving_ = false;  // bytes of this attempt have arrived
};

// The whole file, in as many attempts as needed.
void transfer(Api& api, const std::string& commit, const RemoteFile& file, Incomplete& to,
              const std::atomic<bool>& cancelled) {
  Api::Part part;
  std::string why;
  for (int attempt = 1; wait_before(attempt, &cancelled); ++attempt) {
    const std::int64_t before = to.bytes();
    try {
      part.from = before;
      to.begin_attempt();
      api.get(commit, file.name, part, [&](std::int64_t first, std::string_view bytes) { to.write(first, bytes); });
      if (!file.bytes || to.is_complete()) return;
      why = cat("it ends after ", to.bytes(), " of ", *file.bytes, " bytes");
    } catch (const Interrupted& error) {
      if (cancelled) throw;
      why = error.what();
    }
    if (to.bytes() > before) attempt = 1;
  }
  throw UserError(Problem{.file = file.name,
                          .what = cat("the transfer breaks again and again: ", why),
                          .hint = "the same command later, which continues it"});
}

}  // namespace

bool download(Api& api, RepoCache& cache, const std::string& commit, const RemoteFile& file, Transferred& transferred,
              const std::atomic<bool>& cancelled) {
  const io::File lock = cache.lock(file.etag, [&] {
    if (cancelled) throw Interrupted("cancelled");
  });
  const std::string blob = cache.blob(file.etag), path = cache.incomplete(file.etag);
  if (io::is_file(blob)) {
    transferred.complete += file.bytes.value_or(0);
    return false;
  }
  std::string got;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Incomplete incomplete(path, file, transferred);
    if (!incomplete.is_complete()) transfer(api, commit, file, incomplete, cancelled);
    got = incomplete.finish();
    if (got == file.etag) {
      io::rename_path(path, blob);
      return true;
    }
    incomplete.restart();
  }
  remove_file(path);
  throw UserError(Problem{.file = file.name,
                          .what = "the transferred file has another checksum than the Hub says",
                          .expected = file.etag,
                          .got = got,
                          .hint = "the same command later, or HF_ENDPOINT=https://huggingface.co"});
}

}  // namespace hawser::hub

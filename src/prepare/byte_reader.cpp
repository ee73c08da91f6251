#include "prepare/byte_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/ascii.h"
#include "base/error.h"
#include "base/units.h"
#include "io/files.h"

namespace hawser::prepare {
namespace {

constexpr std::size_t kBuffer = std::size_t{256} << 10;

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail();
    struct stat status;
    if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
      ::close(descriptor_);
      errno = EISDIR;
      fail();
    }
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::size_t read(char* out, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const ssize_t got = ::read(descriptor_, out + done, size - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail();
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    position_ += static_cast<std::int64_t>(done);
    return done;
  }
  void seek(std::int64_t by) {
    if (::lseek(descriptor_, by, SEEK_CUR) < 0) fail();
    position_ += by;
  }
  std::int64_t position() const { return position_; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail() const {
    throw io::IoError(Problem{.file = path_, .what = cat("cannot read: ", std::strerror(errno))});
  }

  std::string path_;
  int descriptor_ = -1;
  std::int64_t position_ = 0;
};

class PlainReader final : public ByteReader {
 public:
  explicit PlainReader(const std::string& path) : file_(path) {}
  std::size_t read(std::span<char> out) override { return file_.read(out.data(), out.size()); }
  void skip(std::int64_t bytes) override { file_.seek(bytes); }
  std::int64_t file_bytes() const override { return file_.position(); }

 private:
  OpenFile file_;
};

// Shared by both archive formats: a buffer of the file's bytes, and errors.
class ArchiveReader : public ByteReader {
 public:
  ArchiveReader(const std::string& path, const char* kind) : file_(path), kind_(kind), input_(kBuffer) {}

  std::int64_t file_bytes() const override { return file_.position() - static_cast<std::int64_t>(size_ - at_); }

  void skip(std::int64_t bytes) override {
    std::vector<char> passed(kBuffer);
    while (bytes > 0) {
      const auto part = static_cast<std::size_t>(std::min<std::int64_t>(bytes, kBuffer));
      const std::size_t got = read(std::span(passed).first(part));
      if (got == 0) throw UserError({.file = file_.path(), .what = cat(kind_, " archive is shorter than before")});
      bytes -= static_cast<std::int64_t>(got);
    }
  }

 protected:
  // False at the end of the file.
  bool fill() {
    if (at_ < size_) return true;
    at_ = 0;
    size_ = file_.read(input_.data(), input_.size());
    return size_ > 0;
  }
  [[noreturn]] void reject_start() const {
    throw UserError({.file = file_.path(),
                     .what = cat("not a ", kind_, " archive"),
                     .hint = "a file extension that matches the contents"});
  }
  [[noreturn]] void reject_short() const {
    throw UserError(
        {.file = file_.path(), .what = cat(kind_, " archive cut short"), .at = cat("byte ", file_.position())});
  }
  [[noreturn]] void reject_corrupt(const char* why) const {
    throw UserError({.file = file_.path(),
                     .what = cat("corrupt ", kind_, " archive", why ? cat(": ", why) : ""),
                     .at = cat("byte ", file_bytes())});
  }

  OpenFile file_;
  const char* kind_;
  std::vector<char> input_;
  std::size_t at_ = 0, size_ = 0;
};

class GzipReader final : public ArchiveReader {
 public:
  explicit GzipReader(const std::string& path) : ArchiveReader(path, "gzip") {
    if (::inflateInit2(&stream_, 15 + 16) != Z_OK) throw std::bad_alloc();
  }
  ~GzipReader() override { ::inflateEnd(&stream_); }

  std::size_t read(std::span<char> out) override {
    std::size_t done = 0;
    while (done < out.size() && !ended_) {
      if (!fill()) {
        if (inside_) reject_short();
        if (!any_) reject_start();
        ended_ = true;
        break;
      }
      if (!inside_ && !begin_member()) break;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + at_);
      stream_.avail_in = static_cast<uInt>(size_ - at_);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      const auto space = static_cast<uInt>(std::min<std::size_t>(out.size() - done, std::size_t{1} << 30));
      stream_.avail_out = space;
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      at_ = size_ - stream_.avail_in;
      done += space - stream_.avail_out;
      if (result == Z_STREAM_END) {
        inside_ = false;
        ::inflateReset(&stream_);
      } else if (result == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        if (stream_.total_out == 0 && !any_out_ && done == 0) reject_start();
        reject_corrupt(stream_.msg);
      }
      any_out_ = any_out_ || done > 0;
    }
    return done;
  }

 private:
  // Zeros after the last member are padding, as in gzip; anything else must be a member.
  bool begin_member() {
    if (any_ && input_[at_] == '\0') {
      do {
        if (!std::all_of(input_.begin() + static_cast<std::ptrdiff_t>(at_),
                         input_.begin() + static_cast<std::ptrdiff_t>(size_), [](char c) { return c == '\0'; })) {
          reject_corrupt("trailing data");
        }
        at_ = size_;
      } while (fill());
      ended_ = true;
      return false;
    }
    inside_ = any_ = true;
    return true;
  }

  z_stream stream_{};
  bool inside_ = false, any_ = false, any_out_ = false, ended_ = false;
};

class ZstdReader final : public ArchiveReader {
 public:
  explicit ZstdReader(const std::string& path) : ArchiveReader(path, "zstd"), stream_(::ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
    ::ZSTD_initDStream(stream_);
    // `zstd --long=31` needs a window of 2 GiB, too much memory.
    ::ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 27);
  }
  ~ZstdReader() override { ::ZSTD_freeDStream(stream_); }

  std::size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      const bool more = fill();
      if (!more && !inside_) {
        if (!any_) reject_start();
        break;
      }
      ZSTD_inBuffer from{input_.data(), size_, at_};
      const std::size_t before = to.pos;
      const std::size_t result = ::ZSTD_decompressStream(stream_, &to, &from);
      const bool moved = from.pos > at_ || to.pos > before;
      at_ = from.pos;
      if (::ZSTD_isError(result)) {
        const auto code = ::ZSTD_getErrorCode(result);
        if (code == ZSTD_error_prefix_unknown && !any_) reject_start();
        if (code == ZSTD_error_frameParameter_windowTooLarge) {
          throw UserError({.file = file_.path(),
                           .what = "zstd window too large",
                           .expected = "at most 128 MiB",
                           .hint = "zstd without --long, or with --long=27"});
        }
        reject_corrupt(::ZSTD_getErrorName(result));
      }
      inside_ = result != 0;
      any_ = true;
      if (!more && inside_ && !moved) reject_short();
    }
    return to.pos;
  }

 private:
  ZSTD_DStream* stream_;
  bool inside_ = false, any_ = false;
};

}  // namespace

Compression compression_of(std::string_view path) {
  const std::string name = lower_case(path);
  return name.ends_with(".gz") ? Compression::gzip : name.ends_with(".zst") ? Compression::zstd : Compression::none;
}

const char* compressed_ending(std::string_view start) {
  return start.starts_with("\x1F\x8B") ? ".gz" : start.starts_with("\x28\xB5\x2F\xFD") ? ".zst" : nullptr;
}

std::string without_compression(std::string_view path) {
  const Compression kind = compression_of(path);
  return lower_case(path).substr(0, path.size() - (kind == Compression::gzip ? 3 : kind == Compression::zstd ? 4 : 0));
}

std::unique_ptr<ByteReader> open_bytes(const std::string& path) {
  switch (compression_of(path)) {
    case Compression::gzip:
      return std::make_unique<GzipReader>(path);
    case Compression::zstd:
      return std::make_unique<ZstdReader>(path);
    case Compression::none:
      break;
  }
  return std::make_unique<PlainReader>(path);
}

void skip_by_reading(ByteReader& reader, const std::string& path, std::int64_t bytes) {
  std::vector<char> passed(kBuffer);
  while (bytes > 0) {
    const auto part = static_cast<std::size_t>(std::min<std::int64_t>(bytes, kBuffer));
    const std::size_t got = reader.read(std::span(passed).first(part));
    if (got == 0) throw UserError({.file = path, .what = "shorter than recorded"});
    bytes -= static_cast<std::int64_t>(got);
  }
}

std::string read_all_bytes(const std::string& path, std::int64_t limit) {
  return read_all_bytes(*open_bytes(path), path, limit);
}

std::string read_all_bytes(ByteReader& reader, const std::string& path, std::int64_t limit) {
  std::string text;
  for (std::size_t got = 1; got > 0;) {
    const std::size_t at = text.size();
    if (at > static_cast<std::size_t>(limit)) {
      throw UserError({.file = path,
                       .what = "too large to be read at once",
                       .expected = cat("at most ", format_bytes(Bytes(limit)), " of text"),
                       .hint = "several files"});
    }
    text.resize(at + std::min(std::max(at, kBuffer), static_cast<std::size_t>(limit) + 1 - at));
    got = reader.read(std::span(text).subspan(at));
    text.resize(at + got);
  }
  return text;
}

}  // namespace hawser::prepare

// `ByteReader`: sequential bytes of a file, decompressed by its extension: none, gzip (.gz) or Zstandard (.zst).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hawser::prepare {

enum class Compression { none, gzip, zstd };

// By extension: "x.jsonl.gz", "x.txt.zst".
Compression compression_of(std::string_view path);

// ".gz" or ".zst" if `start` is the start of such an archive; null otherwise.
const char* compressed_ending(std::string_view start);

// "x.jsonl" for "X.jsonl.gz": the path in lower case, which tells the type of the file.
std::string without_compression(std::string_view path);

// The members (gzip) or frames (zstd) of an archive are read as one text, as gunzip and zstd do. Memory use does not
// depend on the file's size. Every failure is a UserError that names the file: not an archive, cut short, or corrupt
// (with the byte offset in the file).
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Fills `out` and returns the number of bytes. Returns fewer than requested, then 0, only at the end.
  virtual std::size_t read(std::span<char> out) = 0;

  // Skips `bytes` decompressed bytes. UserError if an archive has fewer; a plain file is not checked.
  virtual void skip(std::int64_t bytes) = 0;

  // Skips the first `lines` lines, which have `bytes` bytes, before anything is read.
  virtual void skip_lines(std::int64_t lines, std::int64_t bytes) {
    static_cast<void>(lines);
    skip(bytes);
  }

  // Bytes of the file itself (compressed) consumed so far, for progress.
  virtual std::int64_t file_bytes() const = 0;
};

std::unique_ptr<ByteReader> open_bytes(const std::string& path);

// ByteReader::skip of a reader that must convert what it skips. UserError if there are fewer bytes.
void skip_by_reading(ByteReader& reader, const std::string& path, std::int64_t bytes);

// Complete contents of a small file, decompressed. UserError if they have more than `limit` bytes, whatever the size of
// the file.
std::string read_all_bytes(const std::string& path, std::int64_t limit = std::int64_t{1} << 30);
std::string read_all_bytes(ByteReader& reader, const std::string& path, std::int64_t limit = std::int64_t{1} << 30);

}  // namespace hawser::prepare

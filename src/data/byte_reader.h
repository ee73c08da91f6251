// The bytes of a file in order, decompressed on the way: plain, gzip (.gz) or Zstandard (.zst), by the name's ending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hawser::data {

enum class Compression { none, gzip, zstd };

// By the ending of the name: "x.jsonl.gz", "x.txt.zst".
Compression compression_of(std::string_view path);

// ".gz" or ".zst" for the beginning of such an archive; null for other bytes.
const char* compressed_ending(std::string_view start);

// "x.jsonl" of "x.jsonl.gz".
std::string_view without_compression(std::string_view path);

// Archives of several members (gzip) or frames (zstd) are read as one text, as gunzip and zstd do. Memory does not
// depend on the file's size. Every failure is a UserError that names the file: not an archive, cut short, damaged (at
// which byte of the file).
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Fills `out` from the start and returns how much; less than asked for, then 0, at the end only.
  virtual std::size_t read(std::span<char> out) = 0;

  // Passes over `bytes` decompressed bytes. UserError when there are fewer.
  virtual void skip(std::int64_t bytes) = 0;

  // Bytes of the file itself read so far: for progress.
  virtual std::int64_t file_bytes() const = 0;
};

std::unique_ptr<ByteReader> open_bytes(const std::string& path);

// All of a small file, decompressed.
std::string read_all_bytes(const std::string& path);

}  // namespace hawser::data

// `BlockReader`: splits a source into blocks of about 1 MiB, so that memory use does not depend on the size of the
// source. Internal to prepare.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "prepare/open_lines.h"
#include "prepare/seen_contents.h"
#include "prepare/sources.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

// Position in the decompressed text of a source, from which reading can resume.
struct SourcePlace {
  std::int64_t byte = 0;
  std::int64_t line = 1;

  bool operator==(const SourcePlace&) const = default;
};

// Complete lines of open_lines, or a part of a text file.
struct Block {
  SourceKind kind = SourceKind::jsonl;
  std::string file;
  const char* unit = "line";  // what a line is in the file, see open_lines.h
  std::string text;
  SourcePlace start, end;
  std::int64_t file_bytes = 0;  // bytes of the file (compressed) that this block accounts for

  // Text files only: whether the part has the start / the end of the document, and the text before the part. The ids of
  // `context` + `text` begin with the ids of `context`; the remaining ids belong to the part.
  bool first = true, last = true;
  std::string context;
  ContentHash content;  // hash of the full text, with the last part, if reading began with the first
};

class BlockReader {
 public:
  static constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

  // Begins at `start`, the end of an earlier block. `tokenizer` may be null: texts are then split at any candidate.
  // Throws UserError for a corrupt archive, as every read does.
  BlockReader(const Source& source, const text::Tokenizer* tokenizer, SourcePlace start = {},
              std::int64_t block_bytes = kBlockBytes, const LineNames* names = nullptr);

  // Reads the next block; false at the end. A block of lines ends with the first line that reaches `block_bytes`. A
  // part of a text ends at the first place after `block_bytes` where splitting does not change the tokenizer's ids;
  // candidates are after a line feed and before a space. After 1,000 rejected candidates in a row, the rest of the text
  // is one block. Block ends depend on the source, the tokenizer and `block_bytes` only.
  bool next(Block& block);

 private:
  bool next_lines(Block& block);
  bool next_part(Block& block);
  std::int64_t file_bytes_until(std::int64_t byte) const;
  bool more();                                   // reads more into the buffer; false at the end
  std::size_t find_cut(std::size_t& looked_at);  // npos: none in the buffer
  bool is_cut(std::size_t at);

  Source source_;
  const text::Tokenizer* tokenizer_;
  std::size_t block_bytes_;
  Lines reader_;
  std::string buffer_;   // read and not yet returned
  std::string context_;  // text files: end of the text returned so far
  TextHasher hasher_;
  SourcePlace at_;
  std::int64_t read_ = 0;        // decompressed bytes, up to the end of the buffer
  std::int64_t file_bytes_ = 0;  // of the blocks returned so far
  bool ended_ = false, any_ = false;
  int rejected_ = 0;  // consecutive candidates that the tokenizer rejected
};

}  // namespace hawser::prepare

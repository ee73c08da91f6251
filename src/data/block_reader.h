// Sources cut into blocks of about 1 MiB, so that memory does not depend on their size. Internal to prepare.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/byte_reader.h"
#include "data/seen_contents.h"
#include "data/sources.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::data {

// Where reading goes on in a source, in its decompressed text.
struct SourcePlace {
  std::int64_t byte = 0;
  std::int64_t line = 1;

  bool operator==(const SourcePlace&) const = default;
};

// Whole lines of a JSONL file, or a part of a text file.
struct Block {
  SourceKind kind = SourceKind::jsonl;
  std::string file;
  std::string text;
  SourcePlace start, end;
  std::int64_t file_bytes = 0;  // of the file, compressed as it is, that went into it

  // Of a text: where its document begins and ends, and what stands before this part. The ids of `context` + `text`
  // begin with those of `context`; what follows them are the part's.
  bool first = true, last = true;
  std::string context;
  ContentHash content;  // of the text, with its last part, where reading began with its first
};

class BlockReader {
 public:
  static constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

  // From `start`, a place where a block ended before. `tokenizer` may be null: then texts are cut anywhere.
  // UserError, as every read may throw one, for an archive that is broken.
  BlockReader(const Source& source, const Tokenizer* tokenizer, SourcePlace start = {},
              std::int64_t block_bytes = kBlockBytes);

  // The next block; false at the end. A block ends with the first line that reaches `block_bytes`; a text's part at
  // the first place from there on where the tokenizer's ids are those of the uncut text: behind a line feed, or before
  // a space. A tokenizer that allows none of 1,000 in a row gets the rest of the text whole. Where blocks end depends
  // on the source and the tokenizer alone.
  bool next(Block& block);

 private:
  bool next_lines(Block& block);
  bool next_part(Block& block);
  std::int64_t file_bytes_until(std::int64_t byte) const;
  bool more();                                   // reads on; false at the end
  std::size_t find_cut(std::size_t& looked_at);  // npos: none within what was read
  bool is_cut(std::size_t at);

  Source source_;
  const Tokenizer* tokenizer_;
  std::size_t block_bytes_;
  std::unique_ptr<ByteReader> reader_;
  std::string buffer_;   // read and not yet handed out
  std::string context_;  // of a text: what was handed out last
  TextHasher hasher_;
  SourcePlace at_;
  std::int64_t read_ = 0;        // decompressed bytes, up to the end of the buffer
  std::int64_t file_bytes_ = 0;  // handed out
  bool ended_ = false, any_ = false;
  int rejected_ = 0;  // cuts that the tokenizer does not allow, one after another
};

}  // namespace hawser::data

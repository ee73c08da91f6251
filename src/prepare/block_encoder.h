// `BlockEncoder`: encodes blocks of text as token sequences. Internal to prepare.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "prepare/answers.h"
#include "prepare/block_reader.h"
#include "prepare/seen_contents.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

// A line of JSONL, or a part of a text file.
struct EncodedDocument {
  std::vector<std::int32_t> ids, labels, document_lengths;  // as in Line; ids may be empty (empty text)
  ContentHash content;                                      // if Options::hashes; for a text file, with its last part
};

struct EncodedBlock {
  std::vector<EncodedDocument> documents;  // one per non-blank line, or the part of a text file
  bool first = true, last = true;          // the block has the start / the end of its documents
  SourcePlace end;
  Problems problems;
  std::set<std::string> unread, names;  // of all lines, as in Line
  bool asked_time = false;              // of any line
  bool no_turn_end = false;             // of any line
  std::int64_t file_bytes = 0;
};

// Thread-safe.
class BlockEncoder {
 public:
  struct Options {
    const text::Tokenizer* tokenizer = nullptr;                     // null: text is a problem
    std::int64_t vocab_size = 0;                                    // upper bound of ids in JSONL lines; 0: unknown
    bool hashes = false;                                            // compute content hashes
    std::shared_ptr<const text::chat::ChatTemplate> chat_template;  // null: conversations are a problem,
    Problems without;                                               // with these reasons if there are any
    std::tm time = text::chat::kTemplateDate;                       // that strftime_now gives the template
    const LineNames* names = nullptr;                               // of lines; null: those of jsonl.h
  };
  explicit BlockEncoder(Options options);

  EncodedBlock encode(const Block& block) const;

 private:
  void encode_lines(const Block& block, EncodedBlock& out) const;
  void encode_part(const Block& block, EncodedBlock& out) const;
  std::vector<std::int32_t> encode_text(std::string_view text) const;

  const text::Tokenizer* tokenizer_;
  std::int64_t vocab_size_;
  bool hashes_;  // compute content hashes
  const LineNames* names_;
  text::TextFrame frame_;
  std::optional<AnswerEncoder> answers_;
};

}  // namespace hawser::prepare

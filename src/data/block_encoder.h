// Blocks of text to token sequences. Internal to prepare.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data/answers.h"
#include "data/block_reader.h"
#include "data/seen_contents.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::data {

// A line of JSONL, or a part of a text.
struct EncodedDocument {
  std::vector<std::int32_t> ids, labels, document_lengths;  // as in Line; ids may be empty (an empty text)
  ContentHash content;                                      // where it is asked for; of a text with its last part
};

struct EncodedBlock {
  std::vector<EncodedDocument> documents;  // one a line that is not blank, or the part of a text
  bool first = true, last = true;          // whether the documents begin and end here
  SourcePlace end;
  Problems problems;
  std::int64_t file_bytes = 0;
};

// Thread-safe.
class BlockEncoder {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;                     // null: text is a problem
    std::int64_t vocab_size = 0;                              // bounds the ids that lines bring; 0: unknown
    bool hashes = false;                                      // whether contents are asked for
    std::shared_ptr<const chat::ChatTemplate> chat_template;  // null: conversations are a problem,
    Problems without;                                         // these, where there is more to say
  };
  explicit BlockEncoder(Options options);

  EncodedBlock encode(const Block& block) const;

 private:
  void encode_lines(const Block& block, EncodedBlock& out) const;
  void encode_part(const Block& block, EncodedBlock& out) const;
  std::vector<std::int32_t> encode_text(std::string_view text) const;

  const Tokenizer* tokenizer_;
  std::int64_t vocab_size_;
  bool hashes_;  // whether contents are asked for
  TextFrame frame_;
  std::optional<AnswerEncoder> answers_;
};

}  // namespace hawser::data

// One training sequence, and the sets that a step draws its sequences from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/jsonl.h"
#include "data/token_file.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::data {

// All rows of a sequence before it is split over ranks; not padded.
struct Sequence {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;            // of row i: what it should predict; kIgnoredLabel: nothing
  std::vector<std::int32_t> positions;         // of each row in its document, from 0
  std::vector<std::int32_t> document_lengths;  // they add up to ids.size(); a row attends to its document only

  std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t targets() const;  // labels that are not ignored
};

// Numbered sequences, each at most as long as the recipe says. Thread-safe.
class SequenceSet {
 public:
  virtual ~SequenceSet() = default;
  virtual std::int64_t size() const = 0;
  virtual Sequence get(std::int64_t index) const = 0;
  // get(index).targets(), without reading where that is possible.
  virtual std::int64_t targets(std::int64_t index) const { return get(index).targets(); }
  virtual std::int64_t max_documents() const = 0;  // most documents in one sequence
};

// `pack: chunks`. The file's sequences as one running text, cut every `length` tokens; a row's target is the token
// after it, also across documents and cuts (length + 1 tokens are read, as Megatron does), so only the last token of
// the file predicts nothing. The last sequence may be shorter. Each sequence is one document: everything before a row
// in its sequence is seen. UserError for a file of fewer than two tokens; get() throws one for ids outside the
// vocabulary.
std::unique_ptr<SequenceSet> chunked_sequences(std::shared_ptr<const TokenFile> file, std::int64_t length,
                                               std::int64_t vocab_size);

// `pack: documents`. The file's sequences are documents here: cut into pieces of `length` where longer (a piece's last
// row still predicts the document's next token; a document's last predicts nothing), shuffled by `seed`, and packed in
// windows of 65,536 pieces, longest first into the fullest sequence that still has room, at most `max_documents` to a
// sequence. A document of one token predicts nothing and is left out.
std::unique_ptr<SequenceSet> packed_sequences(std::shared_ptr<const TokenFile> file, std::int64_t length,
                                              std::int64_t max_documents, std::uint64_t seed, std::int64_t vocab_size);

// Lines for evaluation, in order: text encoded (with what the tokenizer puts around it, no end of text added), a line
// longer than `length` cut into pieces of it. A piece is a sequence: positions start anew and its last row predicts
// nothing, and so does the last of every document. Conversations have their ids and labels already (AnswerEncoder).
// `tokenizer` may be null if no line is text; UserError if not.
std::unique_ptr<SequenceSet> listed_sequences(const std::vector<Line>& lines, const Tokenizer* tokenizer,
                                              std::int64_t length);

// Positions from document lengths: 0, 1, 2, 0, 1, ...
std::vector<std::int32_t> positions_of(const std::vector<std::int32_t>& document_lengths);

}  // namespace hawser::data

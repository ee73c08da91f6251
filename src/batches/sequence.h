// `Sequence`, `SequenceSet`: a training sequence, and the sets that steps take their sequences from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/label_spec.h"
#include "base/training_options.h"
#include "prepare/jsonl.h"
#include "prepare/token_file.h"
#include "tensor/batch_table.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::batches {

// All rows of a sequence before it is split over ranks; not padded.
struct Sequence {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;            // of each row (LabelRows); kIgnoredLabel: none
  std::vector<std::int32_t> positions;         // of each row in its document, from 0
  std::vector<std::int32_t> document_lengths;  // sum is ids.size(); a row attends to its own document only
  // Exactly those of BatchShape::tables: an entry for each token, or one of the sequence.
  Tables tables = {};

  std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t targets() const;  // number of labels that are not ignored
};

// Where a document of a sequence is from: it may be a piece of a longer one.
struct Origin {
  std::int64_t document = 0;  // index in the file
  std::int64_t begin = 0;     // of the piece, in tokens of the document
  std::int64_t tokens = 0;    // of the whole document
};

// Indexed sequences, each at most data.sequence_length tokens. Thread-safe.
class SequenceSet {
 public:
  virtual ~SequenceSet() = default;
  virtual std::int64_t size() const = 0;
  virtual Sequence get(std::int64_t index) const = 0;
  // get(index).targets(), without reading the tokens if possible.
  virtual std::int64_t targets(std::int64_t index) const { return get(index).targets(); }
  virtual std::int64_t max_documents() const = 0;  // maximum in one sequence
  virtual std::int64_t tokens() const;             // of all sequences
  virtual LabelRows label_rows() const { return LabelRows::next_token; }
  // Of each document of a sequence; empty if the set does not know.
  virtual std::vector<Origin> origins(std::int64_t /*index*/) const { return {}; }
};

// How the documents of a token file become sequences.
struct PackingPlan {
  Packing pack = Packing::documents;
  std::int64_t sequence_length = 0;
  std::int64_t max_documents = 1;  // per sequence; 1 for Packing::chunks
  LongDocuments long_documents = LongDocuments::split;
  std::uint64_t seed = 0;  // of the order in which pieces are packed
};

// PackingPlan::max_documents by default: max(8, length / 64); 1 for Packing::chunks.
std::int64_t default_max_documents(Packing pack, std::int64_t length);

// Consecutive sequences of a token file.
struct FileRange {
  std::int64_t begin = 0, end = 0;
};
FileRange all_of(const prepare::TokenFile& file);

// chunked_sequences or packed_sequences, of a part of the file.
std::unique_ptr<SequenceSet> open_sequences(std::shared_ptr<const prepare::TokenFile> file, const PackingPlan& packing,
                                            std::int64_t vocab_size, std::optional<FileRange> range = std::nullopt);

// Sets behind each other: the indices of the second begin where those of the first end.
std::unique_ptr<SequenceSet> joined_sequences(std::vector<std::shared_ptr<const SequenceSet>> sets);

// `pack: chunks`. The file's sequences as one running text, split every `length` tokens. The target of a row is the
// next token, also across documents and chunks (length + 1 tokens are read, as in Megatron); only the file's last token
// has none. The last sequence may be shorter. Each sequence is one document: a row attends to everything before it in
// its sequence. UserError for a file of fewer than two tokens; get() throws one for ids outside the vocabulary.
std::unique_ptr<SequenceSet> chunked_sequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length,
                                               std::int64_t vocab_size, std::optional<FileRange> range = std::nullopt);

// `pack: documents`. The file's sequences are documents here. Those of more than `length` + 1 tokens are split into
// pieces of `length`, truncated to the first piece, or dropped. The last row of a piece predicts the document's next
// token, the last row of a document has no target. Pieces are shuffled by
// `seed` and packed in windows of 65,536, longest first, into the fullest sequence with enough space, at most
// `max_documents` per sequence. Documents of one token have no target and are omitted.
std::unique_ptr<SequenceSet> packed_sequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length,
                                              std::int64_t max_documents, std::uint64_t seed, std::int64_t vocab_size,
                                              LongDocuments long_documents = LongDocuments::split,
                                              std::optional<FileRange> range = std::nullopt);

// Lines for evaluation, in order. Text is encoded with the tokens that the tokenizer adds, without an end-of-text
// token. A line longer than `length` is split into pieces of it. Each piece is a sequence: positions restart, and
// neither its last row nor the last row of a document has a target. Conversations already have ids and labels
// (AnswerEncoder). `tokenizer` may be null if no line is text; UserError otherwise. `split`, if given: the number of
// lines that are split.
std::unique_ptr<SequenceSet> listed_sequences(const std::vector<prepare::Line>& lines, const text::Tokenizer* tokenizer,
                                              std::int64_t length, std::int64_t* split = nullptr);

// Positions from document lengths, such as 0, 1, 2, 0, 1 for {3, 2}.
std::vector<std::int32_t> positions_of(const std::vector<std::int32_t>& document_lengths);

}  // namespace hawser::batches

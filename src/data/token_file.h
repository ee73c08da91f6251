// Token files: PREFIX.bin and PREFIX.idx in Megatron's indexed format, and PREFIX.labels.bin where lines brought
// labels.
//
//   PREFIX.bin         the ids of all sequences, one after another, uint16 or int32
//   PREFIX.idx         "MMIDIDX\0\0", u64 version 1, u8 type code (8 uint16, 4 int32), u64 sequences, u64 documents +
//   1,
//                      i32 length of each sequence, i64 byte offset of each in .bin, i64 first sequence of each
//                      document and after the last one; all little-endian, no padding
//   PREFIX.labels.bin  as .bin, int32: the label of each token, aligned with it (not shifted), -100 ignored
//
// A document is one line of JSONL or one text file: what the train / validation split keeps whole. Its sequences are
// the line's `document_lengths`: tokens that may attend to each other. Without them a document is one sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/files.h"

namespace hawser::data {

inline constexpr std::int32_t kIgnoredLabel = -100;

// Read-only and mapped; safe to share between threads.
class TokenFile {
 public:
  // UserError, one line, when a file is missing, cut short, too long, or its index does not add up.
  explicit TokenFile(const std::string& prefix);

  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }
  bool has_labels() const { return has_labels_; }
  const std::string& prefix() const { return prefix_; }

  std::int64_t length(std::int64_t sequence) const;          // tokens
  std::int64_t begin(std::int64_t sequence) const;           // its first token, counted from the start of the file
  std::int64_t first_sequence(std::int64_t document) const;  // document == documents(): sequences()

  // Copies `out.size()` ids from token `from` on; sequences follow each other. UserError for an id that is negative or,
  // where vocab_size is not 0, not below it.
  void read(std::int64_t from, std::span<std::int32_t> out, std::int64_t vocab_size = 0) const;
  // Labels of the same tokens; the ids themselves where there is no label file. kIgnoredLabel is allowed, else as
  // above.
  void read_labels(std::int64_t from, std::span<std::int32_t> out, std::int64_t vocab_size = 0) const;

  // Reads every id and label. UserError for the first that is outside the vocabulary.
  void check_ids(std::int64_t vocab_size) const;

 private:
  void check(std::int64_t from, std::span<const std::int32_t> values, std::int64_t vocab_size, bool labels) const;

  std::string prefix_;
  MappedFile index_, ids_, labels_;
  std::int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  int id_bytes_ = 2;
  bool has_labels_ = false;
};

// How far a draft has come: all that is needed to go on with it in another process.
struct DraftPosition {
  std::int64_t tokens = 0, sequences = 0, documents = 0;  // the last sequence may still be open: it is not counted
  std::int64_t open = 0;                                  // tokens of that one
  std::int64_t first_sequence = 0, first_token = 0;       // of the open document
  bool labels = false;

  bool operator==(const DraftPosition&) const = default;
};

// A token file in the making: PREFIX.bin, PREFIX.labels.bin, PREFIX.lengths, PREFIX.bounds, and after finish()
// PREFIX.idx. Memory does not depend on what is written. UserError when writing fails.
class TokenFileDraft {
 public:
  // Ids are below vocab_size, which chooses uint16 (below 65,500, as Megatron does) or int32; 0: unknown, int32.
  // Where `from` is not the beginning, the files of a draft that had come at least so far are there, and are cut.
  TokenFileDraft(const std::string& prefix, std::int64_t vocab_size, const DraftPosition& from = {});

  // Appends to the open sequence. `labels` is empty or as long as `ids`. UserError for a sequence of 2^31 tokens.
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels = {});
  void end_sequence();      // one without tokens leaves no trace
  void end_document();      // ends the open sequence too; a document without sequences leaves no trace
  void abandon_document();  // as if the open document had never begun

  // After sync() all that was written is on the disk, and a draft may start from position().
  void sync();
  const DraftPosition& position() const { return at_; }

  // Ends the open document and writes the index; everything is on the disk, and nothing more can be written.
  void finish();

  std::int64_t sequences() const { return at_.sequences; }
  std::int64_t documents() const { return at_.documents; }
  std::int64_t tokens() const { return at_.tokens; }

 private:
  std::int64_t id_bytes() const { return wide_ ? 4 : 2; }
  void start_labels();

  std::string prefix_;
  bool wide_;
  DraftPosition at_;
  AppendFile ids_, lengths_, bounds_;
  std::optional<AppendFile> labels_;
  std::vector<std::uint16_t> narrow_;  // scratch
};

// Gives the files of a finished draft their names: FROM.bin becomes TO.bin, and so on. What else the draft left is
// removed. Between the first and the last change there is no TO.idx, so nobody takes the files for a token file; called
// again after a crash, it goes on.
void publish_token_file(const std::string& from, const std::string& to);

// Removes the files of a token file or of a draft, those that there are.
void remove_token_file(const std::string& prefix);

// Writes a token file sequence by sequence, by way of a draft. The files appear under their names in finish(); without
// it nothing remains.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& prefix, std::int64_t vocab_size);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // `labels` is empty or as long as `ids`.
  void add_sequence(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels = {});
  void end_document();  // those without a sequence leave no trace
  void finish();

  std::int64_t sequences() const { return draft_.sequences(); }
  std::int64_t documents() const { return draft_.documents(); }
  std::int64_t tokens() const { return draft_.tokens(); }

 private:
  std::string prefix_;
  TokenFileDraft draft_;
};

}  // namespace hawser::data

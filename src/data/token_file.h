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
#include <memory>
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

// Writes a token file sequence by sequence; memory is 4 bytes a sequence and 8 a document. The files appear under their
// names in finish(), the index last; without finish() nothing remains. UserError when writing fails.
class TokenFileWriter {
 public:
  // Ids are below vocab_size, which chooses uint16 (below 65,500, as Megatron does) or int32; 0: unknown, int32.
  TokenFileWriter(const std::string& prefix, std::int64_t vocab_size);

  // `labels` is empty or as long as `ids`.
  void add_sequence(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels = {});
  void end_document();  // those without a sequence leave no trace
  void finish();

  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(documents_.size()) - 1; }
  std::int64_t tokens() const { return tokens_; }

 private:
  void start_labels();

  std::string prefix_;
  bool wide_;
  AtomicFile index_, ids_;
  std::optional<AtomicFile> labels_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> documents_{0};
  std::int64_t tokens_ = 0;
};

}  // namespace hawser::data

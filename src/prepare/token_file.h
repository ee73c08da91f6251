// `TokenFile`: tokenized documents as PREFIX.bin and PREFIX.idx in Megatron's indexed format, and PREFIX.labels.bin if
// the source had labels.
//
//   PREFIX.bin         ids of all sequences, concatenated, uint16 or int32
//   PREFIX.idx         "MMIDIDX\0\0", u64 version 1, u8 type code (8 uint16, 4 int32),
//                      u64 sequences, u64 documents + 1,
//                      i32 length of each sequence, i64 byte offset of each in .bin,
//                      i64 first sequence of each document and after the last one;
//                      all little-endian, no padding
//   PREFIX.labels.bin  int32 label of each token, aligned with .bin (not shifted), -100 ignored
//
// A document is one line of JSONL or one text file; the train / validation split never divides it. Its sequences are
// the line's `document_lengths`: tokens that may attend to each other. Without them a document is one sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/append_file.h"
#include "io/mapped_file.h"

namespace hawser::prepare {

inline constexpr std::int32_t kIgnoredLabel = -100;

// Read-only and memory-mapped. Thread-safe.
class TokenFile {
 public:
  // UserError, one line, if a file is missing, cut short or too long, or if the index is inconsistent.
  explicit TokenFile(const std::string& prefix);

  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }
  bool has_labels() const { return has_labels_; }
  const std::string& prefix() const { return prefix_; }

  std::int64_t length(std::int64_t sequence) const;          // tokens
  std::int64_t begin(std::int64_t sequence) const;           // index of its first token in the file
  std::int64_t first_sequence(std::int64_t document) const;  // for document == documents(): sequences()

  // Copies `out.size()` ids from token `from`; sequences are contiguous. UserError for an id that is negative or, if
  // vocab_size is not 0, at least vocab_size.
  void read(std::int64_t from, std::span<std::int32_t> out, std::int64_t vocab_size = 0) const;
  // Labels of the same tokens; the ids if there is no label file. Checked as above; kIgnoredLabel is allowed.
  void read_labels(std::int64_t from, std::span<std::int32_t> out, std::int64_t vocab_size = 0) const;

  // The process need not keep these labels in memory (io::MappedFile::release); they can be read again.
  void release_labels(std::int64_t from, std::int64_t count) const;

  // UserError if one of the files has changed since it was opened (io::MappedFile::changed).
  void expect_unchanged() const;

  // Reads every id and label. UserError for the first one outside the vocabulary.
  void check_ids(std::int64_t vocab_size) const;

 private:
  void check(std::int64_t from, std::span<const std::int32_t> values, std::int64_t vocab_size, bool labels) const;

  std::string prefix_;
  io::MappedFile index_, ids_, labels_;
  std::int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  int id_bytes_ = 2;
  bool has_labels_ = false;
};

// Progress of a draft, sufficient to resume it in another process.
struct DraftPosition {
  std::int64_t tokens = 0, sequences = 0, documents = 0;  // `sequences` excludes the open (last, unfinished) one
  std::int64_t open = 0;                                  // tokens of the open sequence
  std::int64_t first_sequence = 0, first_token = 0;       // of the open document
  bool labels = false;

  bool operator==(const DraftPosition&) const = default;
};

// An unfinished token file: PREFIX.bin, PREFIX.labels.bin, PREFIX.lengths, PREFIX.bounds, and after finish()
// PREFIX.idx. Memory use does not depend on its size. UserError if writing fails.
class TokenFileDraft {
 public:
  // Ids are below vocab_size. It selects uint16 (below 65,500, as in Megatron) or int32; 0: unknown, int32.
  // To resume a draft, `from` is a position that it reached; its files must exist and are truncated to it.
  TokenFileDraft(const std::string& prefix, std::int64_t vocab_size, const DraftPosition& from = {});

  // Appends to the open sequence. `labels` is empty or as long as `ids`. UserError if the sequence exceeds 2^31-1
  // tokens.
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels = {});
  void end_sequence();      // no effect on an empty sequence
  void end_document();      // also ends the open sequence; no effect on a document without sequences
  void abandon_document();  // discards the open document

  // After sync() all data is on disk, and another draft may resume from position().
  void sync();
  const DraftPosition& position() const { return at_; }

  // The files and the bytes of them that position() covers, without the index. Call after sync().
  std::vector<std::pair<std::string, std::int64_t>> files() const;

  // Ends the open document, writes the index and syncs all files. Nothing can be written afterwards.
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
  io::AppendFile ids_, lengths_, bounds_;
  std::optional<io::AppendFile> labels_;
  std::vector<std::uint16_t> narrow_;  // scratch
};

// Renames the files of a finished draft: FROM.bin to TO.bin, and so on; removes its other files. TO.idx is missing
// until the last rename, so that an incomplete TO is not recognized as a token file. Called again after a crash, it
// continues.
void publish_token_file(const std::string& from, const std::string& to);

// Removes the existing files of a token file or a draft.
void remove_token_file(const std::string& prefix);

// Writes a token file sequence by sequence, through a draft. finish() renames the files to their final names; without
// it they are removed.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& prefix, std::int64_t vocab_size);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // `labels` is empty or as long as `ids`.
  void add_sequence(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels = {});
  void end_document();  // no effect on a document without sequences
  void finish();

  std::int64_t sequences() const { return draft_.sequences(); }
  std::int64_t documents() const { return draft_.documents(); }
  std::int64_t tokens() const { return draft_.tokens(); }

 private:
  std::string prefix_;
  TokenFileDraft draft_;
};

}  // namespace hawser::prepare

// `Preparer`: writes the token files of a checked job. Internal to prepare.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prepare/block_encoder.h"
#include "prepare/block_pool.h"
#include "prepare/draft_checksums.h"
#include "prepare/held_out.h"
#include "prepare/prepare.h"
#include "prepare/prepared_manifest.h"
#include "prepare/seen_contents.h"

namespace hawser::prepare {

// Everything that is checked and opened before the sources are read.
struct PrepareJob {
  PreparedFrom from;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::shared_ptr<const text::chat::ChatTemplate> chat_template;  // null: none
  std::tm time = text::chat::kTemplateDate;                       // that strftime_now gives it
  Problems without_template;                                      // reasons, if chat_template is null and there are any
};

// OUTPUT/unfinished, locked by one process at a time.
class UnfinishedFolder {
 public:
  // UserError if another process holds the lock.
  explicit UnfinishedFolder(const std::string& output);
  ~UnfinishedFolder();
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  std::string path(const std::string& name) const;
  void clear();   // removes the files of prepare but the lock
  void remove();  // the lock, too; and the folder, if nothing else is in it

 private:
  std::string folder_;
  int lock_ = -1;
};

class Preparer {
 public:
  Preparer(const PrepareOptions& options, const PrepareJob& job);
  Prepared run();

 private:
  void open();
  bool open_unfinished();
  std::string changed_file(const PrepareState& state);
  void protect_files_of_others();
  void open_drafts();
  void hold_out();
  void read(bool validation);
  void read_source(const Source& source, bool validation, std::int64_t index, SourcePlace start);
  void join(const Source& source, bool validation, std::int64_t index, std::int64_t first);
  void take_all();
  void take_one();
  void begin_set(std::int64_t set);
  void write(const EncodedBlock& block, const Source& source, bool validation);
  void write_document(const EncodedDocument& document, bool last, TokenFileDraft& file);
  bool is_duplicate(const ContentHash& hash);
  TokenFileDraft& file_of_next(const Source& source, bool validation);
  // The names of the token files, with their drafts: "train", and those of the held-out data.
  std::vector<std::pair<std::string, TokenFileDraft*>> drafts();
  void count_read(std::int64_t file_bytes);
  void save(bool at_once);
  std::vector<PublishedFile> draft_files();
  void publish();
  Prepared result() const;

  struct InFlight {
    bool validation = false;
    std::int64_t source = 0, bytes = 0;
  };

  const PrepareOptions& options_;
  const PrepareJob& job_;
  std::int64_t vocab_size_;
  std::vector<std::string> stems_;  // validation_stems
  BlockEncoder encoder_;
  std::optional<UnfinishedFolder> folder_;
  PrepareState state_;
  bool resumed_ = false;
  std::string changed_, set_aside_;
  DraftChecksums checksums_;
  Problems problems_;
  HeldOut held_out_;
  SeenContents seen_;
  std::optional<io::AppendFile> contents_;
  std::optional<TokenFileDraft> train_;
  std::deque<TokenFileDraft> valid_;  // by validation_stems
  TokenFileDraft* open_ = nullptr;    // target of a text whose parts are being written
  std::deque<InFlight> in_flight_;
  std::int64_t bytes_in_flight_ = 0;
  std::chrono::steady_clock::time_point reported_{}, saved_ = std::chrono::steady_clock::now();
  BlockPool pool_;  // last member: its threads stop before the others are destroyed
};

}  // namespace hawser::prepare

// `prepare`: converts text to token files, for `hawser prepare`, and for `fit` if they are missing or stale.
//
// Writes OUTPUT/train.{bin,idx}, OUTPUT/valid.{bin,idx} if anything is held out (of named validation sets
// OUTPUT/valid-NAME.{bin,idx}), and last OUTPUT/prepared.json, which records the sources and options. Documents keep
// the order of the sources for any number of threads. A text gets the tokens that the tokenizer adds (begin of text)
// and then the end-of-text token; lines of ids are not changed.
//
// Token files are sources too. A single one is read in place (token_files). Several, or one from which a fraction is
// held out, or one together with text, are joined in OUTPUT with unchanged ids; so is one without its duplicates.
//
// Memory is bounded: a window of blocks (1 MiB of lines or text) is in flight, for sources of any size.
//
// An interrupted or killed prepare resumes: OUTPUT/unfinished has the data so far and a state file that is rewritten
// every few seconds. The token files are bitwise equal in any case and for any number of threads. No file gets its
// final name before all of it is on disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "prepare/line_names.h"
#include "prepare/validation_sets.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

struct PrepareProgress {
  bool counting = false;  // counting documents for validation_fraction, before reading them
  std::int64_t bytes_done = 0, bytes_total = 0;
  std::int64_t bytes_before = 0;  // part of bytes_done that an earlier, unfinished prepare did
  std::int64_t documents = 0, tokens = 0;
};

struct PrepareOptions {
  std::vector<std::string> train;  // patterns, see sources.h
  // The number of patterns of each data set in `train`, in order; empty: all are one set.
  std::vector<std::size_t> sets = {};
  std::vector<ValidationSet> validation = {};  // empty: validation_fraction of the documents of `train`
  std::string folder;                          // base of relative patterns
  std::string tokenizer;                       // a tokenizer.json or its folder; "": lines must have ids
  std::string output;                          // folder of the token files
  double validation_fraction = 0.0;
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;               // of the model: upper bound of ids in lines; 0: the tokenizer's
  std::string chat_template;                 // a name or a file; "": the tokenizer's; see chat/chat_template.h
  std::string template_date = "2024-07-26";  // that strftime_now gives a chat template
  LineNames names;                           // of keys and roles in the files
  bool deduplicate = false;                  // omit documents with the same content as an earlier one
  int threads = 1;
  std::chrono::milliseconds save_every{5000};            // interval between writes of the state file
  std::int64_t block_bytes = 0;                          // 0: 1 MiB; smaller in tests
  std::int64_t piece_tokens = std::int64_t{1} << 20;     // copied from a token file at a time; smaller in tests
  std::function<void(const PrepareProgress&)> progress;  // on the calling thread, at most about 5 times a second
  std::function<bool()> stop;  // polled on the calling thread after each block; true: Error(interrupted), to be resumed
  bool own_folder = false;     // `output` is a run's OUTPUT/data: files of others there are moved to earlier-N
  // For problems of files: where the user names the tokenizer ("data.tokenizer, line 3 of r.yaml"), and what adds this
  // to problems at data.train and other keys. None: keys without a place.
  std::string tokenizer_origin = {};
  std::function<Problems(const Problems&)> with_origins = {};
};

// Counts of the training data, or of all held-out data.
struct PreparedCounts {
  std::int64_t documents = 0, sequences = 0, tokens = 0;
};

struct Prepared {
  PreparedCounts train, validation;
  std::int64_t source_bytes = 0;  // size of the source files, compressed
  bool compressed = false;        // at least one source is
  std::int64_t duplicates = 0;    // documents omitted
  bool resumed = false;
  bool no_end_token = false;  // the tokenizer has no end-of-text token, which separates documents
  std::string changed;    // a file of an unfinished prepare that no longer was as recorded; "": none. It started over
  std::string set_aside;  // folder of files of others that were in the way, in a run's own folder; "": none
  std::vector<std::int64_t> set_begins;  // the first document of each data set in the training file
  // Keys of lines that nothing reads, though their names speak of what is trained on (Line::unread).
  std::set<std::string> unread;
  std::set<std::string> names;  // that lines have of LineNames::all
  bool asked_time = false;      // the chat template wrote a date
  bool no_turn_end = false;     // no token of the tokenizer ends an answer of the conversations
};

// Lines about what a user may not expect of what was prepared.
std::vector<std::string> notes_of(const Prepared& prepared, const PrepareOptions& options);

// Prefixes of the token files that a run reads: those in `output`, or the user's own in place, if one of them is all of
// the training data, one is all of each validation set, and no documents are left out. Without sources (`train` is
// empty), they are those that an earlier prepare has left in `output`.
struct TokenFiles {
  struct Validation {
    std::string name, prefix;  // name: of the set; "": there is one without a name
  };
  std::string train;
  std::vector<Validation> validation;  // empty: nothing is held out
  bool in_place = false;
};
TokenFiles token_files(const PrepareOptions& options);

// The problem, without a place, if `prepare` has made the token file at this prefix with another tokenizer: its ids
// would be read as other text. nullopt as well if it is not known which tokenizer the ids are of.
std::optional<Problem> other_tokenizer(const std::string& prefix, const text::Tokenizer& tokenizer);

// Adds the problems that can be found without reading the sources: patterns without files, a tokenizer that cannot be
// read or does not fit the model. Writes nothing.
void check_sources(const PrepareOptions& options, Problems& problems);

// Lines about what a user may not expect of the sources: unread_in_folders, files named more than once in data.train,
// and files that are both training and validation data.
std::vector<std::string> source_notes(const PrepareOptions& options);

// UserError with all problems of all files; no token file is then written. Files in place are only checked: every id is
// read.
Prepared prepare(const PrepareOptions& options);

// Whether the token files in options.output were made from the same sources (path, size, modification time), tokenizer
// and options. Also false if anything is missing or cannot be read, and for files in place.
bool is_prepared(const PrepareOptions& options);

// The first document of each data set in the prepared training file; empty for files in place, and if nothing is
// prepared.
std::vector<std::int64_t> set_begins(const PrepareOptions& options);

// prepared.json of options.output if is_prepared, else "".
std::string prepared_manifest(const PrepareOptions& options);

// UserError if another prepare has replaced the token files in options.output since prepared_manifest returned
// `manifest`. A prepare removes prepared.json before it replaces them: call this after opening them. Accepts "".
void expect_still_prepared(const PrepareOptions& options, const std::string& manifest);

// The problem to report if a path that should be something else is a folder of prepared data, including unfinished data
// and data without its prepared.json; nullopt for any other folder.
std::optional<Problem> prepared_folder(const std::string& folder);

}  // namespace hawser::prepare

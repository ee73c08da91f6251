// Text to token files: `hawser prepare`, and `fit` when they are missing or stale.
//
// Writes OUTPUT/train.{bin,idx}, OUTPUT/valid.{bin,idx} if anything is held out, and last OUTPUT/prepared.json, which
// says what they were made from. Documents keep the order of the sources whatever the number of threads. A text gets
// what the tokenizer puts around it (begin of text) and then its end-of-text token; lines of ids stay as they are.
//
// Token files are sources too: one alone is read where it lies (token_files); several, or one of which a share is held
// out, or one beside text, are joined in OUTPUT, their ids as they are.
//
// Memory is bounded: a window of blocks (1 MiB of lines or text) is in flight at a time, whatever the sources' size.
//
// A prepare that was stopped, in whatever way, goes on where it was: what is done so far lies in OUTPUT/unfinished,
// with a note that is renewed every few seconds. The token files are the same bytes in any case, for any number of
// threads. Nothing has its final name before all of it is on the disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/recipe.h"

namespace hawser::data {

struct PrepareProgress {
  bool counting = false;  // the documents, before the first is read: for validation_fraction
  std::int64_t bytes_done = 0, bytes_total = 0;
  std::int64_t bytes_before = 0;  // of bytes_done: what an earlier, unfinished prepare had done
  std::int64_t documents = 0, tokens = 0;
};

struct PrepareOptions {
  std::vector<std::string> train;       // patterns, see sources.h
  std::vector<std::string> validation;  // held-out files; else validation_fraction of the documents of `train`
  std::string folder;                   // relative patterns start here
  std::string tokenizer;                // a tokenizer.json or its folder; "": lines must bring ids
  std::string output;                   // folder of the token files
  double validation_fraction = 0.0;
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;  // the model's: ids of lines must be below it; 0: the tokenizer's
  std::string chat_template;    // a name or a file; "": the tokenizer's; see chat/chat_template.h
  bool deduplicate = false;     // leave out documents whose content was there before
  int threads = 1;
  std::chrono::milliseconds save_every{5000};            // how much work a stop may cost
  std::int64_t block_bytes = 0;                          // 0: 1 MiB; tests take less
  std::function<void(const PrepareProgress&)> progress;  // on the calling thread, a few times a second at most
};

// What one of the two token files holds.
struct PreparedCounts {
  std::int64_t documents = 0, sequences = 0, tokens = 0;
};

struct Prepared {
  PreparedCounts train, validation;
  std::int64_t source_bytes = 0;  // as the files lie there
  bool compressed = false;        // one of them at least is
  std::int64_t duplicates = 0;    // documents left out
  bool resumed = false;
};

// A recipe's data section with its defaults filled in: the tokenizer beside the model, token files in OUTPUT/data.
PrepareOptions prepare_options(const Recipe& recipe);

// The token files that a run reads, by prefix: those of `output`, or in place the user's own, where one is all of the
// training data and none or one is all of the validation data. `validation` may name a file that is not there.
struct TokenFiles {
  std::string train, validation;  // validation "": none is held out
  bool in_place = false;
};
TokenFiles token_files(const PrepareOptions& options);

// Adds what can be known to be wrong without reading the sources: patterns without files, a tokenizer that cannot be
// read or does not fit the model. Writes nothing.
void check_sources(const PrepareOptions& options, Problems& problems);

// UserError with all problems of all files together; then nothing is written. Files in place are only checked: every id
// is read.
Prepared prepare(const PrepareOptions& options);

// Whether the token files in options.output were made from the same sources (path, size, time of change), tokenizer and
// options. False also when something is missing or cannot be read, and for files in place.
bool is_prepared(const PrepareOptions& options);

// What to say of a folder that was taken for something else and is one of prepared data, be it unfinished or without
// its prepared.json; none for any other.
std::optional<Problem> prepared_folder(const std::string& folder);

}  // namespace hawser::data

// prepared.json: what token files were made from; unfinished/state.json: how far a prepare has come. Internal to
// prepare.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/block_reader.h"
#include "data/prepare.h"
#include "data/sources.h"
#include "data/token_file.h"

namespace hawser::data {

// What the token files depend on.
struct PreparedFrom {
  std::vector<Source> train, validation;
  std::uint64_t tokenizer = 0;  // fingerprint; 0: none
  double validation_fraction = 0.0;
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;
  bool deduplicate = false;
  std::uint64_t chat_template = 0;  // fingerprint; 0: none

  bool operator==(const PreparedFrom&) const = default;
};

void write_manifest(const std::string& path, const PreparedFrom& from, const Prepared& counts);
// nullopt when there is none that this version understands.
std::optional<PreparedFrom> read_manifest(const std::string& path);

// How far an unfinished prepare has come, with all that it takes to go on.
struct PrepareState {
  PreparedFrom from;
  bool complete = false;        // all is read: the drafts need their names only
  bool validation = false;      // which list of sources is being read,
  std::int64_t source = 0;      // which of it,
  SourcePlace place;            // and where in it; in a token file `byte` is the document
  std::int64_t counted = -1;    // documents of `train`, where they were counted
  std::int64_t documents = 0;   // of `train`, read so far
  std::int64_t duplicates = 0;  // left out so far
  std::int64_t contents = 0;    // hashes in the file `contents`
  PrepareProgress progress;
  DraftPosition train;
  std::optional<DraftPosition> valid;
};

void write_state(const std::string& path, const PrepareState& state);
// nullopt when there is none that this version understands.
std::optional<PrepareState> read_state(const std::string& path);

}  // namespace hawser::data

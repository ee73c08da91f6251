// prepared.json, which records the origin of token files, and unfinished/state.json, which records the progress of a
// prepare. Internal to prepare.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "prepare/block_reader.h"
#include "prepare/prepare.h"
#include "prepare/published_files.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"

namespace hawser::prepare {

// Everything that the contents of the token files depend on.
struct PreparedFrom {
  std::vector<Source> train, validation;
  std::vector<std::string> validation_sets;  // the names of the sets; empty: there is one without a name, or none
  std::uint64_t tokenizer = 0;               // fingerprint; 0: none
  double validation_fraction = 0.0;
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;
  bool deduplicate = false;
  std::uint64_t chat_template = 0;  // fingerprint; 0: none
  std::uint64_t names = 0;          // fingerprint of LineNames; 0: none

  bool operator==(const PreparedFrom&) const = default;
};

// The names of the token files of the held-out data, without endings: {"valid"}, {"valid-novels", "valid-support"};
// empty if nothing is held out.
std::vector<std::string> validation_stems(const PreparedFrom& from);

void write_manifest(const std::string& path, const PreparedFrom& from, const Prepared& counts,
                    const std::vector<PublishedFile>& files);
// The files that a manifest records; none in those of earlier builds, whose token files are not checked.
std::vector<PublishedFile> files_of_manifest(const std::string& text);
// The first document of each data set in the training file; none in those of earlier builds.
std::vector<std::int64_t> set_begins_of_manifest(const std::string& text);
// Writes the manifest with other files, and returns its new text.
std::string replace_files(const std::string& path, const std::string& text, const std::vector<PublishedFile>& files);
// The text of a manifest; "" if it cannot be read, is no regular file, or has more than 256 MiB.
std::string manifest_text(const std::string& path);
// Whether the text is a manifest or a state, of any version.
bool is_prepares_own(const std::string& text);
// nullopt if it is no manifest of this version.
std::optional<PreparedFrom> parse_manifest(const std::string& text);

// Progress of an unfinished prepare, sufficient to resume it.
struct PrepareState {
  PreparedFrom from;
  bool complete = false;                      // all sources are read; the drafts only need their final names
  bool validation = false;                    // position: in the validation sources (true) or the training sources,
  std::int64_t source = 0;                    // index of the source,
  SourcePlace place;                          // place in the source; in a token file `byte` is the document
  std::int64_t counted = -1;                  // documents in `train`, if they were counted; else -1
  std::int64_t documents = 0;                 // of `train`, read so far
  std::int64_t duplicates = 0;                // omitted so far
  std::int64_t contents = 0;                  // hashes in the file `contents`
  std::vector<std::int64_t> set_begins = {};  // as in Prepared, of the sets that have begun
  std::set<std::string> unread = {};          // as in Prepared
  std::set<std::string> names = {};           // as in Prepared
  bool asked_time = false;                    // as in Prepared
  bool no_turn_end = false;                   // as in Prepared
  PrepareProgress progress;
  DraftPosition train;
  std::vector<DraftPosition> valid;  // by validation_stems
  // The bytes of the unfinished files that the above covers (without times); none in a state of earlier builds.
  std::vector<PublishedFile> files;
};

void write_state(const std::string& path, const PrepareState& state);
// nullopt if there is none of this version.
std::optional<PrepareState> read_state(const std::string& path);

}  // namespace hawser::prepare

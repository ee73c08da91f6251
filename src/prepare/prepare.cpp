#include "prepare/prepare.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "base/calendar.h"
#include "base/error.h"
#include "base/paths.h"
#include "base/philox.h"
#include "base/text.h"
#include "io/files.h"
#include "prepare/answers.h"
#include "prepare/jsonl.h"
#include "prepare/open_lines.h"
#include "prepare/parquet_reader.h"
#include "prepare/preparer.h"
#include "prepare/token_file.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;

// Preparing replaces the token files in `output`: they must not be sources.
void expect_not_replaced(const std::vector<Source>& sources, const std::string& key,
                         const std::vector<std::string>& names, const std::string& output, Problems& problems) {
  for (const Source& source : sources) {
    if (source.kind != SourceKind::tokens) continue;
    for (const std::string& name : names) {
      std::error_code absent;
      if (!fs::equivalent(source.path + ".idx", fs::path(output) / cat(name, ".idx"), absent)) continue;
      problems.add({.file = source.path + ".idx",
                    .what = "the prepared data would replace this source",
                    .at = key,
                    .hint = "another data.prepared, or another output"});
    }
  }
}

// Adds the lines of an error of the tokenizer, with the place that names it.
void add_of_tokenizer(const std::string& lines, const std::string& origin, Problems& problems) {
  Problems each;
  each.add_lines(lines);
  for (Problem problem : each.all()) {
    std::string& line = problem.what;
    const std::size_t hint = std::min(line.rfind("; try "), line.size());
    const bool has_place = line.rfind(" at ", hint) != std::string::npos;
    if (!origin.empty()) line.insert(hint, cat(has_place ? ", named at " : " at ", origin));
    problems.add(std::move(problem));
  }
}

// The fingerprint of the tokenizer that the ids of a token file are of, which the prepared.json beside it has; nullopt if
// `prepare` has not made the file, or has made it of ids without a tokenizer.
std::optional<std::uint64_t> recorded_tokenizer(const std::string& prefix) {
  const fs::path path(prefix);
  const std::string name = path.filename().string();
  if (name != "train" && name != "valid" && !name.starts_with("valid-")) return std::nullopt;
  const std::string text = manifest_text((path.parent_path() / "prepared.json").string());
  const auto from = parse_manifest(text);
  if (!from || from->tokenizer == 0) return std::nullopt;
  const std::vector<std::string> stems = validation_stems(*from);
  if (name.starts_with("valid-") && std::ranges::find(stems, name) == stems.end()) return std::nullopt;
  for (const PublishedFile& file : files_of_manifest(text)) {
    std::error_code error;
    if (file.name != name + ".bin") continue;
    // Another program may have replaced the file.
    if (fs::file_size(prefix + ".bin", error) != static_cast<std::uintmax_t>(file.bytes)) return std::nullopt;
  }
  return from->tokenizer;
}

PrepareJob check_named(const PrepareOptions& options, Problems& problems) {
  PrepareJob job;
  if (options.train.empty()) problems.add({.what = "no training data", .at = "data.train"});
  if (!(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0)) {
    problems.add({.what = "bad fraction",
                  .expected = "0 or more, below 1",
                  .got = cat(options.validation_fraction),
                  .at = "data.validation_fraction"});
  }
  check_names(options.names, problems);
  // The data set of each pattern.
  std::vector<std::int64_t> set_of;
  for (std::size_t set = 0; set < options.sets.size(); ++set) {
    set_of.insert(set_of.end(), options.sets[set], static_cast<std::int64_t>(set));
  }
  job.from.train = find_sources(options.train, options.folder, "data.train", problems);
  job.from.validation = find_validation(options.validation, options.folder, problems);
  for (const ValidationSet& set : options.validation) {
    if (!set.name.empty()) job.from.validation_sets.push_back(set.name);
  }
  for (Source& source : job.from.train) source.set = set_of.empty() ? 0 : set_of[static_cast<std::size_t>(source.set)];
  const auto key_of = [&](const Source& source) {  // of a validation source
    return validation_key(options.validation[static_cast<std::size_t>(source.set)].name);
  };
  // A run's own files, such as metrics.jsonl, are no data, also where a folder of data.train contains its output
  // folder.
  const std::string own = fs::path(options.output).parent_path() / "";
  const auto is_own = [&](const Source& source) {
    return options.own_folder && source.kind != SourceKind::tokens && source.path.starts_with(own);
  };
  if (std::ranges::any_of(job.from.train, std::not_fn(is_own))) {
    std::erase_if(job.from.train, is_own);
    std::erase_if(job.from.validation, is_own);
  }
  if (problems.empty() && !token_files(options).in_place) {
    std::vector<std::string> names{"train", "valid"};
    for (const std::string& set : job.from.validation_sets) names.push_back(validation_stem(set));
    expect_not_replaced(job.from.train, "data.train", names, options.output, problems);
    for (const Source& source : job.from.validation) {
      expect_not_replaced({source}, key_of(source), names, options.output, problems);
    }
  }
  const auto is_text = [](const Source& source) { return source.kind != SourceKind::tokens; };
  const bool text = std::ranges::any_of(job.from.train, is_text) || std::ranges::any_of(job.from.validation, is_text);
  // Ids need no tokenizer, unless it is known which one they are of. If there are no training sources, the tokenizer is
  // loaded only to report its problems.
  const auto recorded = [](const Source& source) {
    return source.kind == SourceKind::tokens && recorded_tokenizer(source.path).has_value();
  };
  const bool wanted = text || job.from.train.empty() || std::ranges::any_of(job.from.train, recorded) ||
                      std::ranges::any_of(job.from.validation, recorded);
  if (!options.tokenizer.empty() && wanted) {
    try {
      job.tokenizer = text::load_tokenizer(resolve_path(options.tokenizer, options.folder));
    } catch (const UserError& error) {
      add_of_tokenizer(error.what(), options.tokenizer_origin, problems);
    }
  }
  // Problems of the tokenizer's own template matter only for conversations.
  job.chat_template =
      text::chat::open_chat_template(options.chat_template, options.tokenizer, options.folder, "data.chat_template",
                                     options.chat_template.empty() ? job.without_template : problems);
  job.from.chat_template = job.chat_template ? job.chat_template->fingerprint() : 0;
  // Before encode_conversation, special tokens were encoded as text: those token files are stale.
  if (job.chat_template && job.tokenizer && job.tokenizer->has_special_as_text()) {
    job.from.chat_template = fnv1a("special tokens", job.from.chat_template);
  }
  // An answer used to end with the first special token after its contents, and the first answer of a conversation to
  // begin with a system message of the template: those token files are stale.
  if (job.chat_template) job.from.chat_template = fnv1a("bounds of answers, 2", job.from.chat_template);
  job.time = parse_day(options.template_date).value_or(text::chat::kTemplateDate);
  if (job.chat_template && job.chat_template->source().find("strftime_now") != std::string::npos) {
    job.from.chat_template = fnv1a(options.template_date, job.from.chat_template);
  }
  job.from.tokenizer = job.tokenizer ? job.tokenizer->fingerprint() : 0;
  if (job.tokenizer) {
    const auto expect_of_tokenizer = [&](const Source& source, const std::string& key) {
      if (source.kind != SourceKind::tokens) return;
      if (auto problem = other_tokenizer(source.path, *job.tokenizer)) {
        problem->at = key;
        problems.add(*problem);
      }
    };
    for (const Source& source : job.from.train) expect_of_tokenizer(source, "data.train");
    for (const Source& source : job.from.validation) expect_of_tokenizer(source, key_of(source));
    if (!text && !job.from.train.empty()) job.tokenizer.reset();
  }
  job.from.vocab_size = options.vocab_size;
  job.from.names = options.names.fingerprint();
  job.from.deduplicate = options.deduplicate;
  // Validation files override the fraction; a change of the unused fraction must not make token files stale.
  job.from.validation_fraction = options.validation.empty() ? options.validation_fraction : 0.0;
  job.from.seed = job.from.validation_fraction > 0.0 ? options.seed : 0;
  if (job.tokenizer && options.vocab_size > 0 && job.tokenizer->vocab_size() > options.vocab_size) {
    problems.add({.file = options.tokenizer,
                  .what = "the tokenizer's vocabulary is larger than the model's",
                  .expected = cat("at most ", options.vocab_size),
                  .got = cat(job.tokenizer->vocab_size()),
                  .at = options.tokenizer_origin.empty() ? "data.tokenizer" : options.tokenizer_origin});
  }
  return job;
}

PrepareJob check(const PrepareOptions& options, Problems& problems) {
  Problems found;
  PrepareJob job = check_named(options, found);
  problems.add(options.with_origins ? options.with_origins(found) : found);
  return job;
}

PrepareJob checked(const PrepareOptions& options) {
  Problems problems;
  PrepareJob job = check(options, problems);
  problems.throw_if_any();
  return job;
}

// Token files that are used in place: only their ids are checked.
Prepared check_in_place(const TokenFiles& files, const PrepareOptions& options) {
  Prepared prepared;
  Problems problems;
  const auto look_at = [&](const std::string& prefix, const std::string& key, PreparedCounts& counts) {
    try {
      const TokenFile file(prefix);
      file.check_ids(options.vocab_size);
      counts.documents += file.documents();
      counts.sequences += file.sequences();
      counts.tokens += file.tokens();
      if (file.tokens() == 0) problems.add({.file = prefix + ".bin", .what = "no tokens in any document", .at = key});
    } catch (const UserError& error) {
      problems.add_lines(error.what());
    }
  };
  look_at(files.train, "data.train", prepared.train);
  for (const auto& [name, prefix] : files.validation) look_at(prefix, validation_key(name), prepared.validation);
  problems.throw_if_any();
  return prepared;
}

// Copies have new times: recorded, they are not read again. In a folder that cannot be written they are, each time.
std::string with_new_times(const std::string& path, const std::string& text, const std::vector<PublishedFile>& files) {
  try {
    return replace_files(path, text, files);
  } catch (const UserError&) {
    return text;
  }
}

}  // namespace

namespace {

// The names of the validation sets that an earlier prepare has left in a folder; {""}: one without a name.
std::vector<std::string> prepared_sets(const fs::path& folder) {
  const auto from = parse_manifest(manifest_text((folder / "prepared.json").string()));
  if (from && !from->validation_sets.empty()) return from->validation_sets;
  return io::exists((folder / "valid.idx").string()) ? std::vector<std::string>{""} : std::vector<std::string>();
}

}  // namespace

TokenFiles token_files(const PrepareOptions& options) {
  Problems ignored;
  const auto train = find_sources(options.train, options.folder, "", ignored);
  const auto validation = find_validation(options.validation, options.folder, ignored);
  const bool held_out = options.validation.empty() && options.validation_fraction > 0.0;
  const auto in_place = [](const Source& source) { return source.kind == SourceKind::tokens; };
  const bool one_each = validation.size() == options.validation.size() && std::ranges::all_of(validation, in_place) &&
                        train.size() == 1 && in_place(train[0]);
  // A file in place has all its documents. Without problems, each set has a file or more.
  if (ignored.empty() && one_each && !held_out && !options.deduplicate) {
    TokenFiles files{.train = train[0].path, .validation = {}, .in_place = true};
    for (const Source& source : validation) {
      files.validation.push_back({options.validation[static_cast<std::size_t>(source.set)].name, source.path});
    }
    return files;
  }
  const fs::path folder(options.output);
  TokenFiles files{.train = (folder / "train").string(), .validation = {}};
  std::vector<std::string> names;
  for (const ValidationSet& set : options.validation) names.push_back(set.name);
  if (held_out) names = {""};
  if (options.train.empty()) names = prepared_sets(folder);
  for (const std::string& name : names) {
    files.validation.push_back({name, (folder / validation_stem(name)).string()});
  }
  return files;
}

std::optional<Problem> other_tokenizer(const std::string& prefix, const text::Tokenizer& tokenizer) {
  const auto recorded = recorded_tokenizer(prefix);
  if (!recorded || *recorded == tokenizer.fingerprint()) return std::nullopt;
  const std::string manifest = (fs::path(prefix).parent_path() / "prepared.json").string();
  return Problem{.file = prefix + ".bin",
                 .what = "token file of another tokenizer",
                 .expected = cat("the one of ", manifest, ", fingerprint ", *recorded),
                 .got = cat(tokenizer.fingerprint()),
                 .hint = "the tokenizer that the file was prepared with, or the text in place of the file"};
}

void check_sources(const PrepareOptions& options, Problems& problems) {
  check(options, problems);
}

std::vector<std::string> source_notes(const PrepareOptions& options) {
  std::vector<std::string> patterns = options.train;
  for (const ValidationSet& set : options.validation) {
    patterns.insert(patterns.end(), set.patterns.begin(), set.patterns.end());
  }
  std::vector<std::string> notes = unread_in_folders(patterns, options.folder);
  const bool no_validation = options.validation.empty();
  for (std::string& note : left_out_of_folders(options.train, options.folder, no_validation)) {
    notes.push_back(std::move(note));
  }
  const auto files = [&](const std::set<std::string>& paths) {
    return cat(plural(static_cast<std::int64_t>(paths.size()), "file"), " (", *paths.begin(),
               paths.size() > 1 ? ", ..." : "", ")");
  };
  Problems ignored;
  const auto path_of = [](const Source& source) {
    return source.kind == SourceKind::tokens ? source.path : without_links(source.path);
  };
  std::set<std::string> seen, repeated, both;
  for (const std::string& pattern : options.train) {
    for (const Source& source : find_sources({pattern}, options.folder, "", ignored)) {
      if (!seen.insert(path_of(source)).second) repeated.insert(path_of(source));
    }
  }
  for (const Source& source : find_validation(options.validation, options.folder, ignored)) {
    if (seen.contains(path_of(source))) both.insert(path_of(source));
  }
  if (!repeated.empty()) notes.push_back("named more than once in data.train and read once: " + files(repeated));
  if (options.deduplicate) {
    const auto kinds = [&](bool tokens) {
      const auto sources = find_sources(patterns, options.folder, "", ignored);
      return std::ranges::any_of(sources, [&](const Source& s) { return (s.kind == SourceKind::tokens) == tokens; });
    };
    if (kinds(true) && kinds(false)) {
      notes.emplace_back(
          "data.deduplicate compares documents of token files with each other, and texts with each other, but not one "
          "with the other");
    }
  }
  if (!both.empty()) {
    notes.push_back(
        "in data.train and in data.validation, so that the validation loss is of text that is trained on: " +
        files(both));
  }
  return notes;
}

std::vector<std::string> notes_of(const Prepared& prepared, const PrepareOptions& options) {
  std::vector<std::string> notes;
  if (prepared.no_end_token) {
    notes.emplace_back(
        "the tokenizer declares no end-of-text token: documents are not separated, and completions do not end");
  }
  if (prepared.no_turn_end) {
    notes.emplace_back(
        "no single token of the tokenizer ends an answer in the chat template: generation will not know where an "
        "answer "
        "ends (docs/data.md, Loss mask of conversations)");
  }
  if (!prepared.unread.empty()) {
    const std::vector<std::string> keys(prepared.unread.begin(), prepared.unread.end());
    notes.push_back(cat("not read from the lines: ", joined(keys, ", "),
                        " (docs/data.md lists the keys that are, and which count if a line has several forms)"));
  }
  for (const std::string& name : options.names.all()) {
    if (!prepared.names.contains(name)) notes.push_back(cat("no line of any file has the name of ", name));
  }
  if (prepared.asked_time) {
    notes.push_back(cat("the chat template writes a date: data.template_date, ", options.template_date));
  }
  if (!prepared.changed.empty()) notes.push_back(prepared.changed + " had changed: prepared from the start");
  if (!prepared.set_aside.empty()) {
    notes.push_back("moved token files that `hawser prepare` did not write to " + prepared.set_aside);
  }
  return notes;
}

namespace {

// What Parquet files lack, such as their library or the columns of a document, is known before any text is read.
// Returns the names of columns that are not read, as Line::unread.
std::set<std::string> check_parquet(const PreparedFrom& from, const LineNames& names) {
  Problems problems;
  std::set<std::string> unread;
  const std::vector<std::string_view> read = names.line_columns();
  for (const auto* sources : {&from.train, &from.validation}) {
    for (const Source& source : *sources) {
      if (source.kind != SourceKind::jsonl || !is_parquet(source.path)) continue;
      try {
        for (const std::string& column : open_lines(source.path, /*training=*/true, &names).columns) {
          if (std::ranges::find(read, column) == read.end() && could_matter(column)) unread.insert(column);
        }
      } catch (const UserError& error) {
        problems.add_lines(error.what());
      }
    }
  }
  without_repeats(problems).throw_if_any();
  return unread;
}

}  // namespace

Prepared prepare(const PrepareOptions& options) {
  const PrepareJob job = checked(options);
  std::set<std::string> unread = check_parquet(job.from, options.names);
  if (const TokenFiles files = token_files(options); files.in_place) return check_in_place(files, options);
  Prepared prepared = Preparer(options, job).run();
  prepared.unread.merge(unread);
  return prepared;
}

bool is_prepared(const PrepareOptions& options) {
  return !prepared_manifest(options).empty();
}

std::string prepared_manifest(const PrepareOptions& options) {
  if (token_files(options).in_place) return "";
  const fs::path folder(options.output);
  const std::string manifest = (folder / "prepared.json").string();
  std::string text = manifest_text(manifest);
  const auto made_from = parse_manifest(text);
  if (!made_from) return "";
  try {
    if (*made_from != checked(options).from) return "";
    const TokenFile train((folder / "train").string());
    for (const std::string& stem : validation_stems(*made_from)) TokenFile((folder / stem).string());
    const std::vector<PublishedFile> before = files_of_manifest(text);
    const auto now = still_published(options.output, before);
    if (!now) return "";
    if (*now != before) text = with_new_times(manifest, text, *now);
    return text;
  } catch (const io::IoError&) {
    throw;
  } catch (const UserError&) {
    return "";
  }
}

std::vector<std::int64_t> set_begins(const PrepareOptions& options) {
  if (token_files(options).in_place) return {};
  return set_begins_of_manifest(manifest_text((fs::path(options.output) / "prepared.json").string()));
}

void expect_still_prepared(const PrepareOptions& options, const std::string& manifest) {
  if (manifest.empty() || manifest_text((fs::path(options.output) / "prepared.json").string()) == manifest) return;
  throw UserError(Problem{.file = options.output,
                          .what = "another run or prepare has replaced the token files during the start",
                          .hint = "a data.prepared for each recipe, or the same command again"});
}

std::optional<Problem> prepared_folder(const std::string& folder) {
  const auto has = [&](const char* name) { return io::is_file((fs::path(folder) / name).string()); };
  const bool manifest = has("prepared.json"), tokens = has("train.idx");
  const std::string show = cat("hawser inspect data ", (fs::path(folder) / "train.bin").string());
  Problem problem{.file = folder, .hint = "hawser prepare RECIPE"};
  if (manifest && tokens) {
    problem.what = "a folder of prepared data";
    problem.hint = show;
  } else if (manifest) {
    problem.what = "prepared data without its token files";
  } else if (tokens) {
    problem.what = "looks like prepared data without its prepared.json";
    problem.hint = cat("hawser prepare RECIPE to rebuild it, or ", show);
  } else if (has("unfinished/state.json")) {
    problem.what = "unfinished prepared data";
    problem.hint = "hawser prepare RECIPE to resume it";
  } else {
    return std::nullopt;
  }
  return problem;
}

}  // namespace hawser::prepare

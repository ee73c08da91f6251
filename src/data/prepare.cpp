#include "data/prepare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/philox.h"
#include "data/block_pool.h"
#include "data/files.h"
#include "data/jsonl.h"
#include "data/prepared_manifest.h"
#include "data/token_file.h"

namespace hawser::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr std::int64_t kWindowBytes = std::int64_t{256} << 20;  // in flight at most, unless one block alone is larger
constexpr std::size_t kMostProblems = 100000;  // a file that is wrong throughout need not be read to its end

// Cuts a source into blocks that end at line ends; calls `visit` with each.
template <class Visit>
void for_each_block(const Source& source, Visit visit) {
  const auto mapping = std::make_shared<const MappedFile>(source.path);
  const std::string_view text = mapping->text();
  Block block{.kind = source.kind, .file = source.path, .mapping = mapping};
  if (source.kind == SourceKind::text) {
    block.text = text;
    return visit(block);
  }
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + kBlockBytes < text.size() ? text.find('\n', at + kBlockBytes) : std::string_view::npos;
    end = end == std::string_view::npos ? text.size() : end + 1;
    block.text = text.substr(at, end - at);
    block.first_byte = static_cast<std::int64_t>(at);
    visit(block);
    block.first_line += std::count(block.text.begin(), block.text.end(), '\n');
    at = end;
  }
}

std::int64_t count_documents(const std::vector<Source>& sources) {
  std::int64_t documents = 0;
  for (const Source& source : sources) {
    if (source.kind == SourceKind::text) {
      ++documents;
      continue;
    }
    if (source.kind == SourceKind::tokens) {
      documents += TokenFile(source.path).documents();
      continue;
    }
    const MappedFile file(source.path);
    const std::string_view text = file.text();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (!is_blank(text.substr(at, end - at))) ++documents;
      at = end + 1;
    }
  }
  return documents;
}

// Everything that is checked before the sources are read.
struct Job {
  PreparedFrom from;
  std::unique_ptr<Tokenizer> tokenizer;
};

Job check(const PrepareOptions& options, Problems& problems) {
  Job job;
  if (options.train.empty()) problems.add({.what = "no training data", .at = "data.train"});
  if (!(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0)) {
    problems.add({.what = "bad fraction",
                  .expected = "0 or more, below 1",
                  .got = cat(options.validation_fraction),
                  .at = "data.validation_fraction"});
  }
  job.from.train = find_sources(options.train, options.folder, "data.train", problems);
  job.from.validation = find_sources(options.validation, options.folder, "data.validation", problems);
  const auto is_text = [](const Source& source) { return source.kind != SourceKind::tokens; };
  const bool text = std::ranges::any_of(job.from.train, is_text) || std::ranges::any_of(job.from.validation, is_text);
  // Ids need no tokenizer; where no source was found, its faults are said all the same.
  const bool wanted = text || job.from.train.empty();
  if (!options.tokenizer.empty() && wanted) {
    try {
      job.tokenizer = load_tokenizer(resolve_path(options.tokenizer, options.folder));
    } catch (const UserError& error) {
      problems.add_lines(error.what());
    }
  }
  job.from.tokenizer = job.tokenizer ? job.tokenizer->fingerprint() : 0;
  job.from.vocab_size = options.vocab_size;
  // Given files make the fraction idle: it must not make token files stale.
  job.from.validation_fraction = options.validation.empty() ? options.validation_fraction : 0.0;
  job.from.seed = job.from.validation_fraction > 0.0 ? options.seed : 0;
  if (job.tokenizer && options.vocab_size > 0 && job.tokenizer->vocab_size() > options.vocab_size) {
    problems.add({.file = options.tokenizer,
                  .what = "tokenizer has more ids than the model",
                  .expected = cat("at most ", options.vocab_size),
                  .got = cat(job.tokenizer->vocab_size()),
                  .at = "data.tokenizer"});
  }
  return job;
}

Job checked(const PrepareOptions& options) {
  Problems problems;
  Job job = check(options, problems);
  problems.throw_if_any();
  return job;
}

// Token files that stay where they are: nothing but their ids is checked.
Prepared check_in_place(const TokenFiles& files, const PrepareOptions& options) {
  Prepared prepared;
  Problems problems;
  const auto look_at = [&](const std::string& prefix, const char* key, PreparedCounts& counts) {
    if (prefix.empty()) return;
    try {
      const TokenFile file(prefix);
      file.check_ids(options.vocab_size);
      counts = {file.documents(), file.sequences(), file.tokens()};
      if (file.tokens() == 0) problems.add({.file = prefix + ".bin", .what = "no tokens in any document", .at = key});
    } catch (const UserError& error) {
      problems.add_lines(error.what());
    }
  };
  look_at(files.train, "data.train", prepared.train);
  look_at(files.validation, "data.validation", prepared.validation);
  problems.throw_if_any();
  return prepared;
}

class Preparer {
 public:
  Preparer(const PrepareOptions& options, const Job& job)
      : options_(options),
        job_(job),
        vocab_size_(options.vocab_size > 0 ? options.vocab_size
                    : job.tokenizer        ? job.tokenizer->vocab_size()
                                           : 0),
        pool_(std::max(1, options.threads), job.tokenizer.get(), vocab_size_) {
    for (const auto* sources : {&job.from.train, &job.from.validation}) {
      for (const Source& source : *sources) progress_.bytes_total += source.bytes;
    }
  }

  Prepared run() {
    if (job_.from.validation_fraction > 0.0) {
      const std::int64_t documents = count_documents(job_.from.train);
      if (documents == 1) {
        throw UserError({.file = job_.from.train[0].path,
                         .what = "one document only, none can be held out",
                         .at = "data.validation_fraction",
                         .hint = "data.validation with files of its own"});
      }
      held_out_ = hold_out(documents, job_.from.validation_fraction, job_.from.seed);
    }
    const bool validation = !held_out_.empty() || !job_.from.validation.empty();
    make_folders(options_.output);
    const fs::path folder(options_.output);
    train_.emplace((folder / "train").string(), vocab_size_);
    if (validation) valid_.emplace((folder / "valid").string(), vocab_size_);
    read(job_.from.train, false);
    read(job_.from.validation, true);
    problems_.throw_if_any();
    check_not_empty(*train_, "data.train");
    if (valid_) check_not_empty(*valid_, "data.validation");
    // From here to the end the folder's manifest would not be true.
    std::error_code ignored;
    fs::remove(folder / "prepared.json", ignored);
    train_->finish();
    if (valid_) {
      valid_->finish();
    } else {
      for (const char* name : {"valid.idx", "valid.bin", "valid.labels.bin"}) fs::remove(folder / name, ignored);
    }
    Prepared prepared{.train = counts(*train_), .source_bytes = progress_.bytes_total};
    if (valid_) prepared.validation = counts(*valid_);
    write_manifest((folder / "prepared.json").string(), job_.from, prepared);
    return prepared;
  }

 private:
  static PreparedCounts counts(const TokenFileWriter& file) {
    return {file.documents(), file.sequences(), file.tokens()};
  }

  static void check_not_empty(const TokenFileWriter& file, const char* key) {
    if (file.tokens() == 0) throw UserError(Problem{.what = "no tokens in any document", .at = key});
  }

  void read(const std::vector<Source>& sources, bool validation) {
    for (const Source& source : sources) {
      if (source.kind == SourceKind::tokens) {
        while (!in_flight_.empty()) take_one();  // the order of the documents is that of the sources
        join(source, validation);
        continue;
      }
      for_each_block(source, [&](const Block& block) {
        if (problems_.size() >= kMostProblems) return;
        const auto bytes = static_cast<std::int64_t>(block.text.size());
        while (!in_flight_.empty() && (in_flight_.size() > 2u * static_cast<unsigned>(std::max(1, options_.threads)) ||
                                       bytes_in_flight_ + bytes > kWindowBytes)) {
          take_one();
        }
        in_flight_.push_back({validation, bytes});
        bytes_in_flight_ += bytes;
        pool_.put(block);
      });
    }
    while (!in_flight_.empty()) take_one();
  }

  void take_one() {
    const InFlight place = in_flight_.front();
    in_flight_.pop_front();
    const EncodedBlock block = pool_.take();
    bytes_in_flight_ -= place.bytes;
    problems_.add(block.problems);
    for (const EncodedDocument& document : block.documents) {
      TokenFileWriter& file = file_of_next(place.validation);
      if (problems_.empty()) write(document, file);
      ++progress_.documents;
      progress_.tokens += static_cast<std::int64_t>(document.ids.size());
    }
    report(block.bytes);
  }

  // Where the next document goes.
  TokenFileWriter& file_of_next(bool validation) {
    if (validation) return *valid_;
    const std::int64_t number = documents_++;
    return number < static_cast<std::int64_t>(held_out_.size()) && held_out_[number] ? *valid_ : *train_;
  }

  // Appends the documents of a token file.
  void join(const Source& source, bool validation) {
    try {
      const TokenFile from(source.path);
      std::vector<std::int32_t> ids, labels;
      for (std::int64_t d = 0; d < from.documents() && problems_.size() < kMostProblems; ++d) {
        TokenFileWriter& file = file_of_next(validation);
        for (std::int64_t s = from.first_sequence(d); s < from.first_sequence(d + 1); ++s) {
          if (from.length(s) == 0) continue;
          ids.resize(from.length(s));
          from.read(from.begin(s), ids, vocab_size_);
          if (from.has_labels()) {
            labels.resize(ids.size());
            from.read_labels(from.begin(s), labels, vocab_size_);
          }
          if (problems_.empty()) file.add_sequence(ids, labels);
          progress_.tokens += from.length(s);
        }
        file.end_document();
        ++progress_.documents;
      }
    } catch (const UserError& error) {
      problems_.add_lines(error.what());
    }
    report(source.bytes);
  }

  void report(std::int64_t bytes) {
    progress_.bytes_done += bytes;
    const auto now = std::chrono::steady_clock::now();
    const bool last = progress_.bytes_done == progress_.bytes_total;
    if (options_.progress && (last || now - reported_ > std::chrono::milliseconds(200))) {
      reported_ = now;
      options_.progress(progress_);
    }
  }

  static void write(const EncodedDocument& document, TokenFileWriter& file) {
    if (document.ids.empty()) return;
    const auto part = [](const std::vector<std::int32_t>& all, std::size_t at, std::size_t count) {
      return all.empty() ? std::span<const std::int32_t>() : std::span(all).subspan(at, count);
    };
    std::size_t at = 0;
    for (const std::int32_t length : document.document_lengths) {
      file.add_sequence(part(document.ids, at, length), part(document.labels, at, length));
      at += static_cast<std::size_t>(length);
    }
    if (document.document_lengths.empty()) file.add_sequence(document.ids, document.labels);
    file.end_document();
  }

  struct InFlight {
    bool validation;
    std::int64_t bytes;
  };

  const PrepareOptions& options_;
  const Job& job_;
  std::int64_t vocab_size_;
  PrepareProgress progress_;
  std::chrono::steady_clock::time_point reported_{};
  Problems problems_;
  std::vector<bool> held_out_;
  std::int64_t documents_ = 0;  // of `train` so far
  std::optional<TokenFileWriter> train_, valid_;
  std::deque<InFlight> in_flight_;
  std::int64_t bytes_in_flight_ = 0;
  BlockPool pool_;  // last: its threads stop before anything else goes
};

}  // namespace

std::vector<bool> hold_out(std::int64_t documents, double fraction, std::uint64_t seed) {
  std::vector<bool> chosen(static_cast<std::size_t>(documents));
  if (documents < 2 || fraction <= 0.0) return chosen;
  const auto wanted =
      std::clamp<std::int64_t>(std::llround(fraction * static_cast<double>(documents)), 1, documents - 1);
  // The documents with the smallest numbers are held out; number by document, so no order of reading matters.
  const RandomStream stream(seed, "data/validation");
  std::vector<std::uint64_t> numbers(chosen.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = stream.bits(i);
  std::vector<std::uint64_t> sorted = numbers;
  std::nth_element(sorted.begin(), sorted.begin() + (wanted - 1), sorted.end());
  for (std::size_t i = 0; i < numbers.size(); ++i) chosen[i] = numbers[i] <= sorted[wanted - 1];
  return chosen;
}

PrepareOptions prepare_options(const Recipe& recipe) {
  PrepareOptions options{.train = recipe.data.train,
                         .validation = recipe.data.validation,
                         .folder = recipe.folder,
                         .tokenizer = recipe.data.tokenizer,
                         .output = recipe.data.prepared,
                         .validation_fraction = recipe.data.validation_fraction,
                         .seed = recipe.train.seed,
                         .threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
  if (options.tokenizer.empty()) {
    // Beside the model; ids only, if it has none there.
    const fs::path beside =
        recipe.model.path.empty() ? fs::path(recipe.model.config).parent_path() : fs::path(recipe.model.path);
    const std::string file = resolve_path((beside / "tokenizer.json").string(), recipe.folder);
    std::error_code ignored;
    if (fs::exists(file, ignored)) options.tokenizer = file;
  }
  options.output = options.output.empty() ? resolve_path((fs::path(recipe.output) / "data").string(), recipe.folder)
                                          : resolve_path(options.output, recipe.folder);
  return options;
}

TokenFiles token_files(const PrepareOptions& options) {
  Problems ignored;
  const auto train = find_sources(options.train, options.folder, "", ignored);
  const auto validation = find_sources(options.validation, options.folder, "", ignored);
  const auto one = [](const std::vector<Source>& sources) {
    return sources.size() == 1 && sources[0].kind == SourceKind::tokens;
  };
  const bool held_out = options.validation.empty() && options.validation_fraction > 0.0;
  if (ignored.empty() && one(train) && !held_out && (options.validation.empty() || one(validation))) {
    return {.train = train[0].path, .validation = validation.empty() ? "" : validation[0].path, .in_place = true};
  }
  const fs::path folder(options.output);
  return {.train = (folder / "train").string(), .validation = (folder / "valid").string()};
}

void check_sources(const PrepareOptions& options, Problems& problems) {
  check(options, problems);
}

Prepared prepare(const PrepareOptions& options) {
  const Job job = checked(options);
  if (const TokenFiles files = token_files(options); files.in_place) return check_in_place(files, options);
  return Preparer(options, job).run();
}

bool is_prepared(const PrepareOptions& options) {
  if (token_files(options).in_place) return false;
  const fs::path folder(options.output);
  const auto made_from = read_manifest((folder / "prepared.json").string());
  if (!made_from) return false;
  try {
    if (*made_from != checked(options).from) return false;
    const TokenFile train((folder / "train").string());
    if (made_from->validation_fraction > 0.0 || !made_from->validation.empty()) TokenFile((folder / "valid").string());
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace hawser::data

#include "prepare/preparer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>

#include "base/error.h"
#include "io/files.h"
#include "prepare/byte_reader.h"
#include "prepare/jsonl.h"
#include "prepare/parquet_reader.h"
#include "prepare/validation_sets.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWindowBytes = std::int64_t{128} << 20;  // in flight, unless a single block is larger
constexpr std::size_t kMaxProblems = 100000;                    // stops reading a file that is invalid throughout

std::int64_t count_lines(const Block& block) {
  std::int64_t lines = 0;
  const std::string_view text = block.text;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines += !is_blank(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// What prepare writes and removes in its folder.
// How names of files in the unfinished folder begin, except its lock's.
constexpr const char* kDraftFiles[] = {"train.", "valid.", "valid-", "contents", "state.json"};

Error stopped() {
  return Error(ExitCode::interrupted, "interrupted while preparing text; the same command continues");
}

}  // namespace

UnfinishedFolder::UnfinishedFolder(const std::string& output) : folder_((fs::path(output) / "unfinished").string()) {
  io::make_folders(folder_);
  lock_ = ::open(path("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) throw UserError({.file = path("lock"), .what = cat("cannot write: ", std::strerror(errno))});
  // On a file system without locks, the user must avoid concurrent runs.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(lock_);
    throw UserError(
        {.file = output, .what = "another hawser process is preparing data here", .hint = "another data.prepared"});
  }
}

UnfinishedFolder::~UnfinishedFolder() {
  ::close(lock_);
}

std::string UnfinishedFolder::path(const std::string& name) const {
  return (fs::path(folder_) / name).string();
}

void UnfinishedFolder::clear() {
  std::error_code ignored;
  // Removes the state file first: without it the other files are ignored.
  fs::remove(path("state.json"), ignored);
  // The files of others in a folder of this name stay.
  for (const std::string& name : io::list_folder(folder_)) {
    const bool ours = std::ranges::any_of(kDraftFiles, [&](const char* begin) { return name.starts_with(begin); });
    if (ours) fs::remove(path(name), ignored);
  }
}

void UnfinishedFolder::remove() {
  clear();
  std::error_code not_empty;
  fs::remove(path("lock"), not_empty);
  fs::remove(folder_, not_empty);
}

Preparer::Preparer(const PrepareOptions& options, const PrepareJob& job)
    : options_(options),
      job_(job),
      vocab_size_(options.vocab_size > 0 ? options.vocab_size
                  : job.tokenizer        ? job.tokenizer->vocab_size()
                                         : 0),
      stems_(validation_stems(job.from)),
      encoder_({.tokenizer = job.tokenizer.get(),
                .vocab_size = vocab_size_,
                .hashes = job.from.deduplicate,
                .chat_template = job.chat_template,
                .without = job.without_template,
                .time = job.time,
                .names = &options.names}),
      pool_(std::max(1, options.threads), encoder_) {}

Prepared Preparer::run() {
  open();
  try {
    if (!state_.complete) {
      hold_out();
      read(false);
      read(true);
      without_repeats(problems_).throw_if_any();
      Problems empty;
      const auto check_not_empty = [&](const TokenFileDraft& file, const std::string& key) {
        if (file.tokens() > 0) return;
        Problem problem{.what = "no tokens in any document", .at = key};
        if (state_.duplicates > 0) {
          problem.expected = "documents that are not in data.train";
          problem.got = "duplicates alone";
          problem.hint = "data.deduplicate: false, or other files";
        }
        empty.add(problem);
      };
      check_not_empty(*train_, "data.train");
      for (std::size_t i = 0; i < valid_.size(); ++i) {
        const std::vector<std::string>& names = job_.from.validation_sets;
        check_not_empty(valid_[i], validation_key(names.empty() ? "" : names[i]));
      }
      empty.throw_if_any();
    }
  } catch (const UserError&) {
    // Problems of the sources would recur: discard the work. After others, such as a full disk, prepare can resume.
    if (!problems_.empty() || (train_ && train_->tokens() == 0)) folder_->remove();
    throw;
  }
  publish();
  return result();
}

// Token files of prepare have a manifest or, while they are replaced, a state. Others are the user's: they stop prepare
// or, in a run's own folder, where a manifest may have been lost, are moved to OUTPUT/earlier-N.
void Preparer::protect_files_of_others() {
  const fs::path output(options_.output);
  const auto there = [&](const char* name) { return io::exists((output / name).string()); };
  const auto ours = [&] {
    return is_prepares_own(manifest_text((output / "prepared.json").string())) ||
           is_prepares_own(manifest_text((output / "unfinished/state.json").string()));
  };
  const bool manifest = there("prepared.json");
  std::vector<std::string> found;
  if (manifest) found.emplace_back("prepared.json");
  std::set<std::string> names{"train", "valid"};  // one from which nothing is held out any more is removed
  names.merge(std::set<std::string>(stems_.begin(), stems_.end()));
  for (const std::string& name : names) {
    for (const char* ending : kTokenFileEndings) {
      if (there((name + ending).c_str())) found.push_back(name + ending);
    }
  }
  if (found.empty() || ours()) return;  // asked last: another process may just have finished
  if (!options_.own_folder) {
    throw UserError({.file = (output / found.back()).string(),
                     .what = "the prepared data would replace this file, which `hawser prepare` did not write",
                     .hint = "another data.prepared, or remove the file"});
  }
  int number = 1;
  const auto earlier = [&] { return output / cat("earlier-", number); };
  while (io::exists(earlier().string())) ++number;
  io::make_folders(earlier().string());
  for (const std::string& name : found) fs::rename(output / name, earlier() / name);
  set_aside_ = earlier().string();
}

void Preparer::open() {
  io::make_folders(options_.output);
  protect_files_of_others();
  folder_.emplace(options_.output);
  if (open_unfinished()) return;
  folder_->clear();
  state_ = {.from = job_.from};
  for (const auto* sources : {&job_.from.train, &job_.from.validation}) {
    for (const Source& source : *sources) state_.progress.bytes_total += source.bytes;
  }
  state_.valid.resize(stems_.size());
  open_drafts();
}

namespace {

// Whether the state is plausible for these sources: valid indices and counts.
bool may_be(const PrepareState& state) {
  constexpr std::int64_t kMax = std::int64_t{1} << 48;
  const auto is_count = [](std::initializer_list<std::int64_t> values) {
    return std::ranges::all_of(values, [](std::int64_t value) { return value >= 0 && value <= kMax; });
  };
  const auto is_position = [&](const DraftPosition& at) {
    return is_count({at.tokens, at.sequences, at.documents, at.open, at.first_sequence, at.first_token});
  };
  const auto& sources = state.validation ? state.from.validation : state.from.train;
  const auto size = static_cast<std::int64_t>(sources.size());
  if (!is_count({state.source, state.place.byte, state.place.line, state.documents, state.duplicates, state.contents,
                 state.progress.bytes_done, state.progress.documents, state.progress.tokens}) ||
      state.counted < -1 || state.counted > kMax || !is_position(state.train) ||
      !std::ranges::all_of(state.valid, is_position)) {
    return false;
  }
  // `byte` may exceed the size of the file: it counts decompressed bytes.
  return state.source <= size && state.valid.size() == validation_stems(state.from).size();
}

}  // namespace

// A file of an unfinished prepare whose bytes are not those that its state records; "": none.
std::string Preparer::changed_file(const PrepareState& state) {
  const auto stop = [&] {
    if (options_.stop && options_.stop()) throw stopped();
  };
  for (const PublishedFile& file : state.files) {
    if (!io::is_plain_name(file.name)) return folder_->path("state.json");
    std::string path = folder_->path(file.name);
    // A prepare that was interrupted at its end has given some of them their final names.
    const std::string published = (fs::path(options_.output) / file.name).string();
    if (state.complete && !io::exists(path) && io::exists(published)) path = published;
    if (!io::is_file(path) || io::File::open(path).bytes() < file.bytes) return path;
    if (checksums_.up_to(path, file.bytes, stop) != file.checksum) return path;
  }
  return "";
}

// Resumes an earlier prepare, if it has the same sources and its files are complete.
bool Preparer::open_unfinished() {
  auto state = read_state(folder_->path("state.json"));
  if (!state || state->from != job_.from || !may_be(*state)) return false;
  changed_ = changed_file(*state);
  if (!changed_.empty()) return false;
  state_ = *std::move(state);
  for (const auto* sources : {&job_.from.train, &job_.from.validation}) {
    for (const Source& source : *sources) state_.progress.bytes_total += source.bytes;
  }
  state_.progress.bytes_before = state_.progress.bytes_done;
  resumed_ = true;
  if (state_.complete) return true;
  try {
    if (job_.from.deduplicate) {
      const io::MappedFile file(folder_->path("contents"));
      const auto hashes = reinterpret_cast<const ContentHash*>(file.bytes().data());
      const auto count = static_cast<std::int64_t>(file.bytes().size() / sizeof(ContentHash));
      if (count < state_.contents) return false;
      for (std::int64_t i = 0; i < state_.contents; ++i) seen_.insert(hashes[i]);
    }
    open_drafts();
  } catch (const UserError&) {
    train_.reset();
    valid_.clear();
    contents_.reset();
    seen_ = {};
    resumed_ = false;
    return false;
  }
  return true;
}

void Preparer::open_drafts() {
  train_.emplace(folder_->path("train"), vocab_size_, state_.train);
  for (std::size_t i = 0; i < stems_.size(); ++i) {
    valid_.emplace_back(folder_->path(stems_[i]), vocab_size_, state_.valid[i]);
  }
  if (job_.from.deduplicate)
    contents_.emplace(folder_->path("contents"), state_.contents * std::int64_t{sizeof(ContentHash)});
}

void Preparer::hold_out() {
  if (job_.from.validation_fraction == 0.0) return;
  if (state_.counted < 0) {
    state_.progress.counting = true;
    std::int64_t documents = 0;
    for (const Source& source : job_.from.train) {
      if (source.kind != SourceKind::jsonl) {
        documents += source.kind == SourceKind::text ? 1 : TokenFile(source.path).documents();
        count_read(source.bytes);
        continue;
      }
      try {
        BlockReader reader(source, nullptr, {}, BlockReader::kBlockBytes, &options_.names);
        for (Block block; reader.next(block); count_read(block.file_bytes)) documents += count_lines(block);
      } catch (const io::IoError&) {
        throw;  // encoding may succeed, but the wrong number would hold out other documents
      } catch (const UserError&) {
        // Reported when the source is encoded.
      }
    }
    state_.counted = documents;
    state_.progress.counting = false;
    state_.progress.bytes_done = 0;
  }
  if (state_.counted == 1) {
    folder_->remove();
    throw UserError({.file = job_.from.train[0].path,
                     .what = "only one document, none can be held out",
                     .at = "data.validation_fraction",
                     .hint = "data.validation with separate files"});
  }
  held_out_ = HeldOut(state_.counted, job_.from.validation_fraction, job_.from.seed);
}

void Preparer::read(bool validation) {
  if (state_.validation && !validation) return;  // an earlier prepare has read them
  const bool here = state_.validation == validation;
  const std::int64_t first = here ? state_.source : 0;
  const SourcePlace start = here ? state_.place : SourcePlace{};
  const auto& sources = validation ? job_.from.validation : job_.from.train;
  // An open document was begun by an earlier prepare.
  for (const auto& [name, draft] : drafts()) {
    if (draft->position().open > 0) open_ = draft;
  }
  for (std::int64_t i = first; i < static_cast<std::int64_t>(sources.size()); ++i) {
    const SourcePlace from = i == first ? start : SourcePlace{};
    if (sources[i].kind == SourceKind::tokens) {
      take_all();  // documents keep the order of the sources
      join(sources[i], validation, i, from.byte);
    } else {
      read_source(sources[i], validation, i, from);
    }
  }
  take_all();
}

void Preparer::read_source(const Source& source, bool validation, std::int64_t index, SourcePlace start) {
  const auto max = 2u * static_cast<unsigned>(std::max(1, options_.threads)) + 1;
  try {
    BlockReader reader(source, job_.tokenizer.get(), start,
                       options_.block_bytes > 0 ? options_.block_bytes : BlockReader::kBlockBytes, &options_.names);
    for (Block block; problems_.size() < kMaxProblems && reader.next(block);) {
      const auto bytes = static_cast<std::int64_t>(block.text.size());
      while (!in_flight_.empty() && (in_flight_.size() >= max || bytes_in_flight_ + bytes > kWindowBytes)) take_one();
      in_flight_.push_back({validation, index, bytes});
      bytes_in_flight_ += bytes;
      pool_.put(std::move(block));
    }
  } catch (const UserError& error) {
    take_all();
    problems_.add_lines(error.what());
  }
}

void Preparer::take_all() {
  while (!in_flight_.empty()) take_one();
}

void Preparer::take_one() {
  const InFlight from = in_flight_.front();
  in_flight_.pop_front();
  const EncodedBlock block = pool_.take();
  bytes_in_flight_ -= from.bytes;
  problems_.add(block.problems);
  state_.unread.insert(block.unread.begin(), block.unread.end());
  state_.names.insert(block.names.begin(), block.names.end());
  state_.asked_time = state_.asked_time || block.asked_time;
  state_.no_turn_end = state_.no_turn_end || block.no_turn_end;
  const Source& source =
      (from.validation ? job_.from.validation : job_.from.train)[static_cast<std::size_t>(from.source)];
  if (!from.validation) begin_set(source.set);
  write(block, source, from.validation);
  state_.validation = from.validation;
  state_.source = from.source;
  state_.place = block.end;
  count_read(block.file_bytes);
  // With deduplication, a text can only be resumed from its start, because its hash covers all parts.
  if (block.last || !job_.from.deduplicate) save(false);
}

// The next training document is the first of the set, unless the set has begun.
void Preparer::begin_set(std::int64_t set) {
  while (static_cast<std::int64_t>(state_.set_begins.size()) <= set) {
    state_.set_begins.push_back(train_->position().documents);
  }
}

void Preparer::write(const EncodedBlock& block, const Source& source, bool validation) {
  for (const EncodedDocument& document : block.documents) {
    if (block.first || !open_) open_ = &file_of_next(source, validation);
    if (problems_.empty()) write_document(document, block.last, *open_);
    state_.progress.documents += block.last;
    state_.progress.tokens += static_cast<std::int64_t>(document.ids.size());
  }
  if (block.last) open_ = nullptr;
}

void Preparer::write_document(const EncodedDocument& document, bool last, TokenFileDraft& file) {
  // The hash of a text in parts is complete with the last part.
  const bool known = job_.from.deduplicate && last && (!document.ids.empty() || file.position().open > 0);
  if (known && is_duplicate(document.content)) {
    file.abandon_document();
    return;
  }
  const auto part = [](const std::vector<std::int32_t>& all, std::size_t at, std::size_t count) {
    return all.empty() ? std::span<const std::int32_t>() : std::span(all).subspan(at, count);
  };
  std::size_t at = 0;
  for (const std::int32_t length : document.document_lengths) {
    file.append(part(document.ids, at, length), part(document.labels, at, length));
    file.end_sequence();
    at += static_cast<std::size_t>(length);
  }
  if (document.document_lengths.empty()) file.append(document.ids, document.labels);
  if (last) file.end_document();
}

bool Preparer::is_duplicate(const ContentHash& hash) {
  if (!seen_.insert(hash)) {
    ++state_.duplicates;
    return true;
  }
  contents_->write_value(hash);
  ++state_.contents;
  return false;
}

// The file that receives the next document.
TokenFileDraft& Preparer::file_of_next(const Source& source, bool validation) {
  if (validation) return valid_[static_cast<std::size_t>(source.set)];
  return held_out_(state_.documents++) ? valid_.front() : *train_;
}

std::vector<std::pair<std::string, TokenFileDraft*>> Preparer::drafts() {
  std::vector<std::pair<std::string, TokenFileDraft*>> out{{"train", &*train_}};
  for (std::size_t i = 0; i < valid_.size(); ++i) out.emplace_back(stems_[i], &valid_[i]);
  return out;
}

// Appends the documents of a token file.
void Preparer::join(const Source& source, bool validation, std::int64_t index, std::int64_t first) {
  std::int64_t counted = 0;  // bytes
  try {
    const TokenFile from(source.path);
    if (!validation) begin_set(source.set);
    std::vector<std::int32_t> ids, labels, lengths;
    const auto read_part = [&](std::int64_t at, std::int64_t count) {
      ids.resize(count);
      from.read(at, ids, vocab_size_);
      labels.resize(from.has_labels() ? count : 0);
      if (from.has_labels()) from.read_labels(at, labels, vocab_size_);
    };
    if (first > 0) counted = source.bytes / std::max<std::int64_t>(1, from.documents()) * first;
    for (std::int64_t d = first; d < from.documents() && problems_.size() < kMaxProblems; ++d) {
      TokenFileDraft& file = file_of_next(source, validation);
      const std::int64_t begin = from.begin(from.first_sequence(d)), end = from.begin(from.first_sequence(d + 1));
      bool duplicate = false;
      if (job_.from.deduplicate && end > begin) {
        read_part(begin, end - begin);
        lengths.clear();
        for (std::int64_t s = from.first_sequence(d); s < from.first_sequence(d + 1); ++s) {
          if (from.length(s) > 0) lengths.push_back(static_cast<std::int32_t>(from.length(s)));
        }
        if (lengths.size() == 1) lengths.clear();
        duplicate = is_duplicate(hash_of_ids(ids, labels, lengths));
      }
      for (std::int64_t s = from.first_sequence(d); s < from.first_sequence(d + 1) && !duplicate; ++s) {
        for (std::int64_t at = 0; at < from.length(s); at += options_.piece_tokens) {
          read_part(from.begin(s) + at, std::min(options_.piece_tokens, from.length(s) - at));
          if (problems_.empty()) file.append(ids, labels);
        }
        file.end_sequence();
      }
      file.end_document();
      ++state_.progress.documents;
      state_.progress.tokens += end - begin;
      state_.validation = validation;
      state_.source = index;
      state_.place = {.byte = d + 1};
      const std::int64_t bytes = source.bytes / std::max<std::int64_t>(1, from.documents());
      count_read(bytes);
      counted += bytes;
      save(false);
    }
  } catch (const UserError& error) {
    problems_.add_lines(error.what());
  }
  count_read(source.bytes - counted);
}

void Preparer::count_read(std::int64_t file_bytes) {
  PrepareProgress& progress = state_.progress;
  progress.bytes_done += file_bytes;
  const auto now = Clock::now();
  const bool last = progress.bytes_done == progress.bytes_total && !progress.counting;
  if (options_.progress && (last || now - reported_ > std::chrono::milliseconds(200))) {
    reported_ = now;
    options_.progress(progress);
  }
  if (progress.counting && options_.stop && options_.stop()) throw stopped();
}

void Preparer::save(bool at_once) {
  const bool stop = !at_once && options_.stop && options_.stop();
  if (stop && !problems_.empty()) throw stopped();
  if (!problems_.empty() || (!at_once && !stop && Clock::now() - saved_ < options_.save_every)) return;
  for (const auto& [name, draft] : drafts()) draft->sync();
  if (contents_) contents_->sync();
  state_.train = train_->position();
  for (std::size_t i = 0; i < valid_.size(); ++i) state_.valid[i] = valid_[i].position();
  state_.files = draft_files();
  write_state(folder_->path("state.json"), state_);
  saved_ = Clock::now();
  if (stop) throw stopped();
}

// The bytes of the drafts that the state covers; of complete ones, the files that publish() gives their final names.
std::vector<PublishedFile> Preparer::draft_files() {
  std::vector<PublishedFile> files;
  const auto add = [&](const std::string& path, std::int64_t bytes) {
    files.push_back(
        {.name = fs::path(path).filename().string(), .bytes = bytes, .checksum = checksums_.up_to(path, bytes)});
  };
  for (const auto& [name, draft] : drafts()) {
    for (const auto& [path, bytes] : draft->files()) {
      if (!state_.complete || path.ends_with(".bin")) add(path, bytes);
    }
    const std::string index = folder_->path(name + ".idx");
    if (state_.complete) add(index, io::File::open(index).bytes());
  }
  if (contents_ && !state_.complete) add(contents_->path(), contents_->size());
  return files;
}

void Preparer::publish() {
  const fs::path output(options_.output);
  if (!state_.complete) {
    begin_set(std::max<std::int64_t>(1, static_cast<std::int64_t>(options_.sets.size())) - 1);
    for (const auto& [name, draft] : drafts()) draft->finish();
    state_.complete = true;
    save(true);
  }
  // Of an earlier prepare with other validation sets.
  std::set<std::string> others{"valid"};
  for (const PublishedFile& file : files_of_manifest(manifest_text((output / "prepared.json").string()))) {
    const std::string name = file.name.substr(0, file.name.find('.'));
    if (name.starts_with("valid-") && io::is_plain_name(name)) others.insert(name);
  }
  for (const std::string& stem : stems_) others.erase(stem);
  for (const std::string& name : others) remove_token_file((output / name).string());
  // From here on, an existing manifest would be wrong.
  std::error_code ignored;
  fs::remove(output / "prepared.json", ignored);
  std::vector<std::string> names{"train"};
  names.insert(names.end(), stems_.begin(), stems_.end());
  for (const std::string& name : names) publish_token_file(folder_->path(name), (output / name).string());
  write_manifest((output / "prepared.json").string(), job_.from, result(), published_files(options_.output, names));
  folder_->remove();
}

Prepared Preparer::result() const {
  const auto compressed = [](const std::vector<Source>& sources) {
    return std::ranges::any_of(sources, [](const Source& source) {
      return compression_of(source.path) != Compression::none || is_parquet_name(source.path);
    });
  };
  const DraftPosition& train = state_.train;
  Prepared prepared{.train = {train.documents, train.sequences, train.tokens},
                    .source_bytes = state_.progress.bytes_total,
                    .compressed = compressed(job_.from.train) || compressed(job_.from.validation),
                    .duplicates = state_.duplicates,
                    .resumed = resumed_,
                    .no_end_token = job_.tokenizer && !job_.tokenizer->eos(),
                    .changed = changed_,
                    .set_aside = set_aside_,
                    .set_begins = state_.set_begins,
                    .unread = state_.unread,
                    .names = state_.names,
                    .asked_time = state_.asked_time,
                    .no_turn_end = state_.no_turn_end};
  for (const DraftPosition& at : state_.valid) {
    prepared.validation.documents += at.documents;
    prepared.validation.sequences += at.sequences;
    prepared.validation.tokens += at.tokens;
  }
  return prepared;
}

}  // namespace hawser::prepare

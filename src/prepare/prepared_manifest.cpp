#include "prepare/prepared_manifest.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/append_file.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "prepare/validation_sets.h"

namespace hawser::prepare {
namespace {

using Json = nlohmann::ordered_json;

// Incremented whenever the same sources would give different token files.
constexpr int kVersion = 3;

const char* name_of(SourceKind kind) {
  return kind == SourceKind::jsonl ? "jsonl" : kind == SourceKind::text ? "text" : "tokens";
}

SourceKind kind_of(const std::string& name) {
  return name == "jsonl" ? SourceKind::jsonl : name == "text" ? SourceKind::text : SourceKind::tokens;
}

Json to_json(const std::vector<Source>& sources) {
  Json list = Json::array();
  for (const Source& source : sources) {
    list.push_back({{"path", source.path},
                    {"kind", name_of(source.kind)},
                    {"bytes", source.bytes},
                    {"modified", source.modified},
                    {"set", source.set}});
  }
  return list;
}

std::vector<Source> sources_of(const Json& list) {
  std::vector<Source> sources;
  for (const Json& item : list) {
    sources.push_back({item.at("path"), kind_of(item.at("kind")), item.at("bytes"), item.at("modified"),
                       item.value("set", std::int64_t{0})});
  }
  return sources;
}

Json to_json(const PreparedCounts& counts) {
  return {{"documents", counts.documents}, {"sequences", counts.sequences}, {"tokens", counts.tokens}};
}

Json to_json(const PreparedFrom& from) {
  return {{"tokenizer", from.tokenizer},
          {"vocab_size", from.vocab_size},
          {"validation_fraction", from.validation_fraction},
          {"seed", from.seed},
          {"deduplicate", from.deduplicate},
          {"chat_template", from.chat_template},
          {"names", from.names},
          {"train_sources", to_json(from.train)},
          {"validation_sources", to_json(from.validation)},
          {"validation_sets", from.validation_sets}};
}

PreparedFrom from_of(const Json& json) {
  return {.train = sources_of(json.at("train_sources")),
          .validation = sources_of(json.at("validation_sources")),
          .validation_sets = json.value("validation_sets", std::vector<std::string>()),
          .tokenizer = json.at("tokenizer"),
          .validation_fraction = json.at("validation_fraction"),
          .seed = json.at("seed"),
          .vocab_size = json.at("vocab_size"),
          .deduplicate = json.at("deduplicate"),
          .chat_template = json.at("chat_template"),
          .names = json.value("names", std::uint64_t{0})};
}

Json to_json(const DraftPosition& at) {
  return {{"tokens", at.tokens}, {"sequences", at.sequences},           {"documents", at.documents},
          {"open", at.open},     {"first_sequence", at.first_sequence}, {"first_token", at.first_token},
          {"labels", at.labels}};
}

DraftPosition position_of(const Json& json) {
  return {.tokens = json.at("tokens"),
          .sequences = json.at("sequences"),
          .documents = json.at("documents"),
          .open = json.at("open"),
          .first_sequence = json.at("first_sequence"),
          .first_token = json.at("first_token"),
          .labels = json.at("labels")};
}

Json to_json(const std::vector<DraftPosition>& drafts) {
  Json list = Json::array();
  for (const DraftPosition& at : drafts) list.push_back(to_json(at));
  return list;
}

std::string write_json(const std::string& path, const Json& json) {
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  io::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  return text;
}

Json to_json(const std::vector<PublishedFile>& files) {
  Json list = Json::array();
  for (const PublishedFile& file : files) {
    list.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"modified", file.modified}, {"checksum", file.checksum}});
  }
  return list;
}

std::vector<PublishedFile> files_of(const Json& list) {
  std::vector<PublishedFile> files;
  for (const Json& item : list)
    files.push_back({item.at("name"), item.at("bytes"), item.at("modified"), item.at("checksum")});
  return files;
}

constexpr std::int64_t kLargest = std::int64_t{256} << 20;  // bytes; sources take some hundred each

// Result of `read` for a text of this version; nullopt if it is none.
template <class Read>
auto parse(const std::string& text, Read read) -> std::optional<decltype(read(Json()))> {
  try {
    const Json json = io::read_json<Json>(text).json;
    if (json.at("version") != kVersion) return std::nullopt;
    return read(json);
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::string> validation_stems(const PreparedFrom& from) {
  std::vector<std::string> stems;
  for (const std::string& name : from.validation_sets) stems.push_back(validation_stem(name));
  const bool one = from.validation_fraction > 0.0 || !from.validation.empty();
  if (stems.empty() && one) stems.push_back(validation_stem(""));
  return stems;
}

void write_manifest(const std::string& path, const PreparedFrom& from, const Prepared& counts,
                    const std::vector<PublishedFile>& files) {
  write_json(path, {{"version", kVersion},
                    {"train", to_json(counts.train)},
                    {"validation", to_json(counts.validation)},
                    {"duplicates", counts.duplicates},
                    {"sets", counts.set_begins},
                    {"files", to_json(files)},
                    {"from", to_json(from)}});
}

std::vector<PublishedFile> files_of_manifest(const std::string& text) {
  return parse(text, [](const Json& json) { return files_of(json.value("files", Json::array())); })
      .value_or(std::vector<PublishedFile>());
}

std::vector<std::int64_t> set_begins_of_manifest(const std::string& text) {
  return parse(text, [](const Json& json) { return json.value("sets", std::vector<std::int64_t>()); })
      .value_or(std::vector<std::int64_t>());
}

std::string replace_files(const std::string& path, const std::string& text, const std::vector<PublishedFile>& files) {
  Json json = io::read_json<Json>(text).json;
  json["files"] = to_json(files);
  return write_json(path, json);
}

std::string manifest_text(const std::string& path) {
  if (!io::is_file(path)) return "";  // opening a FIFO would hang
  try {
    return io::read_bounded(path, kLargest);
  } catch (const io::IoError&) {
    throw;
  } catch (const UserError&) {
    return "";
  }
}

bool is_prepares_own(const std::string& text) {
  const Json json = io::read_json<Json>(text).json;
  return json.is_object() && json.contains("version") && json.contains("from");
}

std::optional<PreparedFrom> parse_manifest(const std::string& text) {
  return parse(text, [](const Json& json) { return from_of(json.at("from")); });
}

void write_state(const std::string& path, const PrepareState& state) {
  write_json(path, {{"version", kVersion},
                    {"complete", state.complete},
                    {"validation", state.validation},
                    {"source", state.source},
                    {"byte", state.place.byte},
                    {"line", state.place.line},
                    {"counted", state.counted},
                    {"documents", state.documents},
                    {"duplicates", state.duplicates},
                    {"contents", state.contents},
                    {"sets", state.set_begins},
                    {"unread", state.unread},
                    {"names", state.names},
                    {"asked_time", state.asked_time},
                    {"no_turn_end", state.no_turn_end},
                    {"bytes_done", state.progress.bytes_done},
                    {"documents_done", state.progress.documents},
                    {"tokens_done", state.progress.tokens},
                    {"train", to_json(state.train)},
                    {"valid", to_json(state.valid)},
                    {"files", to_json(state.files)},
                    {"from", to_json(state.from)}});
}

std::optional<PrepareState> read_state(const std::string& path) {
  return parse(manifest_text(path), [](const Json& json) {
    PrepareState state{.from = from_of(json.at("from")),
                       .complete = json.at("complete"),
                       .validation = json.at("validation"),
                       .source = json.at("source"),
                       .place = {.byte = json.at("byte"), .line = json.at("line")},
                       .counted = json.at("counted"),
                       .documents = json.at("documents"),
                       .duplicates = json.at("duplicates"),
                       .contents = json.at("contents"),
                       .set_begins = json.value("sets", std::vector<std::int64_t>()),
                       .unread = json.value("unread", std::set<std::string>()),
                       .names = json.value("names", std::set<std::string>()),
                       .asked_time = json.value("asked_time", false),
                       .no_turn_end = json.value("no_turn_end", false),
                       .progress = {.bytes_done = json.at("bytes_done"),
                                    .documents = json.at("documents_done"),
                                    .tokens = json.at("tokens_done")},
                       .train = position_of(json.at("train"))};
    const Json& valid = json.at("valid");  // of earlier builds: null, or the position of the only one
    if (valid.is_object()) state.valid = {position_of(valid)};
    for (std::size_t i = 0; valid.is_array() && i < valid.size(); ++i) state.valid.push_back(position_of(valid[i]));
    state.files = files_of(json.value("files", Json::array()));
    return state;
  });
}

}  // namespace hawser::prepare

#include "data/prepared_manifest.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/files.h"

namespace hawser::data {
namespace {

using Json = nlohmann::ordered_json;

// Goes up whenever the same sources would give other token files.
constexpr int kVersion = 1;

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
                    {"modified", source.modified}});
  }
  return list;
}

std::vector<Source> sources_of(const Json& list) {
  std::vector<Source> sources;
  for (const Json& item : list) {
    sources.push_back({item.at("path"), kind_of(item.at("kind")), item.at("bytes"), item.at("modified")});
  }
  return sources;
}

Json to_json(const PreparedCounts& counts) {
  return {{"documents", counts.documents}, {"sequences", counts.sequences}, {"tokens", counts.tokens}};
}

}  // namespace

void write_manifest(const std::string& path, const PreparedFrom& from, const Prepared& counts) {
  const Json json = {{"version", kVersion},
                     {"tokenizer", from.tokenizer},
                     {"vocab_size", from.vocab_size},
                     {"validation_fraction", from.validation_fraction},
                     {"seed", from.seed},
                     {"train", to_json(counts.train)},
                     {"validation", to_json(counts.validation)},
                     {"train_sources", to_json(from.train)},
                     {"validation_sources", to_json(from.validation)}};
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

std::optional<PreparedFrom> read_manifest(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) return std::nullopt;
  try {
    const Json json = Json::parse(stream);
    if (json.at("version") != kVersion) return std::nullopt;
    return PreparedFrom{.train = sources_of(json.at("train_sources")),
                        .validation = sources_of(json.at("validation_sources")),
                        .tokenizer = json.at("tokenizer"),
                        .validation_fraction = json.at("validation_fraction"),
                        .seed = json.at("seed"),
                        .vocab_size = json.at("vocab_size")};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace hawser::data

#include "hub/file_names.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/text.h"

namespace hawser::hub {
namespace {

namespace fs = std::filesystem;

bool has(const std::vector<std::string>& files, const char* name) {
  return std::ranges::find(files, name) != files.end();
}

bool ends_with_any(const std::string& name, const std::vector<const char*>& ends) {
  return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}

bool is_configuration(const std::string& name) {
  static const std::set<std::string> kNames = {kConfig,
                                               kAdapterConfig,
                                               "generation_config.json",
                                               "tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "vocab.json",
                                               "vocab.txt",
                                               "merges.txt",
                                               "tokenizer.model",
                                               "tekken.json",
                                               "spiece.model"};
  return kNames.contains(name) || (name.starts_with("chat_template.") && name.find('/') == name.npos) ||
         (name.starts_with("additional_chat_templates/") && name.ends_with(".jinja"));
}

// Without .gz and .zst.
std::string uncompressed(const std::string& name) {
  for (const char* end : {".gz", ".zst"}) {
    if (name.ends_with(end)) return name.substr(0, name.rfind('.'));
  }
  return name;
}

// Files that describe the data or the repo: find_sources leaves them out too.
bool is_about(const std::string& name) {
  std::string base = name.substr(name.rfind('/') + 1);
  std::ranges::transform(base, base.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array kNames = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
                                 "requirements.txt"};
  if (std::ranges::find(kNames, base) != kNames.end()) return true;
  constexpr std::array kWords = {"readme", "license", "licence", "notice", "citation", "copying", "changelog"};
  return base.ends_with(".txt") &&
         std::ranges::find(kWords, base.substr(0, base.find_first_of(".-_ "))) != kWords.end();
}

// A part that begins with a dot is not read.
bool is_hidden(const std::string& name) {
  return name.starts_with('.') || name.find("/.") != name.npos;
}

}  // namespace

bool is_safe_file_name(const std::string& name) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (!io::is_plain_name(name.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

std::vector<std::string> configuration_files(const std::vector<std::string>& files) {
  std::vector<std::string> out;
  std::ranges::copy_if(files, std::back_inserter(out), is_configuration);
  return out;
}

WeightFiles weight_files(const Repo& repo, const std::vector<std::string>& files, Problems& problems) {
  if (has(files, kWeights)) return {.files = {kWeights}};
  if (has(files, kWeightsIndex)) return {.files = {kWeightsIndex}, .index = true};
  if (has(files, kAdapterWeights)) return {.files = {kAdapterWeights}};
  std::string found;
  for (const std::string& name : files) {
    const bool weights =
        ends_with_any(name, {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack"});
    if (weights && (found.empty() || found.find('/') != found.npos)) found = name;
  }
  const bool adapter = has(files, kAdapterConfig) && !has(files, kConfig);
  problems.add({.file = repo.name.text(),
                .what = "no weights in this repo that are read: only safetensors are",
                .expected = adapter ? kAdapterWeights : cat(kWeights, " or ", kWeightsIndex),
                .got = found,
                .hint = found.empty() ? "another model"
                                      : cat("a pull request that adds them, hawser pull ", repo.name.model,
                                            "@refs/pr/N, or a copy that transformers' save_pretrained writes")});
  return {};
}

std::vector<std::string> data_files(const std::vector<std::string>& files, const std::vector<std::string>& include,
                                    const std::string& card) {
  const auto wanted = [&](const std::string& name) {
    return include.empty() || std::ranges::any_of(include, [&](const std::string& pattern) {
             return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
           });
  };
  const std::size_t end = card.starts_with("---") ? card.find("\n---", 3) : 0;
  const std::string header = card.substr(0, end);
  static const std::array<std::vector<const char*>, 3> kTypes = {
      {{".parquet", ".jsonl", ".ndjson", ".txt"}, {".csv", ".tsv"}, {".json"}}};
  std::vector<std::string> out;
  for (const auto& types : kTypes) {
    std::vector<std::string> found;
    bool declared = false;
    for (const std::string& name : files) {
      const std::string ending = fs::path(uncompressed(name)).extension().string();
      if (is_hidden(name) || is_about(name) || !wanted(name) || !ends_with_any(uncompressed(name), types)) continue;
      declared = declared || header.find(ending) != header.npos;
      found.push_back(name);
    }
    if (out.empty() || declared) out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

}  // namespace hawser::hub

#include "config/convert/converted_data.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/hub_name.h"
#include "base/text.h"

namespace hawser::convert {
namespace {

// Loaders of the library `datasets`, which stand in place of a name: the files are elsewhere.
constexpr std::array<std::string_view, 6> kLoaders = {"json", "csv", "text", "parquet", "arrow", "pandas"};
constexpr std::array<std::string_view, 10> kFileEndings = {".json", ".jsonl", ".ndjson", ".csv",     ".tsv",
                                                           ".txt",  ".gz",    ".zst",    ".parquet", ".arrow"};

bool is_file_name(const std::string& path) {
  return std::ranges::any_of(kFileEndings, [&](std::string_view ending) { return path.ends_with(ending); });
}

bool is_hub_name(const std::string& path) {
  if (is_file_name(path) || path.starts_with(".") || path.starts_with("/") || path.starts_with("~")) return false;
  const bool legacy = path.find_first_of("/.<>") == std::string::npos && !path.empty();  // "wikitext"
  return legacy || parse_hub_name(path).has_value();
}

void add_name(std::map<std::string, std::vector<std::string>>& names, const std::string& ours,
              const std::string& theirs) {
  if (theirs.empty() || theirs == ours) return;
  auto& all = names[ours];
  if (std::ranges::find(all, theirs) == all.end()) all.push_back(theirs);
}

YAML::Node map_of(const std::map<std::string, std::vector<std::string>>& names) {
  YAML::Node out(YAML::NodeType::Map);
  for (const auto& [ours, theirs] : names) {
    for (const std::string& name : theirs) out[ours].push_back(name);
  }
  return out;
}

// Formats of the same name, but for spelling.
constexpr auto kTemplates = std::to_array<std::pair<std::string_view, const char*>>({
    {"chatml", "chatml"},
    {"llama2", "llama-2"},
    {"llama3", "llama-3"},
    {"mistral_v1", "mistral-v1"},
    {"mistral_v2v3", "mistral-v3"},
    {"gemma", "gemma"},
    {"gemma2", "gemma"},
    {"gemma3", "gemma-3"},
    {"phi_3", "phi-3"},
    {"phi", "phi-3"},
    {"qwen_25", "qwen-2.5"},
    {"qwen", "qwen-2.5"},
    {"qwen3", "qwen-3"},
    {"qwen3_nothink", "chatml"},  // qwen-3 writes empty thoughts before an answer
    {"smollm2", "smollm2"},
    {"zephyr", "zephyr"},
});

}  // namespace

std::string chat_template_of(const std::string& theirs) {
  const auto found = std::ranges::find(kTemplates, theirs, &decltype(kTemplates)::value_type::first);
  return found == kTemplates.end() ? "" : found->second;
}

std::vector<std::string> DataSets::paths_of(const DataSource& source) {
  std::vector<std::string> out;
  const bool loader = std::ranges::find(kLoaders, source.path) != kLoaders.end() && !source.files.empty();
  const std::string root = loader ? "" : source.path;
  const bool hub = !loader && !Conversion::exists(source.path) && is_hub_name(source.path);
  const auto inside = [&](const std::string& file) {
    return root.empty() || file.starts_with("/") || file.find("://") != std::string::npos ? file : root + "/" + file;
  };
  if (hub) {
    std::string command = cat("hf download ", root, " --repo-type dataset --local-dir ", shell_quoted(c_.path(root)));
    if (!source.revision.empty()) command += " --revision " + shell_quoted(source.revision);
    for (const std::string& file : source.files) command += " --include " + shell_quoted(file);
    if (source.files.empty() && !source.configuration.empty()) {
      command += " --include " + single_quoted(source.configuration + "/*");
    }
    c_.download(command);
  }
  for (const std::string& file : source.files) {
    if (!loader && Conversion::exists(file) && !Conversion::exists(inside(file))) {
      out.push_back(c_.path(file));
    } else {
      out.push_back(c_.path(inside(file)));
    }
  }
  if (!out.empty()) return out;
  std::string folder = root;
  if (hub && !source.configuration.empty()) folder += "/" + source.configuration;
  std::string splits = source.split;
  for (bool more = true; more;) {  // "train+validation"
    const std::size_t plus = splits.find('+');
    more = plus != std::string::npos;
    std::string split = splits.substr(0, plus);
    split = split.substr(0, split.find('['));
    if (more) splits.erase(0, plus + 1);
    // Of a folder, the train split is what Hawser reads without more; other ones are files with the name of the split.
    const bool plain = split.empty() || split == "train" || is_file_name(root);
    out.push_back(plain ? c_.path(folder) : c_.path(folder) + "/**/" + split + "*");
  }
  return out;
}

bool DataSets::add(const DataSource& source, bool validation) {
  const std::vector<std::string> paths = paths_of(source);
  if (validation) {
    std::vector<std::string>& set = validation_[source.validation_set];
    set.insert(set.end(), paths.begin(), paths.end());
  } else {
    train_.push_back({.paths = paths, .weight = source.weight, .repeat = std::nullopt});
  }
  return source.split.find('[') == std::string::npos;
}

void DataSets::column(const std::string& ours, const std::string& theirs) {
  add_name(columns_, ours, theirs);
}

void DataSets::role(const std::string& ours, const std::string& theirs) {
  add_name(roles_, ours, theirs);
}

void DataSets::store(std::string_view train, std::string_view validation) {
  const bool weighted = std::ranges::any_of(train_, [](const DataSetRecipe& set) { return set.weight.has_value(); });
  YAML::Node list(YAML::NodeType::Sequence);
  std::vector<std::string> seen;
  for (const DataSetRecipe& set : train_) {
    if (weighted) {
      YAML::Node entry(YAML::NodeType::Map);
      for (const std::string& path : set.paths) entry["path"].push_back(path);
      entry["weight"] = cat(set.weight.value_or(1));
      list.push_back(entry);
      continue;
    }
    for (const std::string& path : set.paths) {
      if (std::ranges::find(seen, path) != seen.end()) continue;  // two parts of one split
      seen.push_back(path);
      list.push_back(path);
    }
  }
  if (list.size() > 0) c_.set("data.train", list, train);
  const bool one = validation_.contains("");
  if (!validation_.empty())
    c_.set("data.validation", one ? node_of(validation_.at("")) : map_of(validation_), validation);
  if (!columns_.empty()) c_.set("data.columns", map_of(columns_), train, "the names that the file gives for the data");
  if (!roles_.empty()) c_.set("data.roles", map_of(roles_), train, "the names that the file gives for roles");
}

}  // namespace hawser::convert

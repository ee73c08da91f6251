#include "prepare/hub_configs.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "io/files.h"
#include "prepare/byte_reader.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestHeader = std::size_t{1} << 20;

// The part of a README's header that has the configs; "" if there is none. The rest of the header may be long; it is
// not parsed.
std::string configs_of_header(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (!text.starts_with("---")) return "";
  std::string found;
  bool inside = false;
  for (std::size_t at = std::min(text.find('\n'), text.size() - 1) + 1; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    if (line == "---") return found;
    const bool is_key = !line.empty() && std::string_view(" \t-#").find(line.front()) == std::string_view::npos;
    if (is_key) inside = line.starts_with("configs:");
    if (inside) found.append(line).append("\n");
  }
  return "";  // the header has no end
}

std::string text_of(const YAML::Node& node) {
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

std::vector<std::string> texts_of(const YAML::Node& node) {
  if (node.IsScalar()) return {node.Scalar()};
  std::vector<std::string> texts;
  for (std::size_t i = 0; node.IsSequence() && i < node.size(); ++i) texts.push_back(text_of(node[i]));
  return texts;
}

// data_files: a pattern, a list of them, a list of {split, path}, or a map of splits.
std::vector<HubConfig::Part> parts_of(const YAML::Node& files) {
  std::vector<HubConfig::Part> parts;
  if (files.IsMap()) {
    for (const auto& one : files) parts.push_back({text_of(one.first), texts_of(one.second)});
  } else if (files.IsSequence() && files.size() > 0 && files[0].IsMap()) {
    for (const YAML::Node& one : files) {
      if (one.IsMap() && one["path"]) parts.push_back({text_of(one["split"]), texts_of(one["path"])});
    }
  } else if (files.IsScalar() || files.IsSequence()) {
    parts.push_back({"train", texts_of(files)});
  }
  return parts;
}

}  // namespace

std::vector<HubConfig> hub_configs(const std::string& folder) {
  std::vector<HubConfig> configs;
  try {
    const std::string path = (fs::path(folder) / "README.md").string();
    if (!io::is_file(path)) return {};
    std::string text(kLargestHeader, '\0');
    text.resize(open_bytes(path)->read(text));
    const YAML::Node root = YAML::Load(configs_of_header(text));
    if (!root.IsMap() || !root["configs"].IsSequence()) return {};
    for (const YAML::Node& node : root["configs"]) {
      if (!node.IsMap()) continue;
      HubConfig config;
      if (const std::string name = text_of(node["config_name"]); !name.empty()) config.name = name;
      config.is_default = config.name == "default" || text_of(node["default"]) == "true";
      config.data_dir = text_of(node["data_dir"]);
      if (node["data_files"]) config.parts = parts_of(node["data_files"]);
      for (HubConfig::Part& part : config.parts) {
        for (std::string& pattern : part.patterns) pattern = (fs::path(config.data_dir) / pattern).string();
      }
      if (!config.parts.empty() || !config.data_dir.empty()) configs.push_back(std::move(config));
    }
  } catch (const YAML::Exception&) {
    return {};
  } catch (const UserError&) {
    return {};
  }
  return configs;
}

const HubConfig* config_to_read(const std::vector<HubConfig>& configs) {
  if (configs.size() == 1) return &configs.front();
  const auto found = std::ranges::find_if(configs, &HubConfig::is_default);
  return found == configs.end() ? nullptr : &*found;
}

}  // namespace hawser::prepare

#include "config/rows.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/name_pattern.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/units.h"

namespace hawser::rows {
namespace {

// In order of recompute time per byte saved; `help` is shown in docs/recipe.md.
struct CheckpointingChoice {
  const char* name;
  Checkpointing value;
  const char* help;
};
constexpr CheckpointingChoice kCheckpointingChoices[] = {
    {"none", Checkpointing::none, "nothing: everything that backward reads is saved"},
    {"selective", Checkpointing::selective, "norms and SwiGLU, within backward"},
    {"gate_up", Checkpointing::gate_up, "norms, SwiGLU and the MLP's gate-up GEMM"},
    {"qkv", Checkpointing::qkv, "norms, SwiGLU, the QKV GEMM and RoPE; gate and up are saved"},
    {"projections", Checkpointing::projections,
     "norms, SwiGLU, RoPE, the QKV and gate-up GEMMs; attention's output and log-sum-exp are saved"},
    {"full", Checkpointing::full, "all but the inputs of attention and MLP: attention, too"},
    {"block", Checkpointing::block, "all but the block's input: `full`, and the input of the MLP"},
};

EnumChoices<Checkpointing> checkpointing_choices() {
  EnumChoices<Checkpointing> choices;
  for (const CheckpointingChoice& word : kCheckpointingChoices) choices.emplace_back(word.name, word.value);
  return choices;
}

const EnumChoices<Checkpointing> kCheckpointing = checkpointing_choices();

// Choices for a complete model, not for a list entry.
EnumChoices<Checkpointing> uniform_choices() {
  EnumChoices<Checkpointing> choices = checkpointing_choices();
  choices.emplace_back("auto", Checkpointing::automatic);
  return choices;
}
const EnumChoices<Checkpointing> kUniformCheckpointing = uniform_choices();

// Runs of equal entries: "20*full".
template <class Value, class Text>
std::vector<std::string> runs_of(const std::vector<Value>& list, const Text& text) {
  std::vector<std::string> out;
  for (std::size_t i = 0, end = 0; i < list.size(); i = end) {
    while (end < list.size() && list[end] == list[i]) ++end;
    out.push_back((end - i > 1 ? cat(end - i, "*") : "") + text(list[i]));
  }
  return out;
}

std::vector<std::string> runs_of(const std::vector<Checkpointing>& list) {
  return runs_of(list, [](Checkpointing policy) { return name_of(kCheckpointing, policy); });
}

// An entry of a list with one for each block: "20*full" are twenty consecutive ones.
struct Run {
  std::size_t times = 1;  // 0: not a count
  std::string entry;
};

Run run_of(const YAML::Node& node) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const std::size_t star = text.find('*');
  if (star == std::string::npos) return {1, text};
  Run run{0, text.substr(star + 1)};
  const char* const end = text.data() + star;
  if (std::from_chars(text.data(), end, run.times).ptr != end) run.times = 0;
  return run;
}

std::string joined(const std::vector<std::string>& choices, const std::string& last) {
  std::string out;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += i + 1 == choices.size() ? last : ", ";
    out += choices[i];
  }
  return out;
}

}  // namespace

const Recipe& default_recipe() {
  static const Recipe recipe;
  return recipe;
}

std::string RealRange::text() const {
  std::vector<std::string> parts;
  if (std::isfinite(min)) parts.push_back(cat(min_open ? "above " : "at least ", min));
  if (std::isfinite(max)) parts.push_back(cat(max_open ? "below " : "at most ", max));
  return joined(parts, " and ");
}

std::string without_unit(const std::string& text) {
  const bool kilo = text.ends_with('K') || text.ends_with('k'), mega = text.ends_with('M') || text.ends_with('m');
  if (!kilo && !mega) return text;
  const auto number = parse_number<std::int64_t>(std::string_view(text).substr(0, text.size() - 1));
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (!number || *number < 0 || *number > kMost) return text;
  return cat(*number << (mega ? 20 : 10));
}

std::string any_of(const std::vector<std::string>& choices) {
  return joined(choices, " or ");
}

std::string word_values(const std::vector<std::string>& names, const std::vector<std::string>& later) {
  std::string out = joined(names, ", ");
  if (!later.empty()) out += " (not supported yet: " + joined(later, ", ") + ")";
  return out;
}

std::optional<Rejection> reject_entries(const std::vector<std::string>& list, const Entries& entries) {
  std::string wrong;
  for (const std::string& entry : list) {
    if (!entries.takes(entry)) wrong += cat(wrong.empty() ? "" : ", ", printable(entry));
  }
  if (wrong.empty()) return std::nullopt;
  return Rejection{.what = entries.what, .expected = entries.expected, .hint = entries.hint, .got = wrong};
}

Rejection reject_word(const YAML::Node& node, const std::vector<std::string>& names,
                      const std::vector<std::string>& later) {
  if (!node.IsScalar()) return {"wrong type", any_of(names), ""};
  for (const std::string& name : later)
    if (node.Scalar() == name) return {kNotSupportedYet, any_of(names), ""};
  return {"unknown value", any_of(names), nearest(node.Scalar(), names)};
}

namespace {

bool is_empty(const YAML::Node& item) {
  return item.IsNull() || (item.IsScalar() && item.Scalar().empty());
}

Rejection empty_entry(const std::string& expected, const std::vector<std::string>& others) {
  std::string hint;
  for (const std::string& other : others) hint += (hint.empty() ? "[" : ", ") + other;
  return {"an empty entry in a list", expected, hint.empty() ? "" : hint + "]"};
}

}  // namespace

std::optional<Rejection> read_list(const YAML::Node& node, const char* expected, std::vector<std::string>& out) {
  out.clear();
  if (node.IsNull()) return std::nullopt;
  if (node.IsScalar() && !is_empty(node)) {
    out = {node.Scalar()};
    return std::nullopt;
  }
  if (!node.IsSequence()) return Rejection{"wrong type", expected, ""};
  bool empty = false;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar() && !item.IsNull()) return Rejection{"wrong type", expected, ""};
    empty = empty || is_empty(item);
    if (!is_empty(item)) out.push_back(item.Scalar());
  }
  return empty ? std::optional(empty_entry(expected, out)) : std::nullopt;
}

std::optional<Rejection> reject_commas(const YAML::Node& node) {
  if (!node.IsScalar()) return std::nullopt;
  const std::string& text = node.Scalar();
  if (!text.starts_with(',') && !text.ends_with(',') && text.find(",,") == std::string::npos) return std::nullopt;
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return empty_entry("a list of names", names);
}

std::optional<bool> parse_flag(const YAML::Node& node) {
  if (!node.IsScalar()) return std::nullopt;
  const std::string& text = node.Scalar();
  if (text == "true" || text == "True" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "False" || text == "no" || text == "off") return false;
  return std::nullopt;
}

std::optional<Rejection> reject_server(const std::string& text) {
  const std::string expected = "http://HOST:PORT or https://HOST";
  const std::size_t scheme = text.starts_with("http://") ? 7 : text.starts_with("https://") ? 8 : 0;
  if (scheme == 0) return Rejection{"not an HTTP address", expected, ""};
  const std::string host = text.substr(scheme, text.find('/', scheme) - scheme);
  if (host.find('@') != std::string::npos) {
    return Rejection{"credentials in an address", expected, "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
                     /*secret=*/true};
  }
  const bool strange = std::ranges::any_of(text, [](unsigned char c) { return c <= ' ' || c >= 127 || c == '"'; });
  if (host.empty() || host.starts_with(':') || strange || text.find_first_of("?#") != std::string::npos) {
    return Rejection{"not an HTTP address", expected, ""};
  }
  return std::nullopt;
}

bool is_address(const std::string& text) {
  in6_addr out{};
  return inet_pton(AF_INET, text.c_str(), &out) == 1 || inet_pton(AF_INET6, text.c_str(), &out) == 1;
}

constexpr std::size_t kMaxBlocks = 100000;

Key checkpointing(const char* name, const char* help) {
  Key key;
  key.name = name;
  key.values = word_values(names_of(kUniformCheckpointing), {}) + "; or a list: [9*full, none]";
  key.choices = names_of(kUniformCheckpointing);
  key.help = help;
  for (const CheckpointingChoice& word : kCheckpointingChoices) key.choice_help.emplace_back(word.name, word.help);
  key.choice_help.emplace_back(
      "auto", "one of these for each block: the fastest mix whose plan leaves 1% of the capacity free");
  key.reset = [](Recipe& recipe) {
    recipe.memory.activation_checkpointing = MemoryRecipe{}.activation_checkpointing;
    recipe.memory.per_layer.clear();
  };
  key.read = [](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    Checkpointing one = Checkpointing::none;
    std::vector<Checkpointing> list;
    if (!node.IsSequence()) {
      if (auto rejection = read_choice(node, kUniformCheckpointing, {}, one)) return rejection;
    } else if (node.size() == 0) {
      return Rejection{"empty list", any_of(names_of(kCheckpointing)) + ", or one of them for each block", ""};
    }
    for (std::size_t i = 0; node.IsSequence() && i < node.size(); ++i) {
      if (is_empty(node[i])) return Rejection{"an empty entry in a list", "a policy for each block", ""};
      const Run run = run_of(node[i]);
      if (run.times == 0 || list.size() + run.times > kMaxBlocks) {
        return Rejection{"wrong count", "COUNT*POLICY as in 20*full", ""};
      }
      Checkpointing value = Checkpointing::none;
      if (auto rejection =
              read_choice(node[i].IsScalar() ? YAML::Node(run.entry) : node[i], kCheckpointing, {}, value)) {
        rejection->expected += cat(" as number ", i, " of the list");
        return rejection;
      }
      list.insert(list.end(), run.times, value);
    }
    recipe.memory.activation_checkpointing = one;
    recipe.memory.per_layer = list;
    return std::nullopt;
  };
  key.write = [](const Recipe& recipe) {
    if (recipe.memory.per_layer.empty())
      return nlohmann::json(name_of(kUniformCheckpointing, recipe.memory.activation_checkpointing));
    return nlohmann::json(runs_of(recipe.memory.per_layer));
  };
  return key;
}

std::string checkpointing_text(const MemoryRecipe& memory) {
  if (memory.per_layer.empty()) return name_of(kUniformCheckpointing, memory.activation_checkpointing);
  std::string out;
  for (const std::string& run : runs_of(memory.per_layer)) out += (out.empty() ? "[" : ",") + run;
  return out + "]";
}

constexpr const char* kPartition = "auto, or the blocks of each model chunk, such as [9, 8, 8, 7] or [4*8]";

Key pipeline_partition(const char* name, const char* help) {
  Key key;
  key.name = name;
  key.values = "auto; or a list: [9, 8, 8, 7]";
  key.choices = {"auto"};
  key.help = help;
  key.reset = [](Recipe& recipe) { recipe.parallel.pipeline_partition.clear(); };
  key.read = [](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    std::vector<int>& list = recipe.parallel.pipeline_partition;
    list.clear();
    if (node.IsScalar() && node.Scalar() == "auto") return std::nullopt;
    if (!node.IsSequence()) return Rejection{"wrong type", kPartition, ""};
    if (node.size() == 0) return Rejection{"empty list", kPartition, ""};
    std::vector<int> blocks;
    for (const YAML::Node& item : node) {
      if (is_empty(item)) return Rejection{"an empty entry in a list", kPartition, ""};
      const Run run = run_of(item);
      const auto count = parse_number<int>(run.entry);
      if (!count || *count < 0) return Rejection{"not a number of blocks", kPartition, ""};
      if (run.times == 0 || blocks.size() + run.times > kMaxBlocks) return Rejection{"wrong count", kPartition, ""};
      blocks.insert(blocks.end(), run.times, *count);
    }
    list = blocks;
    return std::nullopt;
  };
  key.write = [](const Recipe& recipe) {
    const std::vector<int>& list = recipe.parallel.pipeline_partition;
    return list.empty() ? nlohmann::json("auto") : nlohmann::json(list);
  };
  return key;
}

std::string partition_text(const ParallelRecipe& parallel) {
  const std::vector<int>& list = parallel.pipeline_partition;
  if (list.empty()) return "auto";
  std::string out;
  for (const std::string& run : runs_of(list, [](int blocks) { return cat(blocks); })) {
    out += (out.empty() ? "[" : ",") + run;
  }
  return out + "]";
}

std::optional<Rejection> read_name_map(const YAML::Node& node, std::map<std::string, std::vector<std::string>>& out) {
  const Rejection rejection{"wrong type", "a map of names, such as {assistant: [agent, bot]}", ""};
  if (!node.IsMap()) return rejection;
  std::map<std::string, std::vector<std::string>> map;
  for (const auto& pair : node) {
    std::vector<std::string> names;
    if (!pair.first.IsScalar() || read_list(pair.second, "a list of names", names) || names.empty()) return rejection;
    if (!map.emplace(pair.first.Scalar(), std::move(names)).second) return Rejection{"name given twice", "once", ""};
  }
  out = std::move(map);
  return std::nullopt;
}

namespace {

// One entry of data.train: a path, or a map.
std::optional<Rejection> read_data_set(const YAML::Node& node, DataSetRecipe& out) {
  constexpr const char* kExpected = "a path, or {path: ..., weight: ...} or {path: ..., repeat: ...}";
  if (!node.IsMap()) {
    const auto rejection = read_list(node, kExpected, out.paths);
    return rejection || node.IsSequence() ? Rejection{"wrong type", kExpected, ""} : rejection;
  }
  for (const auto& pair : node) {
    const std::string key = pair.first.IsScalar() ? pair.first.Scalar() : "";
    if (key == "path") {
      if (auto rejection = read_list(pair.second, "a path, or a list of paths", out.paths)) return rejection;
      continue;
    }
    if (key != "weight" && key != "repeat") return Rejection{cat("unknown key of a data set: ", key), kExpected, ""};
    const auto number = pair.second.IsScalar() ? parse_number<double>(pair.second.Scalar()) : std::nullopt;
    if (!number || !std::isfinite(*number) || *number <= 0) {
      return Rejection{cat(key, " of a data set"), "a number above 0", ""};
    }
    (key == "weight" ? out.weight : out.repeat) = *number;
  }
  if (out.paths.empty()) return Rejection{"a data set without a path", kExpected, ""};
  if (out.weight && out.repeat) return Rejection{"a data set with weight and repeat", "one of the two", ""};
  return std::nullopt;
}

std::optional<Rejection> read_data_sets(const YAML::Node& node, DataRecipe& data) {
  std::vector<DataSetRecipe> sets;
  const auto add = [&](const YAML::Node& item) { return read_data_set(item, sets.emplace_back()); };
  if (node.IsMap()) {
    if (auto rejection = add(node)) return rejection;
  }
  for (std::size_t i = 0; node.IsSequence() && i < node.size(); ++i) {
    if (auto rejection = add(node[i])) return rejection;
  }
  const auto weighted = std::ranges::count_if(sets, [](const DataSetRecipe& set) { return set.weight.has_value(); });
  if (weighted > 0 && weighted < static_cast<std::ptrdiff_t>(sets.size())) {
    return Rejection{"weights of some data sets only", "a weight of each, or of none", ""};
  }
  data.train.clear();
  for (const DataSetRecipe& set : sets) data.train.insert(data.train.end(), set.paths.begin(), set.paths.end());
  data.sets = std::move(sets);
  return std::nullopt;
}

nlohmann::json json_of(const DataSetRecipe& set) {
  nlohmann::json json;
  json["path"] = set.paths.size() == 1 ? nlohmann::json(set.paths[0]) : nlohmann::json(set.paths);
  if (set.weight) json["weight"] = *set.weight;
  if (set.repeat) json["repeat"] = *set.repeat;
  return json;
}

}  // namespace

Key data_sets(const char* name, const char* help) {
  Key key = paths(name, HAWSER_FIELD(data.train), "", help);
  key.values = "list of paths and globs or of data sets";
  key.read = [of_paths = key.read](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    bool maps = node.IsMap();
    for (std::size_t i = 0; node.IsSequence() && i < node.size(); ++i) maps = maps || node[i].IsMap();
    if (maps) return read_data_sets(node, recipe.data);
    auto rejection = of_paths(node, recipe);
    if (!rejection) recipe.data.sets.clear();
    return rejection;
  };
  key.write = [of_paths = key.write](const Recipe& recipe) {
    if (recipe.data.sets.empty()) return of_paths(recipe);
    nlohmann::json list = nlohmann::json::array();
    for (const DataSetRecipe& set : recipe.data.sets) list.push_back(json_of(set));
    return list;
  };
  key.reset = [](Recipe& recipe) {
    recipe.data.train.clear();
    recipe.data.sets.clear();
  };
  return key;
}

namespace {

// Names of files are made of them.
bool is_set_name(const std::string& name) {
  constexpr std::size_t kLongest = 64;
  const auto valid = [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '-' || c == '_'); };
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, valid);
}

std::optional<Rejection> read_validation(const YAML::Node& node, std::vector<ValidationSetRecipe>& out) {
  constexpr const char* kExpected = "a list of paths, or a map of names to lists of paths";
  std::vector<ValidationSetRecipe> sets;
  if (!node.IsMap()) {
    ValidationSetRecipe all;
    if (auto rejection = read_list(node, kExpected, all.paths)) return rejection;
    if (!all.paths.empty()) sets.push_back(std::move(all));
    out = std::move(sets);
    return std::nullopt;
  }
  if (node.size() == 0) return Rejection{"no validation set", "a map of names to lists of paths", ""};
  std::vector<std::string> wrong;
  for (const auto& pair : node) {
    ValidationSetRecipe& set = sets.emplace_back();
    set.name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    if (!is_set_name(set.name)) wrong.push_back(printable(set.name));
    if (auto rejection = read_list(pair.second, kExpected, set.paths)) return rejection;
  }
  if (!wrong.empty()) {
    return Rejection{.what = "bad name of a validation set",
                     .expected = "1 to 64 letters, digits, '-' and '_'",
                     .hint = "",
                     .got = joined(wrong, ", ")};
  }
  std::ranges::sort(sets, {}, &ValidationSetRecipe::name);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const std::string& name = sets[i].name;
    if (i > 0 && sets[i - 1].name == name) {
      return Rejection{.what = "name given twice", .expected = "once", .hint = "", .got = name};
    }
    if (name == kAllSets) {
      return Rejection{.what = "the name of all validation sets together",
                       .expected = "another name for one of them",
                       .hint = "",
                       .got = name};
    }
    if (!sets[i].paths.empty()) continue;
    return Rejection{.what = "a validation set without files", .expected = "a path or more", .hint = "", .got = name};
  }
  out = std::move(sets);
  return std::nullopt;
}

}  // namespace

Key validation_sets(const char* name, const char* unset, const char* help) {
  const auto field = HAWSER_FIELD(data.validation);
  Key key = row(name, field, "list of paths and globs or map of lists", help);
  key.unset = unset;
  key.is_path = key.is_literal = key.is_list = key.is_map = true;
  key.read = [field](const YAML::Node& node, Recipe& recipe) {
    auto rejection = read_validation(node, field(recipe));
    if (rejection) rejection->hint.clear();  // of resolved paths, not of those given
    return rejection;
  };
  key.write = [field](const Recipe& recipe) {
    nlohmann::json map = nlohmann::json::object();
    for (const ValidationSetRecipe& set : field(recipe)) {
      if (set.name.empty()) return nlohmann::json(set.paths);
      map[set.name] = set.paths.size() == 1 ? nlohmann::json(set.paths[0]) : nlohmann::json(set.paths);
    }
    return map.empty() ? nlohmann::json() : map;
  };
  return key;
}

namespace {

std::optional<Rejection> read_param_group(const YAML::Node& node, ParamGroupRecipe& out) {
  constexpr const char* kExpected = "{match: NAME, learning_rate: X, weight_decay: W}";
  if (!node.IsMap()) return Rejection{"wrong type", cat("a list of ", kExpected), ""};
  for (const auto& pair : node) {
    const std::string key = pair.first.IsScalar() ? pair.first.Scalar() : "";
    if (key == "match") {
      if (auto rejection = read_list(pair.second, "a name, or a list of names", out.match)) return rejection;
      for (const std::string& entry : out.match) {
        if (!is_pattern(entry) || compiled_pattern(entry)) continue;
        return Rejection{.what = "not a regular expression",
                         .expected = "",
                         .hint = "a name such as embed_tokens, or .*layers[.][0-3]",
                         .got = printable(entry)};
      }
      continue;
    }
    std::optional<double>* const field = key == "learning_rate"          ? &out.learning_rate
                                         : key == "learning_rate_factor" ? &out.learning_rate_factor
                                         : key == "weight_decay"         ? &out.weight_decay
                                                                         : nullptr;
    if (field == nullptr) return Rejection{cat("unknown key of a group: ", key), kExpected, ""};
    const auto number = pair.second.IsScalar() ? parse_number<double>(pair.second.Scalar()) : std::nullopt;
    const bool finite = number && std::isfinite(*number) && std::isfinite(static_cast<float>(*number));
    if (!finite || *number < 0) {
      return Rejection{.what = cat(key, " of a group"),
                       .expected = "a number of at least 0",
                       .hint = "",
                       .got = pair.second.IsScalar() ? printable(pair.second.Scalar()) : ""};
    }
    *field = *number;
  }
  if (out.match.empty()) return Rejection{"a group without match", kExpected, ""};
  if (out.learning_rate && out.learning_rate_factor) {
    return Rejection{"a group with learning_rate and learning_rate_factor", "one of the two", ""};
  }
  if (!out.learning_rate && !out.learning_rate_factor && !out.weight_decay) {
    return Rejection{"a group that changes nothing", "learning_rate, learning_rate_factor or weight_decay", ""};
  }
  return std::nullopt;
}

nlohmann::json json_of(const ParamGroupRecipe& group) {
  nlohmann::json json;
  json["match"] = group.match.size() == 1 ? nlohmann::json(group.match[0]) : nlohmann::json(group.match);
  if (group.learning_rate) json["learning_rate"] = *group.learning_rate;
  if (group.learning_rate_factor) json["learning_rate_factor"] = *group.learning_rate_factor;
  if (group.weight_decay) json["weight_decay"] = *group.weight_decay;
  return json;
}

}  // namespace

Key param_groups(const char* name, const char* help) {
  const auto field = HAWSER_FIELD(optimizer.groups);
  Key key = row(name, field, "list of groups", help);
  key.unset = "none";
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    std::vector<ParamGroupRecipe> groups;
    if (!node.IsSequence()) {
      if (auto rejection = read_param_group(node, groups.emplace_back())) return rejection;
    }
    for (std::size_t i = 0; node.IsSequence() && i < node.size(); ++i) {
      if (auto rejection = read_param_group(node[i], groups.emplace_back())) return rejection;
    }
    if (groups.size() > kMaxParamGroups) return Rejection{"too many groups", cat("at most ", kMaxParamGroups), ""};
    field(recipe) = std::move(groups);
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) {
    nlohmann::json groups = nlohmann::json::array();
    for (const ParamGroupRecipe& group : field(recipe)) groups.push_back(json_of(group));
    return groups.empty() ? nlohmann::json() : groups;
  };
  return key;
}

}  // namespace hawser::rows

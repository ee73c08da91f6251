#include "models/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "io/files.h"
#include "models/config_reader.h"

namespace hawser::models {

namespace {

constexpr std::int64_t kMaxAdapterConfigBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxRank = std::int64_t{1} << 20;

std::string in_folder(const std::string& folder, const char* file) {
  return (std::filesystem::path(folder) / file).string();
}

// Keys that do not change what an adapter computes, or that are read.
constexpr auto kHarmless = std::to_array<const char*>({
    "peft_type",       "peft_version",
    "auto_mapping",    "base_model_name_or_path",
    "revision",        "task_type",
    "inference_mode",  "r",
    "target_modules",  "lora_alpha",
    "lora_dropout",    "use_rslora",
    "use_dora",        "bias",
    "modules_to_save", "init_lora_weights",
    "megatron_core",   "qalora_group_size",
    "layers_pattern",  "eva_config",
    "runtime_config",  "ensure_weight_tying",
    "lora_ga_config",
});

// Options with settings: {} turns them on with all defaults.
constexpr auto kWithSettings =
    std::to_array<const char*>({"arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config"});

// Whether a value turns an option off, as PEFT reads it: null, false, 0, "", [] or {}, but see the exceptions.
bool is_off(const std::string& key, const Json& value) {
  if (std::ranges::any_of(kWithSettings, [&](const char* name) { return name == key; })) return value.is_null();
  // 0, and false which equals it, is the first layer.
  if (key == "layers_to_transform") return value.is_null() || (value.is_array() && value.empty());
  return value.is_null() || value == false || value == 0 ||
         ((value.is_string() || value.is_structured()) && (value.empty() || value == ""));
}

std::vector<std::string> read_names(ConfigReader& config, const char* key) {
  const Json* value = config.find(key);
  if (value == nullptr) return {};
  std::vector<std::string> names;
  if (value->is_array()) {
    for (const Json& name : *value) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
    if (names.size() == value->size()) return names;
  }
  config.reject(key, "invalid value", "a list of names", shown(*value));
  return {};
}

// A list of names, or a text: kAllLinear or a regular expression.
std::vector<std::string> read_targets(ConfigReader& config) {
  const Json* value = config.find("target_modules");
  if (value == nullptr) {
    config.reject("target_modules", "missing key", "a list of names", "none");
    return {};
  }
  if (!value->is_string()) return read_names(config, "target_modules");
  const std::string text = value->get<std::string>();
  if (text == kAllLinear) return {text};
  return {pattern_target(text)};
}

// Methods that change the base model's weights when they start an adapter. The others only say what A and B were.
void reject_initialisation(ConfigReader& config) {
  const Json* value = config.find("init_lora_weights");
  if (value == nullptr || value->is_boolean()) return;
  const std::string text = value->is_string() ? value->get<std::string>() : "";
  if (text == "gaussian" || text == "eva" || text == "orthogonal") return;
  config.reject("init_lora_weights", "an initialisation that changes the base model is not supported",
                "true, false, gaussian, eva or orthogonal", shown(*value),
                "PEFT's option path_initial_model_for_weight_conversion, which saves a plain LoRA");
}

}  // namespace

bool is_adapter_folder(const std::string& folder) {
  return io::exists(in_folder(folder, kAdapterConfigFile)) && !io::exists(in_folder(folder, "config.json"));
}

std::optional<LoraConfig> read_lora_config(const std::string& folder, Problems& problems) {
  const std::string file = in_folder(folder, kAdapterConfigFile);
  if (!io::exists(file)) {
    problems.add(
        {.file = folder,
         .what = "no adapter here",
         .expected = cat("a folder with ", kAdapterConfigFile, " and ", kAdapterWeightsFile, ", as PEFT saves it")});
    return std::nullopt;
  }
  const auto json = io::parse_json(io::read_text(file, kMaxAdapterConfigBytes), file, "", 0, problems);
  if (!json) return std::nullopt;
  if (!json->is_object()) {
    problems.add({.file = file, .what = "not an adapter's settings", .expected = "a JSON object", .got = shown(*json)});
    return std::nullopt;
  }
  Problems found;
  ConfigReader config(*json, file, found);
  if (config.choice("peft_type", {"LORA"}, "").empty() && !config.has("peft_type")) {
    config.reject("peft_type", "missing key", "LORA", "none");
  }
  if (!found.empty()) {  // the options of another method mean nothing here
    problems.add(found);
    return std::nullopt;
  }
  config.choice("bias", {"none"}, "none");
  LoraConfig lora;
  lora.rank = config.integer("r", 1, kMaxRank);
  lora.alpha = config.positive("lora_alpha");
  lora.dropout = config.number("lora_dropout", 0, 0);
  if (lora.dropout >= 1) config.reject("lora_dropout", "out of range", "below 1", cat(lora.dropout));
  lora.rslora = config.flag("use_rslora", false);
  lora.dora = config.flag("use_dora", false);
  lora.targets = read_targets(config);
  lora.modules_to_save = read_names(config, "modules_to_save");
  reject_initialisation(config);
  for (const auto& [key, value] : json->items()) {
    const bool known = std::ranges::any_of(kHarmless, [&](const char* name) { return name == key; });
    if (known || is_off(key, value)) continue;
    config.reject(key.c_str(), "an option of PEFT that is not supported", "none", shown(value));
  }
  problems.add(found);
  return found.empty() ? std::optional(lora) : std::nullopt;
}

namespace {

// The ends of the adapted names, if PEFT finds these and no other Linear by them; otherwise the names.
std::vector<std::string> target_modules(const ModelDescription& description, const std::string& name) {
  std::set<std::string> adapted, ends;
  const auto collect = [&](const std::vector<nn::AdapterConfig>& adapters) {
    for (const nn::AdapterConfig& adapter : adapters) {
      if (adapter.name != name) continue;
      adapted.insert(adapter.target);
      ends.insert(adapter.target.substr(adapter.target.rfind('.') + 1));
    }
  };
  for (const BlockDescription& block : description.blocks) {
    collect(block.attention.adapters);
    if (!block.moe) collect(block.mlp.adapters);
  }
  for (const std::string& linear : adaptable_linears(description)) {
    if (ends.contains(linear.substr(linear.rfind('.') + 1)) && !adapted.contains(linear)) {
      return {adapted.begin(), adapted.end()};
    }
  }
  return {ends.begin(), ends.end()};
}

}  // namespace

std::string lora_config_json(const LoraConfig& lora, const ModelDescription& description, const std::string& base) {
  io::OrderedJson json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = base;
  json["inference_mode"] = true;
  json["r"] = lora.rank;
  if (lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15) {
    json["lora_alpha"] = static_cast<std::int64_t>(lora.alpha);
  } else {
    json["lora_alpha"] = lora.alpha;
  }
  json["lora_dropout"] = lora.dropout;
  json["use_rslora"] = lora.rslora;
  json["use_dora"] = lora.dora;
  json["target_modules"] = target_modules(description, lora.name);
  json["modules_to_save"] = lora.modules_to_save.empty() ? io::OrderedJson() : io::OrderedJson(lora.modules_to_save);
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["init_lora_weights"] = true;
  return json.dump(2) + "\n";
}

}  // namespace hawser::models

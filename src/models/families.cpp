#include "models/families.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hub_name.h"
#include "base/text.h"
#include "io/files.h"
#include "io/json.h"
#include "models/config_reader.h"
#include "models/gemma/gemma.h"
#include "models/gpt_neox/gpt_neox.h"
#include "models/llama/llama.h"
#include "models/mistral/mistral.h"
#include "models/other_families.h"
#include "models/qwen/qwen.h"
#include "models/supported.h"

namespace hawser::models {
namespace {

constexpr std::int64_t kMaxConfigBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMaxId = (std::int64_t{1} << 31) - 1;

struct Family {
  const char* model_type;
  ModelDescription (*read)(ConfigReader& config, Problems& problems, const TensorNames* names);
  std::string (*write)(const ModelDescription& description, const std::string& stored);
};
constexpr std::array<Family, 8> kFamilies{{{"llama", read_llama, llama_config_json},
                                           {"mistral", read_mistral, mistral_config_json},
                                           {"mixtral", read_mixtral, mixtral_config_json},
                                           {"qwen2", read_qwen2, qwen2_config_json},
                                           {"qwen3", read_qwen3, qwen3_config_json},
                                           {"qwen3_moe", read_qwen3_moe, qwen3_moe_config_json},
                                           {"gemma3_text", read_gemma3, gemma3_config_json},
                                           {"gpt_neox", read_gpt_neox, gpt_neox_config_json}}};

const Family* find_family(const std::string& name) {
  for (const Family& family : kFamilies) {
    if (name == family.model_type) return &family;
  }
  return nullptr;
}

std::optional<Json> parse_object(const std::string& text, const std::string& file, Problems& problems) {
  auto json = io::parse_json(text, file, "configuration", 0, problems);
  if (json && !json->is_object()) {
    problems.add(
        {.file = file, .what = "not a model's configuration", .expected = "a JSON object", .got = shown(*json)});
    return std::nullopt;
  }
  return json;
}

std::optional<Json> read_object(const std::string& file, Problems& problems) {
  std::string text;
  try {
    text = io::read_text(file, kMaxConfigBytes);
  } catch (const UserError& error) {
    problems.add({.what = error.what()});
    return std::nullopt;
  }
  return parse_object(text, file, problems);
}

std::optional<Json> read_config(const std::string& path, Problems& problems) {
  const std::string file = config_path(path);
  const auto hub = hub_name_of(path);
  if (!io::exists(path)) {
    if (hub) {
      problems.add(not_downloaded(*hub, path));
      return std::nullopt;
    }
    problems.add({.file = path, .what = "no such model", .expected = "a Hugging Face folder or a config.json"});
    return std::nullopt;
  }
  if (!io::exists(file)) {
    problems.add({.file = path,
                  .what = "no config.json in this folder",
                  .hint = hub ? download_command(*hub) : "a Hugging Face model folder"});
    return std::nullopt;
  }
  return read_object(file, problems);
}

// What to do with models of a type whose text model alone is supported.
std::string hint_for(const Json* type) {
  if (type == nullptr || *type != "gemma3") return "";
  return "its text model alone, saved as gemma3_text: docs/families.md";
}

enum class Unsupported { rejected, read };

ModelDescription describe(const Json& json, const std::string& file, Problems& problems, const TensorNames* names,
                          Unsupported unsupported) {
  Problems found;
  ModelDescription description;
  ConfigReader config(json, file, found);
  const Json* type = config.find("model_type");
  const Family* family = type != nullptr && type->is_string() ? find_family(type->get<std::string>()) : nullptr;
  if (family != nullptr) {
    reject_other_keys(config, family->model_type);
    description = family->read(config, found, names);
    if (found.empty() && names != nullptr) reject_other_tensors(config, description, *names);
    if (unsupported == Unsupported::rejected) check_supported(description, file, found);
  } else {
    config.reject("model_type", "model family not supported", joined(model_types(), ", "),
                  type == nullptr ? "none" : shown(*type), hint_for(type));
  }
  problems.add(found);
  return found.empty() ? description : ModelDescription{};
}

void read_ids(ConfigReader& config, SpecialTokens& tokens) {
  if (config.has("bos_token_id")) tokens.begin = config.integer("bos_token_id", 0, kMaxId, 0);
  const Json* ends = config.find("eos_token_id");
  if (ends == nullptr) return;
  tokens.ends.clear();
  const Json list = ends->is_array() ? *ends : Json::array({*ends});
  for (const Json& value : list) {
    const auto id = io::as_count(value);
    if (id && *id <= kMaxId) {
      tokens.ends.push_back(*id);
    } else {
      config.reject("eos_token_id", "invalid value", "a token id, or a list of them", shown(value));
      return;
    }
  }
}

}  // namespace

std::vector<std::string> model_types() {
  std::vector<std::string> types;
  for (const Family& family : kFamilies) types.emplace_back(family.model_type);
  return types;
}

std::string config_path(const std::string& path) {
  return io::is_folder(path) ? (std::filesystem::path(path) / "config.json").string() : path;
}

ModelDescription read_description(const std::string& path, Problems& problems, const TensorNames* names) {
  const auto json = read_config(path, problems);
  return json ? describe(*json, config_path(path), problems, names, Unsupported::rejected) : ModelDescription{};
}

ModelDescription describe_config(const std::string& text, const std::string& file, Problems& problems,
                                 const TensorNames* names) {
  const auto json = parse_object(text, file, problems);
  return json ? describe(*json, file, problems, names, Unsupported::rejected) : ModelDescription{};
}

ModelDescription describe_unchecked(const std::string& text, const std::string& file, Problems& problems,
                                    const TensorNames* names) {
  const auto json = parse_object(text, file, problems);
  return json ? describe(*json, file, problems, names, Unsupported::read) : ModelDescription{};
}

namespace {

void add_ids(const std::optional<Json>& json, const std::string& file, SpecialTokens& tokens, Problems& problems) {
  if (!json) return;
  ConfigReader config(*json, file, problems);
  read_ids(config, tokens);
}

// Keys of generation_config.json that change which tokens are chosen, with the numbers that change nothing.
constexpr std::pair<const char*, double> kChoosingKeys[] = {{"repetition_penalty", 1},
                                                            {"no_repeat_ngram_size", 0},
                                                            {"num_beams", 1},
                                                            {"min_length", 0},
                                                            {"min_new_tokens", 0},
                                                            {"bad_words_ids", 0},
                                                            {"suppress_tokens", 0},
                                                            {"begin_suppress_tokens", 0},
                                                            {"forced_bos_token_id", -1},
                                                            {"forced_eos_token_id", -1},
                                                            {"sequence_bias", 0},
                                                            {"guidance_scale", 1},
                                                            {"penalty_alpha", 0},
                                                            {"dola_layers", 0},
                                                            {"stop_strings", 0},
                                                            {"exponential_decay_length_penalty", 0}};

void add_generation_config(const std::filesystem::path& folder, SpecialTokens& tokens, Problems& problems) {
  const std::string file = (folder / "generation_config.json").string();
  if (!io::exists(file)) return;
  const auto json = read_object(file, problems);
  add_ids(json, file, tokens, problems);
  if (!json) return;
  tokens.not_applied.clear();
  for (const auto& [key, none] : kChoosingKeys) {
    const auto found = json->find(key);
    if (found == json->end() || found->empty()) continue;  // null is empty
    if (!found->is_number() || found->get<double>() != none) tokens.not_applied.emplace_back(key);
  }
}

}  // namespace

SpecialTokens read_special_tokens(const std::string& path, Problems& problems) {
  SpecialTokens tokens;
  const std::string file = config_path(path);
  add_ids(read_object(file, problems), file, tokens, problems);
  add_generation_config(std::filesystem::path(file).parent_path(), tokens, problems);
  return tokens;
}

void read_special_tokens_of_adapter(const std::string& folder, SpecialTokens& tokens, Problems& problems) {
  add_generation_config(folder, tokens, problems);
}

SpecialTokens describe_special_tokens(const std::string& config, const std::string& folder, Problems& problems) {
  SpecialTokens tokens;
  add_ids(parse_object(config, folder, problems), folder, tokens, problems);
  add_generation_config(folder, tokens, problems);
  return tokens;
}

std::string beyond_positions(const ModelDescription& description, std::int64_t length) {
  double positions = static_cast<double>(description.max_position);
  if (!description.ropes.empty()) {
    const ops::RopeConfig& rope = description.ropes.front();
    if (rope.kind == ops::RopeKind::linear) positions *= rope.factor;
    if (rope.kind == ops::RopeKind::yarn) {
      positions = std::max(positions, static_cast<double>(rope.original_max_position) * rope.factor);
    }
  }
  if (description.max_position <= 0 || static_cast<double>(length) <= positions) return "";
  return cat("sequences of ", length, " tokens exceed the model's ", static_cast<std::int64_t>(positions),
             " positions (max_position_embeddings); rope_scaling in its config.json "
             "extends them");
}

std::string config_json(const ModelDescription& description, DType stored, const std::string& original) {
  return config_json(description, std::string(to_string(stored)), original);
}

std::string config_json(const ModelDescription& description, const std::string& type, const std::string& original) {
  if (original.empty()) {
    const Family* family = find_family(description.family);
    HAWSER_CHECK(family != nullptr, "no family ", description.family);
    return family->write(description, type);
  }
  auto json = io::read_json<io::OrderedJson>(original).json;
  HAWSER_CHECK(json.is_object(), "the original config is not a JSON object");
  // transformers 5 writes `dtype`, 4 `torch_dtype`: the file keeps its style.
  const bool recent = json.contains("dtype") && !json.contains("torch_dtype");
  json[recent ? "dtype" : "torch_dtype"] = type;
  if (!recent && json.contains("dtype")) json["dtype"] = type;
  json.erase("quantization_config");  // the weights of exports are not quantized
  return json.dump(2) + "\n";
}

std::string description_changes(const ModelDescription& before, const ModelDescription& now) {
  const auto settings = [](const ModelDescription& description) {
    auto json = io::parse_own_json<io::OrderedJson>(config_json(description, DType::f32));
    for (const char* key : {"architectures", "max_position_embeddings", "initializer_range"}) json.erase(key);
    return json;
  };
  const auto then = settings(before), today = settings(now);
  std::string out;
  const auto add = [&](const std::string& key, const auto& from, const auto& to) {
    out += cat(out.empty() ? "" : ", ", key, " was ", from.dump(), " and is ", to.dump());
  };
  for (const auto& [key, value] : then.items()) {
    const auto found = today.find(key);
    if (found == today.end()) {
      add(key, value, nlohmann::ordered_json());
    } else if (value.is_object() && found->is_object() && value.size() == found->size()) {  // rope_scaling of one kind
      for (const auto& [name, one] : value.items()) {
        const auto other = found->value(name, nlohmann::ordered_json());
        if (one != other) add(cat(key, ".", name), one, other);
      }
    } else if (value != *found) {
      add(key, value, *found);
    }
  }
  for (const auto& [key, value] : today.items()) {
    if (!then.contains(key)) add(key, nlohmann::ordered_json(), value);
  }
  return out;
}

}  // namespace hawser::models

// Changes of an exported model's small files: one chat template, and the end of turn among the tokens that end a text.
#include <algorithm>
#include <array>

#include "io/json.h"
#include "io/json_text.h"
#include "models/weights.h"

namespace hawser::models {
namespace {

using checkpoint::Attachment;

constexpr const char* kTokenizerConfig = "tokenizer_config.json";

// Keys of config.json that transformers reads for generation if there is no generation_config.json.
constexpr std::array<const char*, 22> kGenerationKeys{"bos_token_id",
                                                      "pad_token_id",
                                                      "decoder_start_token_id",
                                                      "forced_bos_token_id",
                                                      "forced_eos_token_id",
                                                      "max_length",
                                                      "min_length",
                                                      "do_sample",
                                                      "temperature",
                                                      "top_k",
                                                      "top_p",
                                                      "typical_p",
                                                      "num_beams",
                                                      "num_beam_groups",
                                                      "diversity_penalty",
                                                      "early_stopping",
                                                      "length_penalty",
                                                      "repetition_penalty",
                                                      "no_repeat_ngram_size",
                                                      "bad_words_ids",
                                                      "suppress_tokens",
                                                      "begin_suppress_tokens"};

Attachment* find_file(std::vector<Attachment>& files, const std::string& name) {
  const auto found = std::ranges::find(files, name, &Attachment::name);
  return found == files.end() ? nullptr : &*found;
}

io::OrderedJson object_of(const std::string& text, const char* file) {
  auto json = io::read_json<io::OrderedJson>(text).json;
  if (!json.is_object())
    throw UserError(Problem{.file = file, .what = "not a model's configuration", .expected = "a JSON object"});
  return json;
}

// The token ids of an `eos_token_id`: a number, a list of them, or null.
std::vector<std::int64_t> ids_of(const io::OrderedJson& config) {
  std::vector<std::int64_t> ids;
  const io::OrderedJson value = config.value("eos_token_id", io::OrderedJson());
  for (const io::OrderedJson& one : value.is_array() ? value : io::OrderedJson::array({value})) {
    if (one.is_number_integer()) ids.push_back(one.get<std::int64_t>());
  }
  return ids;
}

std::string list_of(const std::vector<std::int64_t>& ids) {
  std::string out;
  for (const std::int64_t id : ids) out += cat(out.empty() ? "" : ", ", id);
  return cat("[", out, "]");
}

}  // namespace

std::vector<Attachment> with_one_chat_template(std::vector<Attachment> files) {
  Attachment* const config = find_file(files, kTokenizerConfig);
  const io::Json json = config != nullptr ? io::json_or_null(config->text) : io::Json();
  const bool in_config = json.is_object() && json.contains("chat_template");
  const bool in_file = find_file(files, "chat_template.jinja") != nullptr;
  if (in_file && in_config) config->text = io::without_key(config->text, "chat_template");
  const bool in_use = in_file || (in_config && !json["chat_template"].is_null());
  std::erase_if(files, [&](const Attachment& file) {
    // Of processors, which have the template of their tokenizer otherwise.
    if (file.name == "chat_template.json") return in_use;
    // transformers would read these alone, without a default.
    return !in_file && in_use && is_chat_template_file(file.name);
  });
  return files;
}

std::vector<Attachment> with_end_token(std::vector<Attachment> files, const std::string& config, std::int64_t end) {
  const io::OrderedJson model = object_of(config, "config.json");
  Attachment* const file = find_file(files, kGenerationConfigFile);
  const io::OrderedJson own =
      file != nullptr ? object_of(file->text, kGenerationConfigFile) : io::OrderedJson::object();
  const bool has_ids = own.contains("eos_token_id") && !own["eos_token_id"].is_null();
  std::vector<std::int64_t> ids = ids_of(has_ids ? own : model);
  const bool is_there = std::ranges::find(ids, end) != ids.end();
  if (has_ids && is_there) return files;
  if (!is_there) ids.push_back(end);
  if (file != nullptr) {
    file->text = io::with_value(file->text, "eos_token_id", list_of(ids));
    return files;
  }
  io::OrderedJson added = io::OrderedJson::object();
  for (const char* key : kGenerationKeys) {
    if (model.contains(key) && !model[key].is_null()) added[key] = model[key];
  }
  added["eos_token_id"] = ids;
  files.push_back({kGenerationConfigFile, added.dump(2) + "\n"});
  return files;
}

}  // namespace hawser::models

#include "generate/prompts.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "base/utf8.h"
#include "io/files.h"
#include "io/json.h"
#include "prepare/answers.h"
#include "prepare/byte_reader.h"
#include "prepare/json_line.h"
#include "prepare/open_lines.h"
#include "prepare/sources.h"
#include "text/chat/from_json.h"
#include "text/chat/turn_ends.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::generate {

using text::chat::Dict;
using text::chat::List;
using text::chat::Value;

PromptEncoder::PromptEncoder(std::string model, const text::Tokenizer* tokenizer,
                             std::shared_ptr<const text::chat::ChatTemplate> chat_template, Problems without,
                             std::optional<std::int64_t> begin, std::int64_t vocabulary)
    : model_(std::move(model)),
      tokenizer_(tokenizer),
      template_(std::move(chat_template)),
      without_(std::move(without)),
      begin_(begin),
      vocabulary_(vocabulary) {}

bool PromptEncoder::has_tokenizer(const PromptPlace& place, Problems& problems) const {
  if (tokenizer_ != nullptr) return true;
  const bool option = place.at.starts_with("--");
  problems.add({.file = option ? model_ : place.file,
                .what = "no tokenizer.json in the model's folder",
                .at = place.at,
                .hint = option ? "--prompt-ids with token ids" : "input_ids in place of a text"});
  return false;
}

std::optional<Prompt> PromptEncoder::checked(Prompt prompt, const PromptPlace& place, Problems& problems) const {
  const auto outside =
      std::find_if(prompt.ids.begin(), prompt.ids.end(), [&](std::int32_t id) { return id >= vocabulary_; });
  if (outside != prompt.ids.end()) {
    problems.add({.file = model_,
                  .what = "the tokenizer produces ids outside the model's vocabulary",
                  .expected = cat("ids below ", vocabulary_),
                  .got = cat(*outside)});
    return std::nullopt;
  }
  if (prompt.ids.empty()) {
    problems.add({.file = place.file, .what = "empty prompt", .expected = "one token or more", .at = place.at});
    return std::nullopt;
  }
  return prompt;
}

std::optional<Prompt> PromptEncoder::text(const std::string& text, const PromptPlace& place, Problems& problems) const {
  if (!has_tokenizer(place, problems)) return std::nullopt;
  Prompt prompt{.text = text, .ids = text::encode_framed(*tokenizer_, text)};
  if (prompt.ids.empty() && begin_) prompt.ids.push_back(static_cast<std::int32_t>(*begin_));
  return checked(std::move(prompt), place, problems);
}

namespace {

bool ends_with_answer(const text::chat::Conversation& conversation) {
  const List& messages = conversation.messages.list();
  const Value* role = messages.empty() ? nullptr : messages.back().dict().find("role");
  return role != nullptr && role->is_text() && role->text().bytes == "assistant";
}

}  // namespace

std::optional<Prompt> PromptEncoder::conversation(const text::chat::Conversation& conversation,
                                                  const PromptPlace& place, Problems& problems) const {
  if (!has_tokenizer(place, problems)) return std::nullopt;
  if (template_ == nullptr) {
    if (without_.empty()) {
      problems.add({.file = place.file.empty() ? model_ : place.file,
                    .what = "messages need a chat template, and the model has none",
                    .at = place.at,
                    .hint = "--chat-template chatml, or another name or file"});
    } else {
      problems.add(without_);
    }
    return std::nullopt;
  }
  const text::chat::ChatTemplate* used = nullptr;
  try {
    used = &template_->used_for(conversation);
    text::chat::Conversation now = conversation;
    now.time = time_;
    text::chat::Rendered rendered = used->render(now, true);
    if (auto problem = prepare::left_out_problem(*used, now, rendered)) {
      problem->file = place.file.empty() ? model_ : place.file;
      problem->at = place.at;
      if (problem->hint.find("data.chat_template") != std::string::npos) {
        problem->hint = "--chat-template with another name or file";
      }
      problems.add(*problem);
      return std::nullopt;
    }
    wrote_date_ = wrote_date_ || rendered.asked_time;
    Prompt prompt{.text = std::move(rendered.text), .chat = true, .answered = ends_with_answer(now)};
    tokenizer_->encode_conversation(prompt.text, prompt.ids);
    return checked(std::move(prompt), place, problems);
  } catch (const text::chat::TemplateError& error) {
    problems.add({.file = place.file,
                  .what = cat("chat template ", used->file(),
                              error.line > 0 ? cat(", line ", error.line, ": ") : std::string(": "), error.what()),
                  .at = place.at});
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return std::nullopt;
}

std::optional<Prompt> PromptEncoder::ids(const std::vector<std::int64_t>& ids, const PromptPlace& place,
                                         Problems& problems) const {
  Prompt prompt;
  bool good = true;
  for (const std::int64_t id : ids) {
    if (id >= 0 && id < vocabulary_) {
      prompt.ids.push_back(static_cast<std::int32_t>(id));
      continue;
    }
    problems.add({.file = place.file,
                  .what = "id outside the vocabulary",
                  .expected = cat("below ", vocabulary_),
                  .got = cat(id),
                  .at = place.at});
    good = false;
  }
  return good ? checked(std::move(prompt), place, problems) : std::nullopt;
}

Value message(const std::string& role, const std::string& content) {
  Dict dict;
  dict.set("role", Value(role));
  dict.set("content", Value(content));
  return dict;
}

std::vector<std::int64_t> PromptEncoder::turn_ends() const {
  if (template_ == nullptr || tokenizer_ == nullptr) return {};
  const std::vector<std::int32_t> ids = text::chat::turn_ends(*template_, *tokenizer_);
  if (!ids.empty()) return {ids.begin(), ids.end()};
  // The template may end another turn with its eos_token.
  const std::string token = template_->eos_token();
  const auto id = token.empty() ? std::nullopt : tokenizer_->id_of(token);
  return id ? std::vector<std::int64_t>{*id} : std::vector<std::int64_t>();
}

namespace {

constexpr std::int64_t kMaxPromptBytes = std::int64_t{256} << 20;  // unpacked
constexpr std::int64_t kMaxToolsBytes = 1 << 20;

using Json = nlohmann::ordered_json;

// One line of a .jsonl file.
std::optional<Prompt> read_line(std::string_view line, const prepare::LinePlace& place, const PromptEncoder& encoder,
                                Problems& problems) {
  const PromptPlace here{place.file, place.at()};
  const auto reject = [&](const char* what, std::string expected, std::string got, const char* key) {
    problems.add({.file = place.file,
                  .what = what,
                  .expected = std::move(expected),
                  .got = std::move(got),
                  .at = cat(here.at, *key == 0 ? "" : ", ", key)});
    return std::nullopt;
  };
  std::optional<Json> parsed_line = prepare::parse_json_line(line, place, problems);
  if (!parsed_line) return std::nullopt;
  Json& json = *parsed_line;
  // null counts as missing, as in training.
  const auto given = [&](const char* key) { return json.contains(key) && !json[key].is_null(); };
  std::string keys;
  for (const char* key : {"prompt", "messages", "conversations", "instruction", "question", "input_ids"}) {
    if (given(key)) keys += cat(keys.empty() ? "" : " and ", key);
  }
  if (keys.empty() || keys.find(' ') != std::string::npos) {
    return reject("line needs exactly one of these keys",
                  "prompt, messages, conversations, instruction, question or input_ids", keys.empty() ? "none" : keys,
                  "");
  }
  Json reduced;
  if (given("prompt")) {
    const Json& prompt = json["prompt"];
    if (prompt.is_string()) return encoder.text(prompt.get<std::string>(), here, problems);
    if (!prompt.is_array()) return reject("wrong type", "a text or a list of messages", prompt.type_name(), "prompt");
    reduced["messages"] = prompt;
  } else if (given("messages") || given("conversations")) {
    reduced[keys] = json[keys];
  } else if (!given("input_ids")) {  // a question, with an answer in place of the line's, which is not read
    reduced[keys] = json[keys];
    reduced["output"] = "-";
  } else {
    reduced["input_ids"] = json["input_ids"];
  }
  std::vector<const char*> more{"attention_mask"};
  const bool question = reduced.contains("output");
  if (!reduced.contains("input_ids")) {
    more = {"system", "system_prompt", "tools", "functions", "documents", "chat_template_kwargs"};
    if (question) more.insert(more.end(), {"input", "context"});
  }
  for (const char* key : more) {
    if (json.contains(key)) reduced[key] = json[key];
  }
  auto parsed = prepare::parse_object(reduced, place, problems);
  if (!parsed) return std::nullopt;
  if (question) parsed->chat = text::chat::first_messages(*parsed->chat, parsed->chat->messages.list().size() - 1);
  if (parsed->chat) return encoder.conversation(*parsed->chat, here, problems);
  return encoder.ids({parsed->ids.begin(), parsed->ids.end()}, here, problems);
}

std::string read_standard_input(const std::string& name) {
  std::string text;
  for (char bytes[1 << 16];;) {
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw UserError({.file = name, .what = cat("cannot read: ", std::strerror(errno))});
    if (count == 0) return text;
    if (static_cast<std::int64_t>(text.size()) + count > kMaxPromptBytes) {
      throw UserError({.file = name,
                       .what = "too large to be read at once",
                       .expected = cat("at most ", format_bytes(Bytes(kMaxPromptBytes)), " of text"),
                       .hint = "several calls"});
    }
    text.append(bytes, static_cast<std::size_t>(count));
  }
}

}  // namespace

std::vector<Prompt> read_prompts(const std::string& named, const PromptEncoder& encoder, Problems& problems) {
  const bool piped = named == "-";
  const std::string path = piped ? "standard input" : named;
  std::vector<Prompt> prompts;
  const auto kind = piped ? std::optional(prepare::SourceKind::jsonl) : prepare::kind_by_name(path);
  if (!kind || *kind == prepare::SourceKind::tokens) {
    problems.add(
        {.file = path,
         .what = "unknown file type",
         .expected =
             ".jsonl, .json, .csv, .tsv, .parquet or .txt, perhaps with .gz or .zst, or - for .jsonl on standard "
             "input",
         .at = "--prompts"});
    return prompts;
  }
  std::string text;
  const char* unit = "line";
  try {
    if (piped) {
      text = read_standard_input(path);
    } else if (*kind == prepare::SourceKind::text) {
      text = prepare::read_all_bytes(path, kMaxPromptBytes);
      remove_byte_order_mark(text);
    } else {
      const prepare::Lines lines = prepare::open_lines(path, /*training=*/false);
      text = prepare::read_all_bytes(*lines.bytes, path, kMaxPromptBytes);
      unit = lines.unit;
    }
  } catch (const UserError& error) {
    problems.add_lines(error.what());
    return prompts;
  }
  if (looks_like_utf16(text)) {
    problems.add({.file = path, .what = "UTF-16 text", .expected = "UTF-8", .hint = kFromUtf16});
    return prompts;
  }
  bool any = false;
  prepare::LinePlace place{.file = path, .vocab_size = encoder.vocabulary(), .unit = unit};
  Problems found;
  for (std::size_t at = 0; at < text.size(); ++place.number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    place.byte = static_cast<std::int64_t>(at);
    at = end + 1;
    if (prepare::is_blank(line)) continue;
    any = true;
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::optional<Prompt> prompt;
    if (*kind == prepare::SourceKind::jsonl) {
      prompt = read_line(line, place, encoder, found);
    } else if (const std::size_t bad = find_invalid_utf8(line); bad != std::string_view::npos) {
      found.add({.file = path, .what = "not UTF-8", .at = cat("line ", place.number), .hint = "iconv -c -t utf-8"});
    } else {
      prompt = encoder.text(std::string(line), {path, cat("line ", place.number)}, found);
    }
    if (!prompt) continue;
    prompt->line = place.number;
    prompts.push_back(std::move(*prompt));
  }
  if (!any) problems.add({.file = path, .what = "no prompts", .expected = "one line or more", .at = "--prompts"});
  problems.add(found);
  return prompts;
}

text::chat::Value read_tools(const std::string& path) {
  const auto [json, error] = io::read_json<io::OrderedJson>(io::read_text(path, kMaxToolsBytes));
  if (error) {
    throw UserError(Problem{.file = path,
                            .what = "broken JSON",
                            .at = error->byte ? cat("--tools, byte ", *error->byte + 1) : std::string("--tools")});
  }
  const auto is_tool = [](const io::OrderedJson& tool) { return tool.is_object(); };
  if (!json.is_array() || json.empty() || !std::ranges::all_of(json, is_tool)) {
    throw UserError(Problem{.file = path,
                            .what = "no list of tools",
                            .expected = R"([{"type": "function", "function": {"name": ..., "parameters": ...}}, ...])",
                            .at = "--tools"});
  }
  return text::chat::from_json(json);
}

}  // namespace hawser::generate

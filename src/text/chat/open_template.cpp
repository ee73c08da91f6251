#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/paths.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/converted_tokenizer.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::text::chat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_file(const fs::path& path) {
  return io::is_file(path.string());
}

std::string read(const fs::path& path) {
  constexpr std::int64_t kLargest = std::int64_t{16} << 20;
  return io::read_bounded(path.string(), kLargest, "cannot read the chat template");
}

constexpr const char* kFile = "chat_template.jinja";
// Where transformers writes other templates, each in a file NAME.jinja. A checkpoint has no folders.
constexpr const char *kToolUseFile = "additional_chat_templates/tool_use.jinja",
                     *kToolUseOfCheckpoint = "additional_chat_templates.tool_use.jinja";

struct TokenizerConfig {
  std::optional<std::string> chat_template, tool_use;
  std::map<std::string, std::string> tokens;
};

// The templates and tokens of a tokenizer_config.json. If there is none, the tokens that the files beside it declare.
// With a tokenizer, a file, also the tokens that it has without a declaration.
TokenizerConfig read_config(const fs::path& path, const std::string& tokenizer = "") {
  TokenizerConfig config;
  if (!is_file(path)) {
    config.tokens = named_tokens(read_declared_tokens(path.string()), tokenizer);
    return config;
  }
  const auto fail = [&](std::string what, std::string at, std::string expected = "") {
    throw UserError(
        {.file = path.string(), .what = std::move(what), .expected = std::move(expected), .at = std::move(at)});
  };
  try {
    const std::string text = read(path);
    Problems problems;
    const auto parsed = io::parse_json(text, path.string(), "", 0, problems);
    problems.throw_if_any();
    const Json& json = *parsed;
    if (!json.is_object()) fail("not a tokenizer_config.json", "", "an object");
    config.tokens = named_tokens(read_declared_tokens(path.string()), tokenizer);
    const auto found = json.find("chat_template");
    if (found == json.end() || found->is_null()) return config;
    if (found->is_string()) {
      config.chat_template = *found;
    } else if (found->is_array()) {
      // Several templates by name: `default` is the one for plain conversations.
      for (const Json& item : *found) {
        const std::string name = item.is_object() ? item.value("name", "") : "";
        if (name == "default") config.chat_template = item.at("template");
        if (name == "tool_use") config.tool_use = item.at("template");
      }
      if (!config.chat_template) fail("several chat templates, none of them named default", "chat_template");
    } else {
      fail("wrong type", "chat_template", "a string");
    }
  } catch (const Json::exception&) {
    fail("not a tokenizer_config.json", "chat_template", "strings");
  }
  return config;
}

// The template in a chat_template.jinja, with the one for conversations with tools in its folder.
std::shared_ptr<const ChatTemplate> template_of(const fs::path& file, std::map<std::string, std::string> tokens) {
  std::optional<ToolUse> tool_use;
  for (const char* name : {kToolUseFile, kToolUseOfCheckpoint}) {
    const fs::path more = file.parent_path() / name;
    if (!tool_use && is_file(more)) tool_use = ToolUse{read(more), more.string()};
  }
  return std::make_shared<const ChatTemplate>(read(file), std::move(tokens), file.string(), std::move(tool_use));
}

// That of a tokenizer_config.json, which has one.
std::shared_ptr<const ChatTemplate> template_of(const TokenizerConfig& config, const std::string& file) {
  std::optional<ToolUse> tool_use;
  if (config.tool_use) tool_use = ToolUse{*config.tool_use, file};
  return std::make_shared<const ChatTemplate>(*config.chat_template, config.tokens, file, std::move(tool_use));
}

std::string all_names() {
  std::string names;
  for (const NamedTemplate& one : named_templates()) names += cat(names.empty() ? "" : ", ", one.name);
  return names;
}

// Folder of a tokenizer.json, or the folder itself.
fs::path home_of(const std::string& tokenizer, const std::string& folder) {
  const fs::path beside = tokenizer.empty() ? "" : resolve_path(tokenizer, folder);
  return io::is_folder(beside.string()) ? beside : beside.parent_path();
}

// The file of a tokenizer, which may be a folder.
std::string file_of(const std::string& tokenizer, const std::string& folder) {
  const std::string path = resolve_path(tokenizer, folder);
  return io::is_folder(path) ? tokenizer_in(path) : path;
}

// Replaces the begin and the end of text of a built-in template that the tokenizer, a file, neither declares nor has by
// those that it has.
void take_tokenizers_own(const std::string& file, const std::map<std::string, std::string>& declared,
                         std::map<std::string, std::string>& tokens) {
  std::unique_ptr<Tokenizer> tokenizer;
  for (const char* key : {"bos_token", "eos_token"}) {
    const auto token = tokens.find(key);
    if (token == tokens.end() || declared.contains(key) || !io::is_file(file)) continue;
    try {
      if (!tokenizer) tokenizer = load_tokenizer(file);
    } catch (const UserError&) {
      return;  // who uses the tokenizer says why
    }
    const auto own = token->first == "bos_token" ? tokenizer->bos() : tokenizer->eos();
    if (own && !tokenizer->id_of(token->second)) token->second = tokenizer->surface(*own);
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '\'') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

constexpr std::string_view kSet = "{%- set ", kIs = " = '", kEnd = "' %}\n";

// Adds the tokens that as_tokenizers_own writes first: the end of an answer is found by its eos_token.
void take_first_tokens(std::string_view source, std::map<std::string, std::string>& tokens) {
  while (source.starts_with(kSet)) {
    source.remove_prefix(kSet.size());
    const std::size_t is = source.find(kIs), end = source.find(kEnd);
    if (end == std::string_view::npos || is > end) return;
    const std::string_view name = source.substr(0, is);
    if (!name.ends_with("_token")) return;
    std::string text;
    for (std::size_t i = is + kIs.size(); i < end; ++i) {
      if (source[i] == '\\' && i + 1 < end) {
        ++i;
        text += source[i] == 'n' ? '\n' : source[i];
      } else {
        text += source[i];
      }
    }
    tokens[std::string(name)] = text;
    source.remove_prefix(end + kEnd.size());
  }
}

}  // namespace

std::vector<TemplateFile> as_tokenizers_own(const std::string& wanted, const std::string& tokenizer,
                                            const std::string& folder) {
  if (wanted.empty()) return {};
  Problems ignored;
  const auto chosen = open_chat_template(wanted, tokenizer, folder, "", ignored);
  if (!chosen) return {};
  std::map<std::string, std::string> own;
  try {
    if (!tokenizer.empty()) own = read_config(home_of(tokenizer, folder) / "tokenizer_config.json").tokens;
  } catch (const UserError&) {
    own = {};  // then every token is set
  }
  std::string first;
  for (const auto& [name, text] : chosen->variables()) {
    const auto same = own.find(name);
    // The newline is not rendered: the template starts at the start of a line, as before.
    if (same == own.end() || same->second != text) first += cat(kSet, name, kIs, escaped(text), kEnd);
  }
  std::vector<TemplateFile> files{{kFile, first + chosen->source()}};
  if (const auto& tool_use = chosen->tool_use()) files.push_back({kToolUseOfCheckpoint, first + tool_use->source});
  return files;
}

std::shared_ptr<const ChatTemplate> open_chat_template(const std::string& wanted, const std::string& tokenizer,
                                                       const std::string& folder, const std::string& key,
                                                       Problems& problems) {
  try {
    const fs::path home = home_of(tokenizer, folder);
    TokenizerConfig config;
    if (wanted.empty()) {
      if (tokenizer.empty()) return nullptr;
      config = read_config(home / "tokenizer_config.json", file_of(tokenizer, folder));
      const fs::path file = home / kFile;
      if (is_file(file)) {
        take_first_tokens(read(file), config.tokens);
        return template_of(file, config.tokens);
      }
      if (!config.chat_template) return nullptr;
      return template_of(config, (home / "tokenizer_config.json").string());
    }
    for (const NamedTemplate& one : named_templates()) {
      if (wanted != one.name) continue;
      std::map<std::string, std::string> tokens = one.tokens;
      if (!tokenizer.empty()) {
        const auto declared = read_config(home / "tokenizer_config.json").tokens;
        take_tokenizers_own(file_of(tokenizer, folder), declared, tokens);
        for (const auto& [name, text] : declared) tokens[name] = text;
      }
      return std::make_shared<const ChatTemplate>(one.source, tokens, one.name);
    }
    fs::path file = resolve_path(wanted, folder);
    const bool in_folder = io::is_folder(file.string());
    if (in_folder) file /= is_file(file / kFile) ? kFile : "tokenizer_config.json";
    if (!is_file(file)) {
      problems.add({.file = wanted,
                    .what = "no such chat template",
                    .expected = cat("a file, or one of ", all_names()),
                    .at = key});
      return nullptr;
    }
    if (file.extension() != ".json") {
      const fs::path own = file.parent_path() / "tokenizer_config.json";
      if (is_file(own)) {
        config = read_config(own);
      } else if (!tokenizer.empty()) {
        config = read_config(home / "tokenizer_config.json", file_of(tokenizer, folder));
      }
      if (in_folder) return template_of(file, config.tokens);
      return std::make_shared<const ChatTemplate>(read(file), config.tokens, file.string());
    }
    config = read_config(file);
    if (!config.chat_template) {
      problems.add({.file = file.string(), .what = "no chat template in it", .expected = "chat_template", .at = key});
      return nullptr;
    }
    return template_of(config, file.string());
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return nullptr;
}

}  // namespace hawser::text::chat

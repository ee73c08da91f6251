#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "config/config.h"
#include "config/rows.h"
#include "config/schema.h"

namespace hawser {
namespace {

using nlohmann::ordered_json;

std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

// True if YAML reads the unquoted characters as this text.
bool plain(const std::string& text) {
  static const std::vector<std::string> kWords = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text.empty() || std::ranges::find(kWords, lower) != kWords.end()) return false;
  if (!std::isalpha(static_cast<unsigned char>(text[0])) && text[0] != '/' && text[0] != '_') {
    if (!text.starts_with("../") && !text.starts_with("./")) return false;
  }
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/' || c == '*' || c == '+';
  });
}

std::string yaml_text(const nlohmann::json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return plain(text) ? text : json_text(value);
  }
  if (value.is_array()) {
    std::string out = "[";
    for (const auto& item : value) out += (out.size() > 1 ? ", " : "") + yaml_text(item);
    return out + "]";
  }
  std::string text = json_text(value);
  // YAML 1.1 readers parse 1e-05 as text and 1.0e-05 as a number.
  const auto e = text.find('e');
  if (value.is_number_float() && e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

std::string help_of(const Key& key) {
  std::string help = key.help;
  if (!key.unset.empty()) help += "; default: " + key.unset;
  const bool words = key.values.find(',') != std::string::npos && !key.values.starts_with("number") &&
                     !key.values.starts_with("whole") && !key.values.starts_with("bytes");
  if (!words) return help;
  std::string values = key.values;  // what this build supports; the docs also list what is planned
  const auto open = values.find(" (not supported yet");
  if (open != std::string::npos) values.erase(open, values.find(')', open) - open + 1);
  return help + " [" + values + "]";
}

constexpr std::size_t kWidth = 120;

// Wraps text into comment lines of at most kWidth columns; line breaks in the text are kept.
void put_comment(std::string& out, const std::string& indent, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string filled = indent + "#";
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (filled.size() > indent.size() + 1 && filled.size() + 1 + word.size() > kWidth) {
        out += filled + "\n";
        filled = indent + "#";
      }
      filled += " " + word;
    }
    out += filled + "\n";
  }
}

// `KEY: VALUE   # HELP`, with the help in one column unless the value is too long; the reason is on lines above it.
void put_key(std::string& out, const Key& key, const Recipe& recipe, const std::string& why) {
  constexpr std::size_t kHelpColumn = 38;
  const auto value = key.write(recipe);
  const std::string indent = key.section().empty() ? "" : "  ";
  if (!why.empty()) put_comment(out, indent, "why: " + why);
  std::string line = indent;
  line += value.is_null() ? "# " + key.leaf() + ":" + (key.example.empty() ? "" : " " + key.example)
                          : key.leaf() + ": " + yaml_text(value);
  const std::string help = help_of(key);
  if (line.size() + 2 > kHelpColumn || kHelpColumn + help.size() + 2 > kWidth) {
    out += indent + "# " + help + "\n" + line + "\n";
    return;
  }
  line.resize(kHelpColumn, ' ');
  out += line + "# " + help + "\n";
}

std::string code_or_dash(const std::string& text) {
  return text.empty() ? "" : "`" + text + "`";
}

std::string default_of(const Key& key) {
  if (key.needed != Needed::never) return "required";
  const auto value = key.write(Recipe{});
  if (value.is_null()) return key.unset;
  return code_or_dash(yaml_text(value));
}

void put_table(std::string& out, const std::string& section) {
  out += "| key | type | default | description |\n| --- | --- | --- | --- |\n";
  for (const Key& key : schema()) {
    if (key.section() != section) continue;
    out += "| `" + key.name + "` | " + key.values + " | " + default_of(key) + " | " + key.help + " |\n";
  }
  for (const Key& key : schema()) {
    if (key.section() != section || key.choice_help.empty()) continue;
    out += "\n| `" + key.name + "` | " + key.help + " |\n| --- | --- |\n";
    for (const auto& [choice, help] : key.choice_help) out += "| `" + choice + "` | " + help + " |\n";
  }
}

// Help names pages as docs/data.md; the reference is in the same folder.
std::string with_links(const std::string& text) {
  static const std::regex kPage(R"(docs/([a-z-]+\.md))");
  return std::regex_replace(text, kPage, "[docs/$1]($1)");
}

}  // namespace

std::string checkpointing_text(const MemoryRecipe& memory) {
  return rows::checkpointing_text(memory);
}

std::string partition_text(const ParallelRecipe& parallel) {
  return rows::partition_text(parallel);
}

std::string recipe_reference_markdown() {
  std::string out =
      "# The recipe, key by key\n\n"
      "<!-- Generated from the schema table by config_test; HAWSER_UPDATE_DOCS=1 regenerates it. -->\n\n"
      "A recipe is one YAML file. Every key has a default unless it is *required*; `hawser recipe init --model DIR`\n"
      "writes a recipe with every key and its help. On the command line `--set KEY=VALUE` (repeatable, dotted:\n"
      "`--set parallel.context_parallel_degree=2`) overrides the file; an empty value restores the default.\n"
      "Text and paths in `--set` are taken as they are; other values are YAML, and so are lists of paths in `[]`.\n"
      "Relative paths in the file start at its folder, those in `--set` at the working directory; `~` is the home\n"
      "folder. All problems of a recipe are reported at once, before anything is allocated.\n\n";
  put_table(out, "");
  for (const Section& section : sections()) {
    out += "\n## " + section.name + "\n\n" + section.help + "\n\n";
    put_table(out, section.name);
  }
  return with_links(out);
}

std::string commented_recipe(const Recipe& recipe, const RecipeNotes& notes) {
  std::string out = notes.chosen_only ? "# A Hawser recipe. Keys that are not here have their defaults (see "
                                        "docs/recipe.md). Relative paths start at\n"
                                        "# this file's folder.\n"
                                      : "# A Hawser recipe: every key with its value and help (see docs/recipe.md). "
                                        "Lines with default values may be\n"
                                        "# deleted. Relative paths start at this file's folder.\n";
  const Recipe defaults;
  if (!notes.head.empty()) put_comment(out += "#\n", "", notes.head);
  std::string section;
  for (const Key& key : schema()) {
    if (notes.chosen_only && !notes.why.contains(key.name) && key.write(recipe) == key.write(defaults)) continue;
    if (key.section() != section) {
      section = key.section();
      out += section.empty() ? "\n" : "\n" + section + ":\n";
    }
    const auto why = notes.why.find(key.name);
    put_key(out, key, recipe, why == notes.why.end() ? "" : why->second);
  }
  return out;
}

std::string recipe_json(const Recipe& recipe) {
  ordered_json out;
  for (const Key& key : schema()) {
    const auto value = key.write(recipe);
    if (key.section().empty()) {
      out[key.leaf()] = value;
    } else {
      out[key.section()][key.leaf()] = value;
    }
  }
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace hawser

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/nearest.h"
#include "base/paths.h"
#include "base/text.h"
#include "config/check.h"
#include "config/check_to_write.h"
#include "config/config.h"
#include "config/convert/recognize.h"
#include "config/other_names.h"
#include "config/schema.h"
#include "config/yaml.h"
#include "io/bounded_file.h"
#include "io/json.h"

namespace hawser {
namespace {

constexpr std::uintmax_t kLargestRecipe = 1 << 20;  // avoids parsing a token file given by mistake

struct Entry {
  const Key* key = nullptr;
  YAML::Node node;
  std::string file;   // for messages: the recipe, or "--set"
  std::string place;  // "line 12", "--set"
};

// Collects entries from the file and from overrides, then stores them into the recipe.
class Reader {
 public:
  void read_file(const std::string& path);
  void read_text(const std::string& path, const std::string& text);
  void read_override(const std::string& text);
  void store(Recipe& recipe);
  void require(Recipe& recipe, Purpose purpose);
  Problems problems;
  bool keep_relative = false;  // paths of overrides stay as they are

 private:
  void walk(const YAML::Node& map, const std::string& section);
  void take(const std::string& name, const YAML::Node& node, int line);
  void unknown(const std::string& name, const YAML::Node& node, int line);
  void note_intended(const std::string& key);
  void replace_by_override(Recipe& recipe, const char* by, const char* key);
  std::string at(const std::string& name, int line) const {
    return overriding() || line < 1 ? name : cat(name, ", line ", line);
  }
  bool overriding() const { return file_ == "--set"; }

  std::string file_;
  std::string recipe_file_;
  std::map<std::string, Entry> entries_;
  std::set<std::string> seen_;      // keys given in the file being read
  std::set<std::string> intended_;  // keys that the file gives under a wrong name or in a broken section
  std::set<std::string> rejected_;  // keys whose value was rejected
};

int line_of(const YAML::Node& node) {
  return node.Mark().is_null() ? 0 : node.Mark().line + 1;
}

std::string quoted(const YAML::Node& node) {
  if (node.IsNull()) return "nothing";
  if (node.IsMap()) return "a map";
  if (node.IsScalar()) return node.Scalar().size() > 60 ? node.Scalar().substr(0, 57) + "..." : node.Scalar();
  std::string list = "[";
  for (std::size_t i = 0; i < node.size() && list.size() < 60; ++i)
    list += (i > 0 ? ", " : "") + (node[i].IsNull()           ? ""
                                   : !node[i].IsScalar()      ? "..."
                                   : node[i].Scalar().empty() ? "\"\""
                                                              : node[i].Scalar());
  return list + "]";
}

// Notes that the user meant to give `key`, under a wrong name or with a value that cannot be read: it is not reported
// as missing, too. With --set the key is rejected even if the file has a value; in the file, only if no value is given.
void Reader::note_intended(const std::string& key) {
  if (find_key(key) != nullptr) (overriding() ? rejected_ : intended_).insert(key);
}

// Assumes that the nearest key is intended; for an unknown section, the keys that have the names of its keys.
void Reader::unknown(const std::string& name, const YAML::Node& node, int line) {
  std::string hint = hint_for_other_name(name);
  note_intended(hint.substr(0, hint.find(' ')));  // a remark may follow
  if (hint.empty()) hint = nearest_key(name);
  note_intended(hint);
  for (std::size_t i = 0; node.IsMap() && i < schema().size(); ++i) {
    if (node[schema()[i].leaf()]) note_intended(schema()[i].name);
  }
  if (hint.empty()) hint = "a key of docs/recipe.md";
  problems.add({.file = file_, .what = "unknown key", .at = at(name, line), .hint = hint});
}

void Reader::take(const std::string& name, const YAML::Node& node, int line) {
  if (is_section(name) || is_key_group(name)) {
    if (!seen_.insert(name).second) {
      problems.add({.file = file_, .what = "section given twice", .at = at(name, line), .hint = "one section"});
    }
    if (node.IsMap()) {
      walk(node, name);
    } else if (!node.IsNull()) {
      problems.add({.file = file_,
                    .what = "wrong type",
                    .expected = "a section of keys",
                    .got = quoted(node),
                    .at = at(name, line)});
      for (const Key& key : schema()) {
        if (key.name.starts_with(name + ".")) note_intended(key.name);
      }
    }
    return;
  }
  const Key* key = find_key(name);
  if (key == nullptr) return unknown(name, node, line);
  if (!seen_.insert(name).second)
    problems.add({.file = file_, .what = "key given twice", .at = at(name, line), .hint = "one of the two"});
  entries_[name] = {key, node, file_, overriding() ? "--set" : cat("line ", line)};
}

void Reader::walk(const YAML::Node& map, const std::string& section) {
  for (const auto& pair : map) {
    const int line = line_of(pair.first);
    if (!pair.first.IsScalar()) {
      problems.add({.file = file_,
                    .what = "wrong type",
                    .expected = "a key",
                    .got = quoted(pair.first),
                    .at = at(section.empty() ? "the top" : section, line)});
      continue;
    }
    const std::string name = section.empty() ? pair.first.Scalar() : section + "." + pair.first.Scalar();
    take(name, pair.second, line);
  }
}

void Reader::read_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) {
    const std::string near = nearest_file(path);
    const bool is_yaml = near.ends_with(".yaml") || near.ends_with(".yml") || near.ends_with(".json");
    throw UserError({.file = path, .what = "no such recipe", .hint = is_yaml ? near : "hawser recipe init"});
  }
  if (fs::is_directory(status)) {
    const std::string inside = (fs::path(path) / "recipe.yaml").string();
    const bool has_one = fs::exists(inside, error);
    const bool is_run = fs::exists(fs::path(path) / "recipe.json", error);
    throw UserError({.file = path,
                     .what = is_run ? "the folder of a run" : "a folder",
                     .expected = "a recipe file",
                     .hint = has_one  ? inside
                             : is_run ? "the recipe that started this run, with --resume to continue it"
                                      : ""});
  }
  if (fs::is_regular_file(status) && fs::file_size(path, error) > kLargestRecipe)
    throw UserError({.file = path, .what = "too large for a recipe", .expected = "at most 1 MiB"});
  read_text(path, io::read_bounded(path, kLargestRecipe));  // it may be a pipe
}

// A file of another trainer would have an error for each of its keys.
void reject_other_trainer(const std::string& path, const YAML::Node& root) {
  const auto trainer = recognized_trainer(root);
  bool ours = false;
  for (const auto& pair : root) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    ours = ours || find_key(name) != nullptr || (is_section(name) && pair.second.IsMap());
  }
  if (!trainer || ours) return;
  throw UserError({.file = path,
                   .what = cat("a file for ", display_name(*trainer)),
                   .expected = "a recipe",
                   .hint = cat("hawser recipe convert ", shell_quoted(path))});
}

void Reader::read_text(const std::string& path, const std::string& text) {
  file_ = recipe_file_ = path;
  seen_.clear();
  const YAML::Node root = read_yaml_file(path, text);
  if (root.IsMap()) {
    reject_other_trainer(path, root);
    if (root["model_type"] && !root["model"]) {
      throw UserError({.file = path,
                       .what = "a model's config.json",
                       .expected = "a recipe",
                       .hint = cat("hawser recipe init --model ", path, ", which writes one")});
    }
    walk(root, "");
  } else if (!root.IsNull()) {
    throw UserError({.file = path,
                     .what = "not a recipe",
                     .expected = "keys and values",
                     .got = quoted(root),
                     .at = cat("line ", line_of(root))});
  }
}

void Reader::read_override(const std::string& text) {
  file_ = "--set";
  seen_.clear();
  const auto equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (equals == std::string::npos || name.empty()) {
    problems.add(
        {.file = file_, .what = "not an assignment", .expected = "KEY=VALUE", .got = text, .hint = "train.steps=10"});
    note_intended(name);
    return;
  }
  const std::string value = text.substr(equals + 1);
  const Key* key = find_key(name);
  const bool is_yaml_list = key != nullptr && key->is_list && value.starts_with('[') && value.ends_with(']');
  // "{a,b}.txt" is a glob.
  const bool is_yaml_map = key != nullptr && key->is_map && value.starts_with('{') && value.ends_with('}') &&
                           (value.find(": ") != std::string::npos || value == "{}");
  if (key != nullptr && key->is_literal && !value.empty() && !is_yaml_list && !is_yaml_map) {
    return take(name, YAML::Node(value), 0);
  }
  try {
    take(name, read_yaml(value), 0);
  } catch (const YAML::Exception& broken) {
    problems.add({.file = file_, .what = "broken YAML: " + broken.msg, .got = value, .at = name});
    note_intended(name);
  }
}

// Resolves a path or a list of paths: ~ is the home folder, and with --set (`typed`) relative paths start at the
// working directory. The key's choices are unchanged. `unknown`: the first path with a ~name that is not a user.
YAML::Node as_path(const YAML::Node& node, const Key& key, bool typed, std::string& unknown) {
  if (node.IsSequence()) {
    YAML::Node out(YAML::NodeType::Sequence);
    // A list in a list is rejected later. Aliases could make it endless.
    for (const YAML::Node& item : node) out.push_back(item.IsSequence() ? item : as_path(item, key, typed, unknown));
    return out;
  }
  if (node.IsMap()) {  // a data set, or named lists
    YAML::Node out(YAML::NodeType::Map);
    for (const auto& pair : node) {
      const bool is_path = key.is_map || (pair.first.IsScalar() && pair.first.Scalar() == "path");
      const bool nested = pair.second.IsMap();  // rejected later; aliases could make it endless
      // A name that is given twice is rejected later, too.
      out.force_insert(pair.first, is_path && !nested ? as_path(pair.second, key, typed, unknown) : pair.second);
    }
    return out;
  }
  if (node.IsScalar() && std::ranges::find(key.choices, node.Scalar()) != key.choices.end()) return node;
  if (!node.IsScalar() || node.Scalar().empty() || node.Scalar().find("://") != std::string::npos) return node;
  const auto path = expand_home(node.Scalar());
  if (!path && unknown.empty()) unknown = node.Scalar();
  if (!path) return node;
  return YAML::Node(typed ? absolute_path(*path) : *path);
}

// Of two keys that exclude each other, such as train.steps and train.epochs, the one that --set gives replaces the other
// one of the file.
void Reader::replace_by_override(Recipe& recipe, const char* by, const char* key) {
  const auto typed = [&](const char* name) {
    const auto found = entries_.find(name);
    return found != entries_.end() && found->second.file == "--set";
  };
  if (!typed(by) || entries_.at(by).node.IsNull() || typed(key)) return;
  entries_.erase(key);
  find_key(key)->reset(recipe);
  recipe.places.erase(key);
}

void Reader::store(Recipe& recipe) {
  for (const std::string& key : intended_) {
    if (!entries_.contains(key)) rejected_.insert(key);
  }
  replace_by_override(recipe, "train.steps", "train.epochs");
  replace_by_override(recipe, "train.epochs", "train.steps");
  replace_by_override(recipe, "optimizer.warmup_steps", "optimizer.warmup_ratio");
  replace_by_override(recipe, "optimizer.warmup_ratio", "optimizer.warmup_steps");
  for (const Key& key : schema()) {  // in the table's order, so that the order of problems is fixed
    const auto found = entries_.find(key.name);
    if (found == entries_.end()) continue;
    const Entry& entry = found->second;
    if (entry.node.IsNull()) {
      key.reset(recipe);
      recipe.places.erase(key.name);
      continue;
    }
    const bool typed = entry.file == "--set";
    const std::string at = typed ? key.name : key.name + ", " + entry.place;
    std::string unknown;
    const YAML::Node node = key.is_path ? as_path(entry.node, key, typed && !keep_relative, unknown) : entry.node;
    const auto rejection = unknown.empty() ? key.read(node, recipe) : std::nullopt;
    recipe.places[key.name] = entry.place;
    if (!rejection && unknown.empty()) continue;
    rejected_.insert(key.name);
    if (!unknown.empty()) {
      Problem problem = no_such_user(unknown);
      problem.file = entry.file;
      problem.at = at;
      problems.add(problem);
      continue;
    }
    problems.add(
        {.file = entry.file,
         .what = rejection->what,
         .expected = rejection->expected,
         .got = rejection->secret        ? ""
                : rejection->got.empty() ? quoted(entry.node)
                                         : rejection->got,
         .at = at,
         .hint = rejection->what == kNotSupportedYet && rejection->hint.empty() ? key.instead : rejection->hint});
  }
  recipe.rejected = rejected_;
}

void Reader::require(Recipe& recipe, Purpose purpose) {
  const auto missing = [&](const std::string& key, const std::string& hint) {
    problems.add({.file = recipe_file_, .what = "missing key", .at = key, .hint = hint, .cause = "missing key"});
    recipe.rejected.insert(key);
  };
  const auto given = [&](const std::string& key) { return recipe.places.contains(key) || rejected_.contains(key); };
  for (const Key& key : schema()) {
    const bool wanted = key.needed == Needed::always || (key.needed == Needed::to_train && purpose == Purpose::train);
    const bool empty =
        key.name == "output" && given(key.name) && !rejected_.contains(key.name) && recipe.output.empty();
    if (wanted && (!given(key.name) || empty)) {
      missing(key.name, key.name == "output" ? "output: runs/NAME" : "data: {sequence_length: 4096}");
    }
    if (key.name == "train.steps" && purpose == Purpose::train && !given(key.name) && !given("train.epochs")) {
      missing(key.name, "train: {steps: 1000}, or train: {epochs: 3}");
    }
  }
  const bool reads_text = purpose != Purpose::plan;
  const bool prepared = purpose != Purpose::prepare && given("data.prepared");
  const bool empty = given("data.train") && !rejected_.contains("data.train") && recipe.data.train.empty();
  if (empty && !prepared) {
    const Entry& entry = entries_.at("data.train");
    problems.add({.file = entry.file,
                  .what = "empty list",
                  .expected = "a path or more",
                  .at = entry.file == "--set" ? "data.train" : "data.train, " + entry.place,
                  .hint = "data: {train: [text/*.jsonl]}"});
    recipe.rejected.insert("data.train");
  }
  if (reads_text && !given("data.train") && !prepared) missing("data.train", "data: {train: [text/*.jsonl]}");
  if (purpose == Purpose::prepare && !given("output") && !given("data.prepared"))
    missing("output", "output: runs/NAME");
}

// Stores what the reader collected from the recipe at `path`, and checks it: adds to the problems of the reader.
Recipe finish(Reader& reader, const std::string& path, Purpose purpose) {
  Recipe recipe;
  recipe.file = path;
  recipe.folder = std::filesystem::path(path).parent_path().string();
  reader.store(recipe);
  reader.require(recipe, purpose);
  if (recipe.name.empty()) recipe.name = std::filesystem::path(path).stem().string();
  check_across(recipe, purpose, reader.problems);
  return recipe;
}

}  // namespace

namespace {

// Problems of different keys, grouped by their text as lines() does, but each with a cause of its own: lines() prints
// all of them, since none repeats another.
void add_each(const Problems& of_keys, Problems& problems) {
  std::vector<Problem> all = of_keys.all();
  std::vector<std::string> texts;
  for (const Problem& problem : all) texts.push_back(problem.what);
  std::ranges::stable_sort(all, {}, [&](const Problem& problem) { return std::ranges::find(texts, problem.what); });
  for (Problem& problem : all) {
    problem.cause = problem.line();
    problems.add(std::move(problem));
  }
}

}  // namespace

Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides, Purpose purpose) {
  Problems problems;
  Recipe recipe = read_recipe(path, overrides, purpose, problems);
  problems.throw_if_any();
  return recipe;
}

Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides, Purpose purpose,
                   Problems& problems) {
  Reader reader;
  reader.read_file(path);
  for (const std::string& text : overrides) reader.read_override(text);
  Recipe recipe = finish(reader, path, purpose);
  add_each(reader.problems, problems);
  return recipe;
}

void check_recipe_to_write(Recipe recipe, const std::string& text, const std::string& path, Purpose purpose) {
  Problems problems;
  check_across(recipe, purpose, problems);
  problems.throw_if_any();
  Reader reader;
  reader.read_text(path, text);
  const Recipe back = finish(reader, path, purpose);
  reader.problems.throw_if_any();
  for (const Key& key : schema()) {
    if (!key.is_path || key.write(back) == key.write(recipe)) continue;
    problems.add(
        {.file = path, .what = "a path that cannot be written into a recipe", .expected = "UTF-8", .at = key.name});
  }
  problems.throw_if_any();
}

Recipe override_recipe(Recipe base, const std::vector<std::string>& overrides, bool keep_relative) {
  Problems problems;
  Recipe recipe = override_recipe(std::move(base), overrides, keep_relative, problems);
  problems.throw_if_any();
  return recipe;
}

Recipe override_recipe(Recipe base, const std::vector<std::string>& overrides, bool keep_relative, Problems& problems) {
  Reader reader;
  reader.keep_relative = keep_relative;
  for (const std::string& text : overrides) reader.read_override(text);
  reader.store(base);
  add_each(reader.problems, problems);
  return base;
}

Recipe stored_section(const std::string& recipe_json, std::string_view section) {
  Recipe recipe;
  const auto stored = io::json_or_null(recipe_json);
  const auto keys = stored.is_object() ? stored.value(section, nlohmann::json()) : nlohmann::json();
  if (!keys.is_object()) return recipe;
  for (const Key& key : schema()) {
    const auto value = keys.find(key.leaf());
    if (key.section() != section || value == keys.end() || value->is_null()) continue;
    if (const auto rejection = key.read(YAML::Load(value->dump()), recipe)) {
      throw UserError(Problem{.what = "the checkpoint's recipe cannot be read",
                              .expected = rejection->expected,
                              .got = value->dump(),
                              .at = key.name});
    }
  }
  return recipe;
}

}  // namespace hawser

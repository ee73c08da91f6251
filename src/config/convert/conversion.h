// `Conversion`: a file of another trainer while it becomes a recipe. Internal to config/convert/.
//
//   if (const auto steps = conversion.number("max_steps")) conversion.set("train.steps", *steps, "max_steps");
#pragma once

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/convert/key_rules.h"

namespace hawser::convert {

// A key of the file. Keys of maps that are converted one by one have dotted names ("fsdp_config.offload_params"), those
// of data sets "datasets[].path".
struct Given {
  std::string name;
  YAML::Node value;
  int line = 0;
  const Rule* rule = nullptr;  // null: the trainer has no such key
};

class Conversion {
 public:
  Conversion(const Trainer& trainer, const ConvertOptions& options, const YAML::Node& root, Problems& problems);

  const Trainer& trainer() const { return trainer_; }
  std::string trainer_name() const { return display_name(trainer_.id); }
  const ConvertOptions& options() const { return options_; }
  Recipe& recipe() { return converted_.recipe; }

  // The value of a key of the trainer; null if the file does not have it, or has it empty.
  const YAML::Node* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  bool is_on(std::string_view name) const;        // of a map: one of its keys is there
  std::string text(std::string_view name) const;  // "" if there is none
  // None if it is missing; a value that is no number is a problem.
  std::optional<double> number(std::string_view name);
  std::vector<YAML::Node> entries(std::string_view list) const;  // of a list of data sets

  // Stores a value. `theirs`: the key that it comes from, for the reason in the recipe and for a rejected value.
  void set(std::string_view ours, const YAML::Node& value, std::string_view theirs, const std::string& why = "");
  void set(std::string_view ours, const std::string& value, std::string_view theirs, const std::string& why = "");
  void set(std::string_view ours, double value, std::string_view theirs, const std::string& why = "");
  // A value that the file does not have, because the other trainer's default is another one than Hawser's.
  void set_default(std::string_view ours, const std::string& value, std::string_view theirs);

  // Says that a key is not converted, whatever its rule is. No effect if the file does not have the key.
  void drop(std::string_view name, WhyDropped why, const std::string& reason);
  void drop_if_off(std::string_view name);
  void remark(const std::string& text);
  void download(const std::string& command);
  void problem(std::string_view name, Problem problem);

  // A path as the recipe has it, and as this process finds it.
  std::string path(const std::string& text) const;
  static bool exists(const std::string& text);

  // Applies the rules to all keys, then what the trainer converts as a whole.
  void run();
  Converted finish();

 private:
  void collect(const YAML::Node& root);
  void apply(const Given& given);
  int line_of(std::string_view name) const;

  const Trainer& trainer_;
  const ConvertOptions& options_;
  Problems& problems_;
  std::vector<Given> given_;
  std::vector<std::pair<std::string, DroppedKeys>> dropped_;  // by key
  Converted converted_;
};

// False for nothing, false, 0, "no", "off", "none", "disabled" and an empty text, list or map.
bool is_on(const YAML::Node& node);
// "a, b" or a list; a text with a character of regular expressions is one entry.
std::vector<std::string> list_of(const YAML::Node& node);
YAML::Node node_of(const std::vector<std::string>& texts);
std::string short_text(const YAML::Node& node);

// Takes each of the words of a text that are separated by spaces.
template <class Take>
void each_name(std::string_view names, Take take) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (end > 0) take(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

// Whether it is one of the words.
bool is_among(std::string_view names, std::string_view name);

// What all trainers have, under equal names or those of TrainerKeys. run() calls them in this order: later ones read
// what earlier ones set.
void convert_batch(Conversion& c);
void convert_duration(Conversion& c);
void convert_schedule(Conversion& c);  // and warmup
void convert_saves(Conversion& c);
void convert_evaluations(Conversion& c);
void convert_sequence_length(Conversion& c);
void convert_output(Conversion& c);
void convert_precision(Conversion& c);
void convert_optimizer(Conversion& c);
void convert_timeout(Conversion& c);
void convert_reports(Conversion& c);

}  // namespace hawser::convert

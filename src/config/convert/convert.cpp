#include "config/convert/convert.h"

#include <algorithm>

#include "base/nearest.h"
#include "base/text.h"
#include "config/convert/conversion.h"
#include "config/convert/recognize.h"
#include "config/schema.h"
#include "config/yaml.h"
#include "io/bounded_file.h"
#include "io/files.h"

namespace hawser {
namespace {

constexpr std::int64_t kLargestFile = 1 << 20;

// A trainer's key for the model has a text; the `model` of a recipe is a map.
bool has_model_of(const YAML::Node& root, const convert::Trainer& trainer) {
  const YAML::Node model = root[std::string(trainer.keys.model)];
  return model && model.IsScalar();
}

bool has_sections_of_a_recipe(const YAML::Node& root) {
  return std::ranges::any_of(sections(), [&](const Section& s) { return root[s.name] && root[s.name].IsMap(); });
}

const convert::Trainer& trainer_of(const YAML::Node& root, const ConvertOptions& options) {
  const auto from = options.from ? options.from : recognized_trainer(root);
  if (from == OtherTrainer::axolotl) return convert::axolotl();
  if (from)
    return has_model_of(root, convert::llama_factory_v1()) ? convert::llama_factory_v1() : convert::llama_factory();
  if (has_sections_of_a_recipe(root)) {
    throw UserError({.file = options.file,
                     .what = "a recipe of Hawser",
                     .expected = "a file for axolotl or LLaMA-Factory",
                     .hint = "hawser fit " + shell_quoted(options.file)});
  }
  throw UserError({.file = options.file,
                   .what = "neither axolotl's nor LLaMA-Factory's keys",
                   .expected = "base_model, model_name_or_path or model",
                   .hint = "--from axolotl or --from llama-factory"});
}

// Files of LLaMA-Factory that generate or export.
void check_that_it_trains(const convert::Conversion& c, Problems& problems) {
  if (c.trainer().id != OtherTrainer::llama_factory || c.is_on("do_train")) return;
  for (const char* name : {"export_dir", "infer_backend", "do_predict", "peft_config.export_dir"}) {
    if (!c.is_on(name)) continue;
    problems.add({.file = c.options().file,
                  .what = "the file trains nothing",
                  .expected = "do_train: true",
                  .at = name,
                  .hint = std::string_view(name).ends_with("export_dir") ? "hawser export" : "hawser generate"});
    return;
  }
}

}  // namespace

std::optional<OtherTrainer> recognized_trainer(const YAML::Node& root) {
  if (!root.IsMap()) return std::nullopt;
  if (has_model_of(root, convert::axolotl())) return OtherTrainer::axolotl;
  if (has_model_of(root, convert::llama_factory())) return OtherTrainer::llama_factory;
  if (has_model_of(root, convert::llama_factory_v1())) return OtherTrainer::llama_factory;
  return std::nullopt;
}

std::string display_name(OtherTrainer trainer) {
  return trainer == OtherTrainer::axolotl ? "axolotl" : "LLaMA-Factory";
}

std::string label_of(WhyDropped why) {
  switch (why) {
    case WhyDropped::not_needed:
      return "not needed";
    case WhyDropped::automatic:
      return "automatic";
    case WhyDropped::unsupported:
      return "not supported";
    case WhyDropped::unknown:
      return "unknown";
  }
  return "";
}

Converted convert_recipe(const ConvertOptions& options, Problems& problems) {
  if (!io::exists(options.file)) {
    throw UserError({.file = options.file, .what = "no such file", .hint = nearest_file(options.file)});
  }
  if (io::is_folder(options.file)) {
    throw UserError({.file = options.file, .what = "a folder", .expected = "a YAML file"});
  }
  const YAML::Node root = read_yaml_file(options.file, io::read_bounded(options.file, kLargestFile));
  if (!root.IsMap()) {
    throw UserError({.file = options.file, .what = "not a recipe", .expected = "keys and values"});
  }
  const convert::Trainer& trainer = trainer_of(root, options);
  Problems found;
  convert::Conversion conversion(trainer, options, root, found);
  check_that_it_trains(conversion, found);
  if (found.empty()) conversion.run();
  problems.add(found);
  return conversion.finish();
}

std::string dropped_comment(const Converted& converted, const std::string& file) {
  if (converted.dropped.empty()) return "";
  std::string out = cat("\n# Keys of ", display_name(converted.from), "'s ", file, " that the recipe does not have:\n");
  constexpr std::size_t kWidth = 118;
  for (const DroppedKeys& group : converted.dropped) {
    std::string line = "#";
    const std::string text = cat(joined(group.keys, ", "), ": ", label_of(group.why), ": ", group.reason);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
      const std::string word = text.substr(begin, end - begin);
      if (line.size() > 4 && line.size() + 1 + word.size() > kWidth) {
        out += line + "\n";
        line = "#    ";
      }
      line += " " + word;
      begin = end + 1;
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace hawser

#include "models/lora.h"

#include <algorithm>
#include <cmath>

#include "base/nearest.h"
#include "base/printable.h"
#include "models/linear_names.h"

namespace hawser::models {

namespace {

constexpr std::string_view kPattern = "(?:";  // a group, which matches as its contents do

// The module `module`, or one that contains it, is one of PEFT's modules_to_save of this name: its own name ends with
// it, also in the middle of a word. "norm" includes input_layernorm.
bool is_part_of(const std::string& module, const std::string& name) {
  for (std::size_t end = module.size();; end = module.rfind('.', end - 1)) {
    if (module.substr(0, end).ends_with(name)) return true;
    if (module.rfind('.', end - 1) == std::string::npos) return false;
  }
}

bool has_experts(const ModelDescription& description) {
  return std::ranges::any_of(description.blocks, [](const BlockDescription& block) { return block.moe.has_value(); });
}

// `mlp`: with those of an MLP. In a model with experts PEFT takes the names of an MLP for those of experts.
std::vector<std::string> linears_of(const BlockDescription& block, bool mlp) {
  const nn::AttentionConfig& attention = block.attention;
  std::vector<std::string> names;
  if (attention.q.empty()) {
    names = {attention.fused};
  } else {
    names = {attention.q, attention.k, attention.v};
  }
  names.push_back(attention.output);
  if (!mlp) return names;
  if (nn::is_gated(block.mlp.activation)) names.push_back(block.mlp.gate);
  names.push_back(block.mlp.up);
  names.push_back(block.mlp.down);
  return names;
}

// What selects the Linears that have adapters.
class Targets {
 public:
  Targets(const LoraConfig& lora, const LoraPlace& place, Problems& problems) : place_(place) {
    for (const std::string& target : lora.targets) {
      if (std::optional<ModuleName> name = module_name_of(target)) {
        (name->pattern ? patterns_ : names_).push_back(std::move(*name));
        continue;
      }
      problems.add({.file = place.targets.file,
                    .what = "not a regular expression",
                    .got = printable(text_of_target(target)),
                    .at = place.targets.at,
                    .hint = "a name such as q_proj, or .*[qv]_proj"});
    }
  }

  std::vector<std::string> select(const std::vector<std::string>& linears, const std::vector<std::string>& modules,
                                  const LoraConfig& lora, Problems& problems) const {
    std::vector<bool> selected(linears.size(), false);
    const auto mark = [&](const auto& matches) {
      bool any = false;
      for (std::size_t i = 0; i < linears.size(); ++i) {
        if (!matches(linears[i])) continue;
        selected[i] = any = true;
      }
      return any;
    };
    const auto is_saved = [&](const std::string& name) {
      return std::ranges::any_of(lora.modules_to_save, [&](const auto& module) { return is_part_of(name, module); });
    };
    for (const std::vector<ModuleName>* targets : {&names_, &patterns_}) {
      for (const ModuleName& target : *targets) {
        const bool all = target.text == kAllLinear;
        const bool found = mark([&](const std::string& name) { return all ? !is_saved(name) : target.matches(name); });
        if (!found) reject(target, linears, modules, problems);
      }
    }
    std::vector<std::string> out;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      if (!selected[i]) continue;
      out.push_back(linears[i]);
      if (!is_saved(linears[i])) continue;
      problems.add({.file = place_.modules_to_save.file,
                    .what = "a module that trains in full has an adapter",
                    .got = linears[i],
                    .at = place_.modules_to_save.at});
      break;
    }
    return out;
  }

 private:
  void reject(const ModuleName& target, const std::vector<std::string>& linears,
              const std::vector<std::string>& modules, Problems& problems) const {
    const std::vector<std::string> known = last_parts(linears);
    const bool other = std::ranges::any_of(
        modules, [&](const auto& module) { return module == target.text || module.ends_with("." + target.text); });
    problems.add({.file = place_.targets.file,
                  .what = other ? "this module cannot have an adapter" : "the model has no such Linear",
                  .expected = joined(known) + " or " + kAllLinear,
                  .got = printable(text_of_target(target.text)),
                  .at = place_.targets.at,
                  .hint = other ? std::string() : nearest(target.text, known)});
  }

  const LoraPlace& place_;
  std::vector<ModuleName> names_, patterns_;
};

// Modules whose names in files are not those in transformers, which PEFT writes and reads: routers and experts, and the
// head of GPT-NeoX.
std::vector<std::string> renamed_modules(const ModelDescription& description) {
  std::vector<std::string> out;
  if (description.head.output == "embed_out") out.push_back(description.head.output);
  for (const BlockDescription& block : description.blocks) {
    if (!block.moe) continue;
    out.push_back(block.moe->router);
    for (const std::string& of_experts : {block.moe->gate, block.moe->up, block.moe->down}) out.push_back(of_experts);
  }
  return out;
}

// A module trains in full only if the parameters that have its tensors are all of such modules.
void check_modules(const ModelDescription& description, const Model& model, const std::vector<std::string>& modules,
                   const LoraConfig& lora, const LoraPlace& place, Problems& problems) {
  const auto add = [&](Problem problem) {
    problem.file = place.modules_to_save.file;
    problem.at = place.modules_to_save.at;
    problems.add(std::move(problem));
  };
  for (const std::string& wanted : lora.modules_to_save) {
    const auto is_wanted = [&](const std::string& module) { return is_part_of(module, wanted); };
    const bool head = description.head.tied && is_part_of(description.head.output, wanted);
    if (head || (description.head.tied && is_wanted(description.embedding.table))) {
      add({.what = "the embedding and the head are one tensor, which cannot train beside adapters", .got = wanted});
    } else if (std::ranges::any_of(renamed_modules(description), is_wanted)) {
      add({.what = "transformers has another name for this module, so PEFT would lose it", .got = printable(wanted)});
    } else if (std::ranges::none_of(modules, is_wanted)) {
      const std::vector<std::string> known = last_parts(modules);
      add({.what = "the model has no such module",
           .expected = joined(known),
           .got = printable(wanted),
           .hint = nearest(wanted, known)});
    }
  }
  const auto is_saved = [&](const nn::Segment& segment) {
    return std::ranges::any_of(lora.modules_to_save,
                               [&](const auto& wanted) { return is_part_of(module_of(segment.name), wanted); });
  };
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      const auto count = std::ranges::count_if(param.segments, is_saved);
      if (count == 0 || count == static_cast<std::ptrdiff_t>(param.segments.size())) continue;
      std::vector<std::string> together;
      for (const nn::Segment& segment : param.segments) together.push_back(module_of(segment.name));
      const auto saved = std::ranges::find_if(param.segments, is_saved);
      add({.what = "these modules train in full only together",
           .expected = joined(last_parts(together)),
           .got = last_parts({module_of(saved->name)}).front()});
      return;
    }
  }
}

}  // namespace

std::string pattern_target(const std::string& text) {
  return cat(kPattern, text, ")");
}

std::string text_of_target(const std::string& target) {
  const bool is_group = target.starts_with(kPattern) && target.ends_with(")");
  return is_group ? target.substr(kPattern.size(), target.size() - kPattern.size() - 1) : target;
}

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

LoraPlace stored_place(const std::string& folder) {
  return {.targets = {.file = folder, .at = "adapter.targets"},
          .modules_to_save = {.file = folder, .at = "adapter.modules_to_save"}};
}

std::vector<std::string> adaptable_linears(const ModelDescription& description) {
  std::vector<std::string> out;
  const bool mlp = !has_experts(description);
  for (const BlockDescription& block : description.blocks) {
    for (std::string& name : linears_of(block, mlp)) out.push_back(std::move(name));
  }
  return out;
}

void add_lora(ModelDescription& description, const LoraConfig& lora, const LoraPlace& place, Problems& problems) {
  const Model model(description);
  std::vector<std::string> modules = modules_of(model);
  if (description.head.tied) modules.push_back(description.head.output);
  check_modules(description, model, modules, lora, place, problems);
  const std::vector<std::string> selected =
      Targets(lora, place, problems).select(adaptable_linears(description), modules, lora, problems);
  auto next = selected.begin();
  const bool mlp = !has_experts(description);
  for (BlockDescription& block : description.blocks) {
    const std::vector<std::string> here = linears_of(block, mlp);
    const std::size_t of_attention = block.attention.q.empty() ? 2 : 4;
    for (std::size_t i = 0; i < here.size() && next != selected.end(); ++i) {
      if (here[i] != *next) continue;
      auto& adapters = i < of_attention ? block.attention.adapters : block.mlp.adapters;
      adapters.push_back({.target = here[i],
                          .rank = lora.rank,
                          .scale = lora.scale(),
                          .dropout = lora.dropout,
                          .magnitude = lora.dora,
                          .name = lora.name});
      ++next;
    }
  }
}

nn::FlatSpecOf train_lora(nn::FlatSpecOf spec_of, std::vector<std::string> modules_to_save) {
  const auto trains = [modules = std::move(modules_to_save)](const nn::Segment& segment) {
    return is_lora_tensor(segment.name) || std::ranges::any_of(modules, [&](const std::string& module) {
             return is_part_of(module_of(segment.name), module);
           });
  };
  return nn::FlatSpecOf([of = std::move(spec_of), trains](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    spec.trainable = spec.trainable && std::ranges::all_of(param.segments, trains);
    return spec;
  });
}

bool is_lora_tensor(const std::string& name) {
  return name.find(".lora_") != std::string::npos;
}

}  // namespace hawser::models

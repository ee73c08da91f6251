#include "models/tensor_aliases.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/cat.h"

namespace hawser::models {
namespace {

// What wraps a module, anywhere in a name: DDP, torch.compile, FSDP, activation checkpointing, PEFT.
constexpr std::array<std::string_view, 5> kWrappers = {"module", "_orig_mod", "_fsdp_wrapped_module",
                                                       "_checkpoint_wrapped_module", "base_layer"};
// What begins a name: PEFT's model, and the model without its head, which transformers calls `model` or by its family.
constexpr std::array<std::string_view, 4> kPrefixes = {"base_model", "model", "gpt_neox", "transformer"};

template <std::size_t kCount>
bool is_one_of(const std::array<std::string_view, kCount>& all, std::string_view part) {
  return std::ranges::find(all, part) != all.end();
}

// The tensors of `modules` that end with `ending` are rows of one that ends with it, too.
void add_fused(std::map<std::string, std::vector<std::string>>& tensors, const std::set<std::string>& known,
               const std::string& fused, const std::vector<std::string>& modules) {
  for (const char* ending : {".weight", ".bias"}) {
    std::vector<std::string> parts;
    for (const std::string& module : modules) parts.push_back(module + ending);
    const auto is_known = [&](const std::string& part) { return known.contains(part); };
    if (std::ranges::all_of(parts, is_known)) tensors.emplace(TensorAliases::bare(fused + ending), parts);
  }
}

std::string of_expert(const std::string& pattern, std::int64_t expert) {
  const std::size_t at = pattern.find("{}");
  return at == std::string::npos ? pattern : cat(pattern.substr(0, at), expert, pattern.substr(at + 2), ".weight");
}

// transformers' own form of experts: [experts, rows, columns] of gate and up, and of down.
void add_experts(std::map<std::string, std::vector<std::string>>& tensors, const std::set<std::string>& known,
                 const nn::MoeConfig& moe) {
  const std::size_t number = moe.down.find("{}");
  if (number == std::string::npos) return;
  std::vector<std::string> bases = {moe.down.substr(0, number)};  // with a dot at the end
  const std::string of_mixtral = "block_sparse_moe";              // `mlp` in transformers 5
  if (const std::size_t at = bases.front().find(of_mixtral); at != std::string::npos) {
    bases.push_back(std::string(bases.front()).replace(at, of_mixtral.size(), "mlp"));
  }
  std::vector<std::string> gate_up, down;
  for (std::int64_t expert = 0; expert < moe.experts; ++expert) {
    for (const std::string& pattern : {moe.gate, moe.up}) gate_up.push_back(of_expert(pattern, expert));
    down.push_back(of_expert(moe.down, expert));
  }
  const auto is_known = [&](const std::string& part) { return known.contains(part); };
  for (const std::string& base : bases) {
    if (std::ranges::all_of(gate_up, is_known)) tensors.emplace(TensorAliases::bare(base + "gate_up_proj"), gate_up);
    if (std::ranges::all_of(down, is_known)) tensors.emplace(TensorAliases::bare(base + "down_proj"), down);
  }
}

}  // namespace

TensorAliases::TensorAliases(const ModelDescription& description, const std::set<std::string>& known) {
  for (const std::string& name : known) tensors_.emplace(bare(name), std::vector{name});
  const nn::HeadConfig& head = description.head;
  const std::string table = description.embedding.table + ".weight", output = head.output + ".weight";
  if (head.kind == nn::HeadKind::language_model) {
    const std::vector<std::string> weight = {head.tied ? table : output};
    for (const char* name : {"lm_head.weight", "embed_out.weight"}) tensors_.emplace(name, weight);
  }
  for (const BlockDescription& block : description.blocks) {
    const nn::AttentionConfig& attention = block.attention;
    if (!attention.q.empty()) add_fused(tensors_, known, attention.fused, {attention.q, attention.k, attention.v});
    if (block.moe) {
      add_experts(tensors_, known, *block.moe);
    } else if (!block.mlp.gate.empty()) {
      add_fused(tensors_, known, block.mlp.fused, {block.mlp.gate, block.mlp.up});
    }
  }
}

std::string TensorAliases::bare(const std::string& name) {
  std::string out;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = std::string_view(name).substr(at, end - at);
    const bool last = end == name.size();
    if (last || !(is_one_of(kWrappers, part) || (out.empty() && is_one_of(kPrefixes, part)))) {
      out += cat(out.empty() ? "" : ".", part);
    }
    at = end + 1;
  }
  return out;
}

const std::vector<std::string>& TensorAliases::tensors_of(const std::string& name) const {
  static const std::vector<std::string> none;
  const auto found = tensors_.find(bare(name));
  return found == tensors_.end() ? none : found->second;
}

}  // namespace hawser::models

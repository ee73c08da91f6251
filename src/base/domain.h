// `Domain`: which ranks have the same elements of a parameter. Decides over which ranks its flat buffer is sharded.
#pragma once

#include <iterator>

namespace hawser {

enum class Domain {
  sliced,      // Shard(dim): tensor-parallel ranks have different slices of it; without tensor and expert
               // parallelism, every parameter (nn::common_domain)
  replicated,  // Replicate: tensor-parallel ranks have equal copies: norms, biases of row-parallel Linears
  expert,      // expert-parallel ranks have different experts; tensor-parallel ranks have equal copies, or different
               // experts, too (comm::MeshSizes::expert_over_tensor)
  kv_copies,  // like sliced, but consecutive tensor-parallel ranks have equal slices: K and V with fewer key-value heads
              // than tensor-parallel ranks
};
constexpr int kDomains = 4;

constexpr const char* to_string(Domain domain) {
  constexpr const char* kNames[] = {"sliced", "replicated", "expert", "kv_copies"};
  static_assert(std::size(kNames) == kDomains);
  return kNames[static_cast<std::size_t>(domain)];
}

}  // namespace hawser

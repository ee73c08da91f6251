// `Sizes`: the sizes of a decoder, from the keys that families share, with their bounds.
#pragma once

#include <cstdint>
#include <optional>

#include "models/config_reader.h"

namespace hawser::models {

// Bounds that keep products of two sizes far below 2^63; the total number of parameters is checked separately.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxInner = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 12;
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxExperts = std::int64_t{1} << 14;
constexpr std::int64_t kMaxVocabulary = (std::int64_t{1} << 31) - 1;  // ids are int32
constexpr std::int64_t kMaxPosition = (std::int64_t{1} << 31) - 1;    // positions too

struct Sizes {
  std::int64_t vocabulary = 0, width = 0, inner = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

// What a family takes for keys that are absent.
struct SizeDefaults {
  std::optional<std::int64_t> kv_heads = std::nullopt;  // num_key_value_heads; none, or null in the file: the heads
  std::optional<std::int64_t> head_dim = std::nullopt;  // none: hidden_size / num_attention_heads
};

// Reads vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads (required),
// num_key_value_heads and head_dim, and checks that they fit each other. Every head dim is even: RoPE rotates pairs.
Sizes read_sizes(ConfigReader& config, Problems& problems, const SizeDefaults& defaults);

// Rejects a model with more parameters than Hawser can count. `experts`: MLPs of size `inner` in each block.
void check_total(ConfigReader& config, const Sizes& sizes, std::int64_t experts, std::int64_t inner);

}  // namespace hawser::models

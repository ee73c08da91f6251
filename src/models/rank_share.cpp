#include "models/rank_share.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/units.h"
#include "models/model.h"

namespace hawser::models {

namespace {

bool divides(std::int64_t count, std::int64_t parts) {
  return count % parts == 0;
}

// Consecutive tensor ranks that have equal key-value heads: more than 1 if there are fewer heads than ranks.
int copies_of(std::int64_t kv_heads, int ranks) {
  return std::max(1, ranks / static_cast<int>(kv_heads));
}

// The sizes of a model that tensor ranks divide.
struct Divided {
  std::int64_t heads = 0, kv_heads = 0, inner = 0;  // 0: not divided
};

// Whether `ranks` divide them, and if not, why: the problem has `what`, `expected` and `got`.
std::optional<Problem> why_not(const Divided& sizes, int ranks) {
  if (sizes.heads > 0 && !divides(sizes.heads, ranks)) {
    return Problem{.what = "tensor ranks do not divide the attention heads",
                   .expected = cat("a divisor of ", sizes.heads, " heads"),
                   .got = cat(ranks)};
  }
  if (sizes.kv_heads > 0 && !divides(sizes.kv_heads, ranks) && !divides(ranks, sizes.kv_heads)) {
    return Problem{.what = "tensor ranks do not divide the key-value heads",
                   .expected = cat("a divisor or a multiple of ", sizes.kv_heads, " key-value heads"),
                   .got = cat(ranks)};
  }
  if (sizes.inner > 0 && !divides(sizes.inner, ranks)) {
    return Problem{.what = "tensor ranks do not divide the inner width of the MLP",
                   .expected = cat("a divisor of ", sizes.inner),
                   .got = cat(ranks)};
  }
  return std::nullopt;
}

std::vector<Divided> divided_by_ranks(const ModelDescription& whole, const TensorModules& modules) {
  std::vector<Divided> out;
  for (const BlockDescription& block : whole.blocks) {
    Divided sizes;
    if (modules.attention) sizes.heads = block.attention.heads, sizes.kv_heads = block.attention.kv_heads;
    if (modules.mlp && !block.moe) sizes.inner = block.mlp.inner;
    out.push_back(sizes);
  }
  return out;
}

// Rows of the vocabulary on each rank, of which the last ones may be padding: GEMMs are fast with a multiple of
// kRowMultiple, unless a rank would then have padding alone.
std::int64_t vocabulary_rows(std::int64_t total, int ranks) {
  constexpr std::int64_t kRowMultiple = 16;
  const std::int64_t least = ceil_div(total, ranks), rows = round_up(least, kRowMultiple);
  return (ranks - 1) * rows < total ? rows : least;
}

bool all_divide(const std::vector<Divided>& blocks, int ranks) {
  return std::ranges::none_of(blocks, [&](const Divided& sizes) { return why_not(sizes, ranks).has_value(); });
}

}  // namespace

void check_share(const ModelDescription& whole, const RankShare& share, const Problem& place, Problems& problems) {
  const int ranks = share.tensor.count;
  if (ranks == 1) return;
  const std::int64_t vocabulary = whole.embedding.vocabulary;
  if (share.modules.vocabulary && (ranks - 1) * vocabulary_rows(vocabulary, ranks) >= vocabulary) {
    problems.add({.file = place.file,
                  .what = "too many tensor ranks for the vocabulary",
                  .expected = cat("rows for each rank, of ", vocabulary),
                  .got = cat(ranks),
                  .at = place.at});
    return;
  }
  const std::vector<Divided> blocks = divided_by_ranks(whole, share.modules);
  const auto wrong =
      std::ranges::find_if(blocks, [&](const Divided& sizes) { return why_not(sizes, ranks).has_value(); });
  if (wrong != blocks.end()) {
    Problem problem = *why_not(*wrong, ranks);
    problem.file = place.file;
    problem.at = place.at;
    int below = ranks - 1, above = ranks + 1;
    while (below > 1 && !all_divide(blocks, below)) --below;
    const int most = static_cast<int>(std::max(wrong->heads, wrong->inner));
    while (above <= most && !all_divide(blocks, above)) ++above;
    problem.hint = cat(place.hint, below);
    if (above <= most) problem.hint += cat(" or ", above);
    problems.add(std::move(problem));
    return;
  }
  const auto copies = [&](const Divided& sizes) { return copies_of(sizes.kv_heads, ranks); };
  const auto differs = std::ranges::find_if(
      blocks, [&](const Divided& sizes) { return sizes.kv_heads > 0 && copies(sizes) != copies(blocks.front()); });
  if (differs == blocks.end()) return;
  problems.add({.file = place.file,
                .what = "more tensor ranks than key-value heads, in some blocks only",
                .expected = cat("at most ", std::ranges::min(blocks, {}, &Divided::kv_heads).kv_heads),
                .got = cat(ranks),
                .at = place.at});
}

ModelDescription rank_description(ModelDescription whole, const RankShare& share) {
  const auto [part, ranks] = share.tensor;
  if (ranks == 1) return whole;
  HAWSER_CHECK(all_divide(divided_by_ranks(whole, share.modules), ranks), whole.family, " on ", ranks, " tensor ranks");
  ModelDescription d = std::move(whole);
  if (share.modules.vocabulary) {
    const std::int64_t total = d.embedding.vocabulary, own = vocabulary_rows(total, ranks);
    d.embedding.vocabulary_slice = {.begin = part * own, .total = total};
    d.embedding.vocabulary = own;
    if (!d.head.classifies()) d.head.vocabulary_slice = d.embedding.vocabulary_slice, d.head.vocabulary = own;
  }
  for (BlockDescription& block : d.blocks) {
    nn::AttentionConfig& attention = block.attention;
    attention.sliced = share.modules.attention;
    if (attention.sliced) {
      const int copies = copies_of(attention.kv_heads, ranks);
      const std::int64_t heads = attention.heads / ranks, kv_heads = attention.kv_heads * copies / ranks;
      attention.heads_slice = {.begin = part * heads, .total = attention.heads};
      attention.kv_heads_slice = {.begin = part / copies * kv_heads, .total = attention.kv_heads};
      attention.heads = heads;
      attention.kv_heads = kv_heads;
      attention.kv_copies = copies;
    }
    nn::MlpConfig& mlp = block.mlp;
    mlp.sliced = share.modules.mlp;
    if (mlp.sliced && !block.moe) {
      mlp.inner_slice = {.begin = part * (mlp.inner / ranks), .total = mlp.inner};
      mlp.inner /= ranks;
    }
  }
  return d;
}

nn::FlatSpecOf rank_specs(nn::FlatSpecOf spec_of, const RankShare& share) {
  if (share.tensor.count == 1) return spec_of;
  const nn::FlatSpecOf in_domains([of = std::move(spec_of)](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    spec.domain = param.flat.domain;
    spec.partial_gradient = param.flat.partial_gradient;
    return spec;
  });
  return share.sequence_parallel ? nn::with_sequence_parallelism(in_domains) : in_domains;
}

}  // namespace hawser::models

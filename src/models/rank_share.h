// `RankShare`: which part of a model a rank has. With tensor parallelism, ranks divide the layers of a model, as in
// Megatron-LM: attention by heads, an MLP by inner channels, embedding and head by rows of the vocabulary.
//
// Example: rank 1 of two tensor ranks that divide a model with 32 heads, 8 key-value heads, an inner width of 14,336
// and a vocabulary of 32,001.
//
//   const RankShare share{.tensor = {.index = 1, .count = 2}};
//   check_share(whole, share, place, problems);      // the sizes divide
//   const Model model(whole, spec_of, share);        // 16 heads from the 17th on, 4 key-value heads, 7,168 channels;
//                                                    // 16,016 rows of the vocabulary, the last 31 of them padding
//
// Norms, biases that are added after a sum, routers, experts and heads for classification are copies on every tensor
// rank. All tensor ranks have tensors of equal sizes, so that one plan serves them all.
#pragma once

#include "base/error.h"
#include "base/index_range.h"
#include "nn/flat.h"

namespace hawser::models {

struct ModelDescription;

// The layers that tensor ranks divide; each rank has all of the others (nn::Linear::sliced).
struct TensorModules {
  bool attention = true;
  bool mlp = true;
  bool vocabulary = true;  // embedding and head

  bool operator==(const TensorModules&) const = default;
};

struct RankShare {
  EqualShard tensor = {};          // which of how many tensor ranks
  TensorModules modules = {};      // that they divide
  bool sequence_parallel = false;  // tensor ranks also divide the rows of the residual (nn::Redistribute)

  bool operator==(const RankShare&) const = default;
};

// Adds a problem if tensor ranks cannot divide the heads, the key-value heads (or these the ranks) or the inner
// channels, with the degrees nearest to the share's that can; if a rank would have no row of the vocabulary; or if only
// some blocks would have copies of key-value heads. `place`: of what says the degree, and as its hint the words before
// a degree, "parallel.tensor_parallel_degree: ".
void check_share(const ModelDescription& whole, const RankShare& share, const Problem& place, Problems& problems);

// The description of what the rank has. The sizes divide (check_share). With one tensor rank it is `whole`.
ModelDescription rank_description(ModelDescription whole, const RankShare& share);

// `spec_of` with the domain that each parameter's layer asks for and the partial gradients of sequence parallelism.
// With one tensor rank it is `spec_of`.
nn::FlatSpecOf rank_specs(nn::FlatSpecOf spec_of, const RankShare& share);

}  // namespace hawser::models

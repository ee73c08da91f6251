// Routers of a mixture of experts (arXiv 2401.04088, 2101.03961). Shapes: T tokens, E experts, K chosen per token,
// L layers. Everything is float32 but indices; views are dense.
//
// `router_top_k`: the experts of each token and their weights.
//   p[t,:] = softmax(logits[t,:])
//   experts[t,:] = the indices of the K largest logits[t,:], largest first; of equal ones the lower index first
//   weights[t,k] = p[t,experts[t,k]] / (normalise ? sum over j of p[t,experts[t,j]] : 1)
// A row that is no token has experts kNoExpert and weights 0. Logits that are NaN count as chosen by no comparison:
// experts are in [0, E) and differ whatever the logits are.
//
// `router_statistics`: what the auxiliary losses need of one layer, over the rows that are tokens.
//   statistics[e]       number of (t, k) with experts[t,k] = e
//   statistics[E + e]   sum over t of p[t,e]
//   statistics[2 E]     sum over t of logsumexp(logits[t,:])^2
//   statistics[2 E + 1] number of tokens
// Summed in float32 or better, in an order that depends on T and E alone (CUDA: also on the number of SMs).
//
// `router_loss`: the auxiliary losses of L layers, from their statistics. n: the sum of the layers' numbers of tokens.
//   balance = E * sum over e of (sum over layers of statistics[e] / n) (sum over layers of statistics[E + e] / n)
//   z       = sum over layers of statistics[2 E] / n
//   loss[0] (+)= share * (balance_coefficient * balance + z_coefficient * z)
//   factors[l, e] = s * balance_coefficient * E * (sum over layers of statistics[e]) / n^2
//   factors[l, E] = s * z_coefficient / n                                     s = scale[0] * share
// The same for each l: factors[l, e] is the derivative of s * loss by each p[t,e], factors[l, E] that by each
// logsumexp^2. n = 0: zeros. balance is load_balancing_loss_func of Hugging Face transformers.
//
// `router_top_k_backward`: the gradient of the logits, from that of the weights and the factors of router_loss.
//   with a[t,e] = the gradient of p[t,e]:
//     dlogits[t,e] = p[t,e] (a[t,e] - sum over j of p[t,j] a[t,j])
//                    + 2 factors[E] logsumexp(logits[t,:]) p[t,e] + (what the weights give)
//   a = factors[e] (0 without factors), and without `normalise` also dweights[t,k] at experts[t,k]. With `normalise`
//   the weights give, at experts[t,k]: weights[t,k] (dweights[t,k] - sum over j of weights[t,j] dweights[t,j]).
// A row that is no token: zeros.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

constexpr std::int32_t kNoExpert = -1;
constexpr std::int64_t kMaxExperts = 1024;  // E

struct RouterTopK {
  TensorView logits;   // [T, E]
  TensorView mask;     // i32 [T]: 0: the row is no token. Empty: all are
  TensorView experts;  // i32 [T, K], written; 1 <= K <= E
  TensorView weights;  // [T, K], written
  bool normalise = true;
};
void router_top_k(Stream& stream, const RouterTopK& args);

// Elements of `statistics` and of one layer's `factors`.
constexpr std::int64_t router_statistics_size(std::int64_t experts) {
  return 2 * experts + 2;
}
constexpr std::int64_t experts_of_statistics(std::int64_t size) {
  return (size - 2) / 2;
}
constexpr std::int64_t router_factors_size(std::int64_t experts) {
  return experts + 1;
}

struct RouterStatistics {
  TensorView logits;      // [T, E]
  TensorView experts;     // i32 [T, K]; the first of a row is negative: the row is no token
  TensorView statistics;  // [router_statistics_size(E)], written
  TensorView workspace;   // u8 [router_statistics_workspace(T, E)]
};
void router_statistics(Stream& stream, const RouterStatistics& args);
std::int64_t router_statistics_workspace(std::int64_t tokens, std::int64_t experts);

struct RouterLoss {
  TensorView statistics;  // [L, router_statistics_size(E)]
  TensorView factors;     // [L, router_factors_size(E)], written; empty: not needed
  TensorView scale;       // [1]; empty: 1
  TensorView loss;        // [1], written
  double share = 1;
  double balance_coefficient = 0, z_coefficient = 0;
  bool accumulate = false;  // loss +=
};
void router_loss(Stream& stream, const RouterLoss& args);

struct RouterTopKBackward {
  TensorView logits;    // [T, E]
  TensorView experts;   // i32 [T, K], as router_top_k wrote them
  TensorView weights;   // [T, K], as router_top_k wrote them
  TensorView dweights;  // [T, K]
  TensorView factors;   // [router_factors_size(E)]; empty: zeros
  TensorView dlogits;   // [T, E], written
  bool normalise = true;
};
void router_top_k_backward(Stream& stream, const RouterTopKBackward& args);

HAWSER_BACKENDS_OF(router_top_k, RouterTopK);
HAWSER_BACKENDS_OF(router_statistics, RouterStatistics);
HAWSER_BACKENDS_OF(router_loss, RouterLoss);
HAWSER_BACKENDS_OF(router_top_k_backward, RouterTopKBackward);

}  // namespace hawser::ops

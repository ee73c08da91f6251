// `logit_statistics`, `combine_statistics`, `logit_gradients`: cross-entropy of logits whose columns are sliced over
// ranks (Megatron-LM's vocab-parallel cross-entropy, arXiv 1909.08053). The caller gathers the statistics of the ranks.
//
// A rank has columns [first_column, first_column + V) of all logits
//   z[t,v] = logits[t,v] + bias[v], or softcap * tanh((logits[t,v] + bias[v]) / softcap) if softcap is not 0
//   logit_statistics     s[0,t] = max over its v of z[t,v],  s[1,t] = sum over its v of exp(z[t,v] - s[0,t]),
//                        s[2,t] = z[t,labels[t]], 0 if another rank has that column or labels[t] < 0
//   all-gather of s over the ranks: p[r,:,:] is that of rank r
//   combine_statistics   s[0,t] = max over r of p[r,0,t],  s[1,t] = sum over r of p[r,1,t] exp(p[r,0,t] - s[0,t]),
//                        s[2,t] = sum over r of p[r,2,t]; sums in the order of the ranks
//   logit_gradients      loss_sum += sum over t with labels[t] >= 0 of (s[0,t] + log s[1,t] - s[2,t])
//                        g[t,v]    = (exp(z[t,v] - s[0,t]) / s[1,t] - [v == labels[t]]) * scale
//                                    (0 if labels[t] < 0)
//                                    * (1 - (z[t,v] / softcap)^2) with a softcap: the gradient of logits[t,v]
// The gradient of bias is the sum of g over t (ops::bias_gradient).
//
// logits float32 [T, V]; bias [V] float32 or bf16, optional: of this rank's columns; softcap >= 0, finite; labels int32
// [T]; s float32 [3, T]; p float32 [3 ranks, T]; scale float32 [1]; loss_sum float32 [2], as in linear_cross_entropy.
// g [T, V] float32 or bf16, may be logits; empty: only the loss, and then scale may be empty.
// total_columns: of all ranks; a label that is not smaller throws on the stream. A column from total_columns on is
// padding: no statistic has it, and its gradient is 0. A slice whose logits are all -inf adds nothing. Other views are
// disjoint.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct LogitStatistics {
  TensorView logits, bias, labels, statistics;
  std::int64_t first_column = 0, total_columns = 0;
  double softcap = 0;  // 0: none
};
void logit_statistics(Stream& stream, const LogitStatistics& args);

struct CombineStatistics {
  TensorView parts, statistics;
};
void combine_statistics(Stream& stream, const CombineStatistics& args);

struct LogitGradients {
  TensorView logits, bias, labels, statistics, scale, loss_sum, gradients;
  std::int64_t first_column = 0, total_columns = 0;
  double softcap = 0;  // of the statistics, too
};
void logit_gradients(Stream& stream, const LogitGradients& args);

HAWSER_BACKENDS_OF(logit_statistics, LogitStatistics);
HAWSER_BACKENDS_OF(combine_statistics, CombineStatistics);
HAWSER_BACKENDS_OF(logit_gradients, LogitGradients);

}  // namespace hawser::ops

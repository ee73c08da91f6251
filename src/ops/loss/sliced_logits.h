// `logit_statistics`, `rescale_statistics`, `logit_gradients`: cross-entropy of logits whose columns are sliced over
// ranks (Megatron-LM's vocab-parallel cross-entropy, arXiv 1909.08053). The caller reduces the statistics over the
// ranks.
//
// A rank has columns [first_column, first_column + V) of all logits z.
//   logit_statistics     s[0,t] = max over its v of z[t,v],  s[1,t] = sum over its v of exp(z[t,v] - s[0,t]),
//                        s[2,t] = z[t,labels[t]], 0 if another rank has that column or labels[t] < 0
//   MAX of s[0] over the ranks: maximum
//   rescale_statistics   s[1,t] *= exp(s[0,t] - maximum[t]),  s[0,t] = maximum[t]
//   SUM of s[1] and s[2] over the ranks
//   logit_gradients      loss_sum += sum over t with labels[t] >= 0 of (s[0,t] + log s[1,t] - s[2,t])
//                        g[t,v]    = (exp(z[t,v] - s[0,t]) / s[1,t] - [v == labels[t]]) * scale
//                                    (0 if labels[t] < 0)
//
// z float32 [T, V]; labels int32 [T]; s float32 [3, T]; maximum float32 [T]; scale float32 [1]; loss_sum float32 [2],
// as in linear_cross_entropy. g [T, V] float32 or bf16, may be z; empty: only the loss, and then scale may be empty.
// total_columns: of all ranks; a label that is not smaller throws on the stream. A column from total_columns on is
// padding: no statistic has it, and its gradient is 0. A slice whose logits are all -inf adds nothing. Other views are
// disjoint. On the CPU only, so far.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct LogitStatistics {
  TensorView logits, labels, statistics;
  std::int64_t first_column = 0, total_columns = 0;
};
void logit_statistics(Stream& stream, const LogitStatistics& args);

struct RescaleStatistics {
  TensorView statistics, maximum;
};
void rescale_statistics(Stream& stream, const RescaleStatistics& args);

struct LogitGradients {
  TensorView logits, labels, statistics, scale, loss_sum, gradients;
  std::int64_t first_column = 0, total_columns = 0;
};
void logit_gradients(Stream& stream, const LogitGradients& args);

HAWSER_BACKENDS_OF(logit_statistics, LogitStatistics);
HAWSER_BACKENDS_OF(rescale_statistics, RescaleStatistics);
HAWSER_BACKENDS_OF(logit_gradients, LogitGradients);

}  // namespace hawser::ops

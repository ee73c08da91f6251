// `Seams`: the four hooks inside layers at which parallelism is possible. A layer with the default seams is the layer
// of one device, which tests use as the reference.
//
//   seam             parallelism     what it moves                                       implementations
//   redistribute     tensor          rows of activations around sliced Linears           parallel::TensorParallel,
//                                                                                        parallel::SequenceParallel
//   attention        context         keys and values, or heads, of attention             parallel::AllGatherExchange,
//                                                                                        RingExchange, AllToAllExchange;
//                                                                                        KvCacheExchange (generation)
//   tokens           expert          rows of tokens to their experts, and back           the default
//   tensor_reduce    tensor          parts of tensors, such as statistics of sliced logits      parallel::TensorSums
//
// parallel/make_seams.h makes those of a mesh. Other exchanges of tokens are those of the tests (tests/support).
//
// What holds for all seams: the host calls a seam while it enqueues an instruction. The seam enqueues its own work on
// the streams of the LayerContext and orders it with events. Work that the layer enqueues on the compute stream
// afterwards may use the views that the seam returns.
//
// The ranks of a pipeline stage share one plan, which the first rank of the run makes. So a seam has equally many
// pieces or parts, asks for the same temporaries and enqueues the same ops in the same order on each of them. Only its
// peers, the contents of tables, and which rows a piece has (Redistribute) may depend on the rank. Two ranks that pass
// data to each other use Group::exchange: with a send and a receive in an order that depends on the rank, the plan may
// give what is received the bytes of what is still to be sent.
#pragma once

#include <memory>
#include <optional>

#include "nn/seams/attention_exchange.h"
#include "nn/seams/redistribute.h"
#include "nn/seams/tensor_reduce.h"
#include "nn/seams/token_exchange.h"

namespace hawser::nn {

struct Seams {
  std::shared_ptr<Redistribute> redistribute = std::make_shared<Redistribute>();
  std::shared_ptr<AttentionExchange> attention = std::make_shared<AttentionExchange>();
  std::shared_ptr<TokenExchange> tokens = std::make_shared<TokenExchange>();
  std::shared_ptr<TensorReduce> tensor_reduce = std::make_shared<TensorReduce>();
  std::optional<double> expert_row_bound;  // TokenExchange::Sizes::row_bound, which the plan chooses
};

}  // namespace hawser::nn

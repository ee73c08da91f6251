// `AllToAllExchange`: context parallelism by all-to-all over heads (DeepSpeed-Ulysses).
//
// Example: four ranks, 8 query heads and 2 key-value heads. Every rank has a quarter of the rows of each sequence. For
// attention, rank 1 gets the query heads 2 and 3 and key-value head 0 of all rows, computes their attention as one
// device would, and sends each rank its rows of their outputs. Ranks 0 and 1 have copies of key-value head 0, each for
// other query heads; the gradients of copies are added.
//
//   forward    q, k, v (one message) to the ranks of their heads; o back
//   backward   q, k, v, o (one message) and d_o to the ranks of their heads; dq back, then dk and dv
//
// Hybrid (a hierarchy of heads and rows): the ranks of `group` together have the rows of one rank of a ring, and
// `ring`, an exchange over them, gives each rank the keys of its heads.
//
// AttentionTensors::lse [H, T] has the log-sum-exps of this rank's heads, [H / U, U T], between forward and backward:
// as many numbers, and no rank reads those of its rows.
//
// T rows and H query heads, U ranks of the group, K key-value heads. U divides H, and it divides K or is a multiple of
// it (InternalError). Messages move on the exchange stream, in the dtype of q; gradients of copies in `kv_reduce_dtype`,
// and they are added in float32 in the order of the ranks. AttentionTensors::lse is dense.
// Source: arXiv 2309.14509; USP (arXiv 2405.07719) for both together.
#pragma once

#include <memory>

#include "comm/group.h"
#include "nn/seams.h"

namespace hawser::parallel {

class AllToAllExchange : public nn::AttentionExchange {
 public:
  // `group` outlives this. `ring`: moves the keys of a rank's heads between groups; null: the group has all keys.
  explicit AllToAllExchange(comm::Group& group, DType kv_reduce_dtype = DType::f32,
                            std::shared_ptr<nn::AttentionExchange> ring = nullptr)
      : group_(group),
        kv_reduce_dtype_(kv_reduce_dtype),
        in_ring_(ring != nullptr),
        inner_(in_ring_ ? std::move(ring) : std::make_shared<nn::AttentionExchange>()) {}

  std::unique_ptr<Call> begin(nn::LayerContext&, const AttentionMask& mask,
                              const nn::AttentionTensors& tensors) override;

 private:
  comm::Group& group_;
  DType kv_reduce_dtype_;
  bool in_ring_;
  std::shared_ptr<nn::AttentionExchange> inner_;
};

}  // namespace hawser::parallel

// `AttentionDropout`: dropout of attention's probabilities (AttentionCall::dropout). Which random numbers it draws.
//
// For query row i, key row j and query head h of a call:
//   u(h,i,j) = 2^-32 * word r % 4 of Philox4x32-10(counter {r / 4, row, sequence, step}, key_h)     (base/philox.h)
//   key_h    = words 0 and 1 of Philox4x32-10(counter {first_head + h, 0, 0, 0}, key)
// {sequence, row} is query_ids[i], and {sequence, r} is key_ids[j]. So a number depends on the head of the model and on
// both rows of the sequence, not on the call: any split of heads, queries and keys over calls and ranks, and any order
// of rows, draws the same ones.
#pragma once

#include "base/philox.h"
#include "tensor/tensor.h"

namespace hawser::ops {

struct AttentionDropout {
  double probability = 0;         // p, in [0, 1); 0: no dropout, and no other member is read
  PhiloxKey key = {};             // of (seed, layer, site): nn::LayerContext::random()
  std::int64_t first_head = 0;    // index of the call's first query head among those of the model
  TensorView step;                // i32 [1]: number of the step
  TensorView query_ids, key_ids;  // i32 [Tq, 2], i32 [Tk, 2]: number of the row's sequence in the step, index of the
                                  // row in the sequence; nn::BatchViews::row_ids
};

// key_h of head `head` of the model.
constexpr PhiloxKey attention_dropout_key(PhiloxKey key, std::int64_t head) {
  const PhiloxWords words = philox({static_cast<std::uint32_t>(head), 0, 0, 0}, key);
  return {words[0], words[1]};
}

// The counter of four keys of a query. ids: {sequence, row} of the query.
constexpr PhiloxWords attention_dropout_counter(std::uint32_t key_row, const std::int32_t* query_ids,
                                                std::int32_t step) {
  return {key_row / 4, static_cast<std::uint32_t>(query_ids[1]), static_cast<std::uint32_t>(query_ids[0]),
          static_cast<std::uint32_t>(step)};
}

}  // namespace hawser::ops

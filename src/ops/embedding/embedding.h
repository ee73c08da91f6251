// Token embedding.
//
// forward:   y[t, :] = table[ids[t], :]
// backward:  dtable[ids[t], :] += dy[t, :] for t in order; dtable is filled with zeros first unless `accumulate`
//   ids [T] int32 in [0, V): others throw on the stream; table [V, C], y [T, C], dy [T, C] act; y has the dtype of
//   table; rows of y and dy may be padded. dtable [V, C] float32 (repeated ids would lose bits in bf16).
#pragma once

#include "ops/common.h"

namespace hawser::ops {

struct EmbeddingForward {
  TensorView ids, table, y;
};
void embedding_forward(Stream& stream, const EmbeddingForward& args);

struct EmbeddingBackward {
  TensorView ids, dy, dtable;
  bool accumulate = false;
};
void embedding_backward(Stream& stream, const EmbeddingBackward& args);

}  // namespace hawser::ops

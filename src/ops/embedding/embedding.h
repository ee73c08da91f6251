// `embedding_forward`, `embedding_backward`: token embedding.
//
// forward:
//   y[t,:] = scale * table[ids[t],:]
// backward:
//   dtable[i,:] (+)= scale * sum of dy[t,:] over t with ids[t] == i, in order of t
//
// A table can be rows [first_row, first_row + V) of one of total_rows rows: an id of another row then adds nothing to
// dtable, and its row of y is zero. Its rows from total_rows on are padding. total_rows 0: the table is complete.
//
// ids [T] int32 in [0, total_rows); an id out of range throws on the stream. table [V, C], y [T, C], dy [T, C] act; y
// has the dtype of table; rows of y and dy may be padded. dtable [V, C] float32 or bf16. Each sum is float32 and is
// rounded once, however many tokens have the id; CUDA may divide a sum into parts, and adds these in order. scale is
// rounded to float32; products are float32, y is rounded once. With scale 1, y is a copy.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct EmbeddingForward {
  TensorView ids, table, y;
  double scale = 1;
  std::int64_t first_row = 0, total_rows = 0;
};
void embedding_forward(Stream& stream, const EmbeddingForward& args);

struct EmbeddingBackward {
  TensorView ids, dy, dtable;
  bool accumulate = false;
  double scale = 1;
  std::int64_t first_row = 0, total_rows = 0;
};
void embedding_backward(Stream& stream, const EmbeddingBackward& args);

HAWSER_BACKENDS_OF(embedding_forward, EmbeddingForward);
HAWSER_BACKENDS_OF(embedding_backward, EmbeddingBackward);

}  // namespace hawser::ops

// `BatchViews`: a micro-batch on the device, as the index tables that layers read.
//
// Example: one rank, one sequence of 8 rows with two documents of 5 and 3 tokens.
//
//   ids        8 tokens
//   labels     each row's next token; the last row of a document has prepare::kIgnoredLabel, -100: no target
//   positions  0 1 2 3 4 0 1 2
//   diagonal   two segments {q_begin, q_count, k_begin, k_count, q_position, k_position}:
//              {0, 5, 0, 5, 0, 0} and {5, 3, 5, 3, 0, 0}: positions count from a document's begin
//
// Segment tables are those of ops/attention/attention.h. T is the number of rows of this rank, ordered by sequence,
// then by chunk of the sequence. In shapes, `context` is the number of ranks of the context group.
//
// With an all-to-all over heads, U ranks (comm::MeshSizes::context_heads) have the same rows in attention,
// each some of the heads. A member of the ring is U ranks, the Ulysses group, so it has U T rows; the ring has R =
// context / U members. Segment tables, gather_index and the members that say so are of these rows; without it, U = 1
// and they are the rank's.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/attention_mask.h"
#include "ops/attention/attention.h"
#include "tensor/batch_table.h"
#include "tensor/tensor.h"

namespace hawser::nn {

// The tables that depend on the mask of an attention layer (AttentionConfig::mask).
struct MaskViews {
  AttentionMask mask;
  // i32 [M, 6], i32 [1]: off-diagonal blocks. A segment has the queries of a diagonal segment and, as keys, all rows of
  // the same document before them; with a mask that is not causal, all rows of the document, the queries' own included.
  // Its key rows index the keys of all ranks in sequence order: one sequence after another, each with all its rows.
  // With a causal mask and a window, queries that see no key and keys that no query sees are left out; unless
  // uniform_diagonal is set, the table then has the two halves of ops::AttentionCall::window_halves. Only with context
  // parallelism.
  TensorView off_diagonal, off_diagonal_count;
  // The table's contents if the host knows them when it enqueues, else null (ops::AttentionCall::host_segments).
  const std::vector<std::int32_t>* host_off_diagonal = nullptr;
  // i32 [S * M, 6], i32 [S], S tables of M rows: the same segments for ring attention, one table after another, by the
  // rank that has the keys. They are without those of `diagonal`, and their key rows are that rank's. With two ranks in
  // the ring and no window, S is 2: on rank 0, table 0 is empty, and table 1 has what rank 0's queries see of rank 1's
  // keys. Table i has the keys of rank i / (S / R) of the ring: of its part i % (S / R), a chunk of each sequence if
  // the mask has a window or distances, otherwise all of its rows. M and the halves are those of off_diagonal. Without
  // a window, every query of a segment sees every key, whose positions may have gaps unless the mask has distances.
  // With a mask that is not causal, this rank's own keys are in the tables, too. Only if BatchShape::source_segments.
  TensorView by_source, by_source_count;
  // The contents of each table if the host knows them when it enqueues, else null.
  const std::vector<std::vector<std::int32_t>>* host_by_source = nullptr;
  // Query-key pairs per head for OpRecord::flops, the same for every micro-batch: the visible pairs of full sequences
  // of one document, divided by R (BatchViews); diagonal_pairs: those of diagonal blocks, unless off_diagonal has them.
  // A table of by_source counts as off_diagonal_pairs / S pairs, the mean, since all ranks have one plan. With a KV
  // cache, every new row is counted as if it attended to a sequence of the maximum length. Padding and packed
  // documents, which reduce the pairs that are really computed, are ignored.
  double diagonal_pairs = 0, off_diagonal_pairs = 0;
};

struct BatchViews {
  TensorView ids;        // i32 [T]
  TensorView labels;     // i32 [T], already shifted; negative: no target
  TensorView positions;  // i32 [T], restarting in each document
  // i32 [N, 6], i32 [1]: diagonal blocks. In a segment, the query rows and the key rows are the same rows: a piece of
  // one document, contiguous in the sequence, that this rank holds. It is in one chunk or spans several chunks that are
  // adjacent in the sequence. Each row of a document is a query row of exactly one diagonal segment, a padding row of
  // none: the table is also the mask of the rows that are no padding.
  // With a KV cache, a segment has the new queries of a sequence and all its keys so far, including the new ones.
  TensorView diagonal, diagonal_count;
  // i32 [sum of M, 6], i32 [masks]: MaskViews::off_diagonal of all masks, one after another.
  TensorView off_diagonal, off_diagonal_count;
  // i32 [sum of S * M, 6], i32 [sum of S]: MaskViews::by_source of all masks, one after another.
  TensorView by_source, by_source_count;
  // One for each distinct mask of the model's attention layers.
  std::vector<MaskViews> masks;
  // i32 [T * context]: for each row in sequence order, the index of its K row in the all-gathered buffer, whose rows
  // are [R, 2, U T] (2: K, V). The index of its V row is greater by U T. Only with R > 1.
  TensorView gather_index;
  // i32 [U T]: for each row of this rank of the ring, in its order, the index of the row in [U, T]: the rows of its
  // ranks, one after another. Only with U > 1 and several sequences; rows of one sequence are in this order.
  TensorView heads_index;
  TensorView logit_positions;  // i32 [rows]: rows whose logits are computed. Only with step::Purpose::logits
  // i32 [T]: the KV cache slot that the K and V of each row are written to, or ops::kNoRow (padding). k_begin of
  // `diagonal` then indexes KV cache slots. Only with a KV cache (nn/kv_cache.h).
  TensorView slot_mapping;
  // i32 [T, 2]: number of the row's sequence in the step, and the row's index in the sequence. Padding rows have what
  // the sequence would have there. Only if the step draws random numbers (Layer::draws_random_numbers).
  TensorView row_ids;
  // i32 [context * T, 2]: row_ids of all ranks, in sequence order, and one rank of the ring after another. Only with
  // row_ids and BatchShape::all_row_ids.
  TensorView sequence_row_ids, source_row_ids;
  // i32 [U T, 2]: those of this rank of the ring. row_ids if U is 1.
  TensorView attention_row_ids;
  // i32 [T]: 1 for a token, 0 for padding. Only if a layer reads it (Layer::reads_token_mask), or operands of Linears
  // are quantized.
  TensorView token_mask;
  // Those that the model declares (models::ModelDescription::tables), by name: TableSpec::shape(T), or, with an entry
  // for each of the B sequences of a micro-batch, shape(B). Row t of the T is of sequence t / (T / B).
  std::map<std::string, TensorView, std::less<>> tables;
  // The contents of `diagonal` if the host knows them when it enqueues, else null (ops::AttentionCall::host_segments).
  const std::vector<std::int32_t>* host_diagonal = nullptr;
  // Length of a chunk in rows, if every sequence holds exactly one document, which begins at row 0, and all sequences
  // are cut into chunks at the same rows; otherwise 0. Rows after the document's end are padding, with finite values.
  // If it is not 0, chunks that follow each other on this rank are not joined into one diagonal segment: every diagonal
  // block is in one chunk, so it begins at a multiple of this length and is at most this long. In a zig-zag, a rank of
  // the ring has two chunks of each sequence, and a chunk's off-diagonal block has as keys all rows of the sequence
  // before the chunk.
  std::int64_t uniform_diagonal = 0;
  bool off_diagonal_disjoint_keys = false;  // no key row is in two off-diagonal blocks of a causal mask's table

  const MaskViews& with_mask(const AttentionMask& mask) const;  // InternalError if there is none
  // One of `tables`. InternalError if the model does not declare it, or with another dtype.
  const TensorView& table(std::string_view name, DType dtype) const;
};

// AttentionCall::blocks for a call over `diagonal`, with the `rows` of attention, U T; empty if uniform_diagonal is 0,
// or if the mask is not causal: keys after a sequence's end would be visible.
std::vector<ops::StridedBlocks> diagonal_blocks(const BatchViews& batch, const AttentionMask& mask, std::int64_t rows);

}  // namespace hawser::nn

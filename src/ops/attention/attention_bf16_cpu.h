// Attention on the CPU's bf16 units (ops/cpu/bf16_units.h): the blocks of attention_cpu.h, with GEMMs of bf16 operands
// and float32 sums. Softmax and all sums are float32. P and dS, operands of the next GEMM, are each split into the sum
// of two bf16 matrices, to a relative error below 2^-17: rounding them to one would double the error of bf16 results.
//
// It is used if q, k, v and all results of the call are bf16 and scale > 0, except for calls with softcap, slopes or
// dropout and for forward calls whose segments all have one query row.
//
// Operands of a GEMM C = A B. A is row-major. B is stored in pairs of rows, as both kinds of units read it:
//   pairs[k / 2][j] = {B[k][j], B[k + 1][j]}, k even
// Rows, columns and depths are multiples of kBf16Tile; scratch is padded with zeros.
#pragma once

#include "ops/attention/attention_cpu.h"
#include "ops/cpu/bf16_units.h"

namespace hawser::ops::cpu {

constexpr std::int64_t kBf16Tile = 32;
constexpr std::int64_t kBf16GradientRows = 128;
static_assert(kKeyBlock % kBf16Tile == 0 && kBf16GradientRows % kBf16Tile == 0);

using Bf16Pair = std::uint32_t;

// True if the call's blocks run on the bf16 units.
bool uses_bf16_units(std::initializer_list<DType> dtypes, double scale);

// Prepares the calling thread's tile registers for the blocks, for a scope. Without `used` or AMX: no effect.
class Bf16Tiles {
 public:
  explicit Bf16Tiles(bool used);
  ~Bf16Tiles();
  Bf16Tiles(const Bf16Tiles&) = delete;
  Bf16Tiles& operator=(const Bf16Tiles&) = delete;

 private:
  bool configured_;
};

// to [padded_rows, width] = from [rows, columns]; the rest is zero.
void bf16_copy_rows(const Bf16* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, Bf16* to,
                    std::int64_t padded_rows, std::int64_t width);
// rows [count, width] as B: pairs of rows; to [count / 2, width].
void bf16_pair_rows(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16Pair* to);
// The transpose of rows [count, width] as B: pairs of columns; to [width / 2, to_row], count <= to_row.
void bf16_pair_columns(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16Pair* to, std::int64_t to_row);
// The transpose of rows [count, width] as A; to [width, to_row], count <= to_row.
void bf16_transpose(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16* to, std::int64_t to_row);

struct Bf16ForwardBlock {
  const Bf16* q;      // [rows, width]
  const Bf16Pair* k;  // K transposed, [width / 2, kKeyBlock]
  const Bf16Pair* v;  // [kKeyBlock / 2, width]
  float* o;           // [rows, width], running sum
  float* max;         // [rows], running maximum of the scores times scale
  float* sums;        // [rows, kHeadPad], running sums of exponentials, one per lane
  float* scores;      // [kBf16Tile, kKeyBlock]
  Bf16 *p, *p_low;    // likewise; P is their sum
  std::int64_t rows;  // a multiple of kBf16Tile
  std::int64_t width;
  float scale;  // multiplied by log2(e)
  Band band;
};
void bf16_forward_block(const Bf16ForwardBlock& block);

struct Bf16BackwardBlock {
  const Bf16* k;                // [kKeyBlock, width]
  const Bf16* v;                // likewise
  const Bf16* k_columns;        // K transposed, [width, kKeyBlock]
  const Bf16Pair* q;            // [kBf16GradientRows / 2, width]
  const Bf16Pair* d_o;          // likewise
  const Bf16Pair* q_columns;    // Q transposed, [width / 2, kBf16GradientRows]
  const Bf16Pair* d_o_columns;  // likewise
  const float* lse;             // [kBf16GradientRows], multiplied by log2(e); +inf for rows without gradient
  const float* delta;
  float* scores;    // [kBf16Tile, kBf16GradientRows], transposed: rows are keys
  float* dp;        // likewise
  Bf16 *p, *p_low;  // likewise; P is their sum
  Bf16 *ds, *ds_low;
  Bf16Pair *ds_pairs, *ds_pairs_low;  // dS transposed, [kKeyBlock / 2, kBf16GradientRows]
  float* dq_columns;                  // a tile of dQ transposed, [width, kBf16Tile]
  float* dq;                          // [kBf16GradientRows, width], written
  float* dk;                          // [kKeyBlock, width], added to
  float* dv;
  std::int64_t rows;  // used query rows, a multiple of kBf16Tile
  std::int64_t width;
  float scale;
  Band band;
};
void bf16_backward_block(const Bf16BackwardBlock& block);

}  // namespace hawser::ops::cpu

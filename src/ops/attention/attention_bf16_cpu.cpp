#include "ops/attention/attention_bf16_cpu.h"

#define HAWSER_KERNELS "ops/attention/bf16_kernels.inc"
#include "ops/cpu/bf16_level.inc"

namespace hawser::ops::cpu {

bool uses_bf16_units(std::initializer_list<DType> dtypes, double scale) {
  return bf16_units() != Bf16Units::none && scale > 0.0 &&
         std::all_of(dtypes.begin(), dtypes.end(), [](DType dtype) { return dtype == DType::bf16; });
}

Bf16Tiles::Bf16Tiles(bool used) : configured_(used && bf16_units() == Bf16Units::amx) {
  if (configured_) avx512_bf16::load_tiles();
}

Bf16Tiles::~Bf16Tiles() {
  if (configured_) avx512_bf16::release_tiles();
}

void bf16_copy_rows(const Bf16* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, Bf16* to,
                    std::int64_t padded_rows, std::int64_t width) {
  avx512_bf16::copy_rows(from, stride, rows, columns, to, padded_rows, width);
}

void bf16_pair_rows(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16Pair* to) {
  avx512_bf16::pair_rows(rows, count, width, to);
}

void bf16_pair_columns(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16Pair* to, std::int64_t to_row) {
  avx512_bf16::pair_columns(rows, count, width, to, to_row);
}

void bf16_transpose(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16* to, std::int64_t to_row) {
  avx512_bf16::transpose_halves(rows, count, width, to, to_row);
}

void bf16_forward_block(const Bf16ForwardBlock& block) {
  if (bf16_units() == Bf16Units::amx) return avx512_bf16::forward_block<true>(block);
  avx512_bf16::forward_block<false>(block);
}

void bf16_backward_block(const Bf16BackwardBlock& block) {
  if (bf16_units() == Bf16Units::amx) return avx512_bf16::backward_block<true>(block);
  avx512_bf16::backward_block<false>(block);
}

}  // namespace hawser::ops::cpu

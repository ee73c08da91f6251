#include "ops/attention/attention_cpu.h"

namespace hawser::ops::cpu {

DropoutBlock dropout_of(const AttentionCall& args, std::int64_t head, std::int64_t query_row, std::int64_t rows,
                        std::int64_t key_row) {
  const AttentionDropout& dropout = args.dropout;
  if (dropout.probability == 0) return {};
  return {.key = attention_dropout_key(dropout.key, dropout.first_head + head),
          .step = *dropout.step.data<std::int32_t>(),
          .below = static_cast<std::uint64_t>(std::ceil(dropout.probability * 0x1p32)),
          .kept = static_cast<float>(1.0 / (1.0 - dropout.probability)),
          .queries = dropout.query_ids.data<std::int32_t>() + 2 * query_row,
          .keys = dropout.key_ids.data<std::int32_t>() + 2 * key_row,
          .rows = rows};
}

void DropoutBlock::draw(std::int64_t row, std::int64_t begin, std::int64_t end, float* factors) const {
  if (row >= rows) return;
  PhiloxWords words{};
  std::uint32_t drawn = 0;  // the four keys that `words` are of
  for (std::int64_t j = begin; j < end; ++j) {
    const auto key_row = static_cast<std::uint32_t>(keys[2 * j + 1]);
    if (j == begin || key_row / 4 != drawn) {
      words = philox(attention_dropout_counter(key_row, queries + 2 * row, step), key);
      drawn = key_row / 4;
    }
    factors[j] = words[key_row % 4] < below ? 0.0f : kept;
  }
}

}  // namespace hawser::ops::cpu

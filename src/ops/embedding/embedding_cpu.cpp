#include "ops/embedding/embedding_cpu.h"

#include <cstring>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/embedding/embedding_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

void check_ids(const char* op, const TensorView& ids, std::int64_t vocabulary) {
  const auto* id = ids.data<std::int32_t>();
  for (std::int64_t t = 0; t < ids.size(0); ++t) {
    HAWSER_CHECK(id[t] >= 0 && id[t] < vocabulary, op, ": id ", id[t], " of token ", t, " is outside [0, ", vocabulary,
                 ")");
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& args) {
  check_ids("embedding_forward", args.ids, args.table.size(0));
  const auto* ids = args.ids.data<std::int32_t>();
  const std::int64_t element = size_of(args.table.dtype());
  const auto bytes = static_cast<std::size_t>(args.table.size(1) * element);
  parallel_pieces(args.ids.size(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::memcpy(args.y.raw() + t * args.y.stride(0) * element,
                  args.table.raw() + ids[t] * args.table.stride(0) * element, bytes);
    }
  });
}

void embedding_backward(const EmbeddingBackward& args) {
  check_ids("embedding_backward", args.ids, args.dtable.size(0));
  const auto* ids = args.ids.data<std::int32_t>();
  const auto dtable = rows_of<float>(args.dtable);
  if (!args.accumulate) {
    parallel_pieces(dtable.count * dtable.columns, 4096, [&](std::int64_t begin, std::int64_t end) {
      std::fill(dtable.data + begin, dtable.data + end, 0.0f);
    });
  }
  // Threads share out the columns: every element of the table is summed by one thread, over tokens in order.
  with_act(args.dy.dtype(), [&](auto tag) {
    const auto dy = rows_of<decltype(tag)>(args.dy);
    parallel_pieces(dy.columns, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < dy.count; ++t) {
        HAWSER_DISPATCH(add_to_run, dy.row(t) + begin, dtable.row(ids[t]) + begin, end - begin);
      }
    });
  });
}

}  // namespace hawser::ops::cpu

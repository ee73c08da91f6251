#include "ops/quantize/saturation.h"

namespace hawser::ops {

void judge_saturation(Stream& stream, const JudgeSaturation& args) {
  constexpr auto kOp = "judge_saturation";
  HAWSER_CHECK(args.saturated.rank() == 1 && args.saturated.elements() > 0, kOp, ": saturated is ",
               args.saturated.text());
  expect(kOp, "saturated", args.saturated, {DType::f32}, args.saturated.shape());
  expect(kOp, "elements", args.elements, {DType::f32}, args.saturated.shape());
  expect(kOp, "worst", args.worst, {DType::f32}, {1});
  expect(kOp, "worst_site", args.worst_site, {DType::i32}, {1});
  expect(kOp, "step", args.step, {DType::i32}, {1});
  expect(kOp, "replay_step", args.replay_step, {DType::i32}, {1});
  expect(kOp, "replays", args.replays, {DType::i32}, {1});
  expect(kOp, "skip", args.skip, {DType::i32}, {1});
  HAWSER_CHECK(args.limit >= 0 && args.max_replays >= 0 && args.saturates != 0 && args.waits != 0 && args.refused != 0,
               kOp, ": limit ", args.limit, ", at most ", args.max_replays, " replays, codes ", args.saturates, ", ",
               args.waits, " and ", args.refused);
  const std::initializer_list<TensorView> written = {args.worst, args.worst_site, args.replay_step, args.replays,
                                                     args.skip};
  for (const TensorView& view : written) {
    for (const TensorView& read : {args.saturated, args.elements, args.step}) expect_apart(kOp, view, read);
    for (const TensorView& other : written) {
      if (&view != &other) expect_apart(kOp, view, other);
    }
  }
  run(stream, {kOp, OpKind::optimizer},
      {args.saturated, args.elements, args.step, args.replay_step, args.replays, args.skip}, written,
      2.0 * static_cast<double>(args.saturated.elements()), args, HAWSER_BACKENDS(judge_saturation));
}

}  // namespace hawser::ops

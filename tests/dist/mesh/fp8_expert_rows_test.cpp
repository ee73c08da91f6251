// Rows of tokens that are sent to experts in FP8.
#include <array>

#include "fp8_experts_case.h"

namespace hawser {
namespace fp8_expert_rows_test {

using testing::assembled;
using testing::Tensors;
using namespace testing::fp8_experts;

// Counts the matrices that are dispatched in FP8 and in the compute dtype.
class WatchedRows : public testing::PiecesExchange {
 public:
  WatchedRows(std::array<int, 2>& counts, comm::Group& group, int pieces, bool quantized_rows)
      : PiecesExchange(group, pieces, quantized_rows), counts_(counts) {}
  std::unique_ptr<nn::TokenExchange::Dispatch> dispatch(nn::LayerContext& ctx, const nn::TokenExchange::Routing& r,
                                                        const TensorView& x,
                                                        nn::TokenExchange::Weights weights) override {
    ++counts_[is_fp8(x.dtype()) ? 0 : 1];
    return PiecesExchange::dispatch(ctx, r, x, weights);
  }

 private:
  std::array<int, 2>& counts_;
};

// The bits of rows that are sent in the compute dtype and rounded where they arrive, scales included.
TEST(Fp8ExpertRows, HaveTheBitsOfRowsThatAreRoundedThere) {
  if (the_world->size() > 4 || the_world->size() == 1) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  const comm::MeshSizes mesh{.shard = the_world->size(), .expert = the_world->size()};
  const models::Model model = model_of(mesh);
  std::array<int, 2> sent = {};
  const auto layout = [&](Fp8Scaling scaling, bool quantized_rows) {
    plan::LayoutChoices out = layout_of(model, mesh, {.scaling = scaling, .saturation_limit = 1}, 2);
    out.token_exchange = [&sent, quantized_rows](comm::Group& expert) {
      return std::make_shared<WatchedRows>(sent, expert, 2, quantized_rows);
    };
    return out;
  };
  const auto run = [&](bool quantized_rows, Checkpointing way, bool delays) {
    plan::LayoutChoices in = layout(Fp8Scaling::delayed, quantized_rows);
    for (nn::SavePolicy& policy : in.policies) policy.checkpointing = way, policy.delay_weight_gradients = delays;
    sent = {};
    ExpertRun of(model, in);
    of.step(0);
    of.step(1);
    return assembled(of.session());
  };
  const Tensors expected = run(false, Checkpointing::none, false);
  EXPECT_EQ(sent[0], 0);
  for (const auto& [way, delays] : {std::pair{Checkpointing::none, false},
                                    {Checkpointing::selective, true},
                                    {Checkpointing::gate_up, false},
                                    {Checkpointing::full, true}}) {
    if (the_world->size() == 4 && way != Checkpointing::full) continue;
    EXPECT_TRUE(run(true, way, delays) == expected) << static_cast<int>(way) << (delays ? ", delayed" : "");
    EXPECT_GE(sent[0], 2 * 2 * 3);  // of each step and layer: x twice, for the gradient of a weight, too, and dy once
  }
  EXPECT_THROW(plan::plan_rank(model, plan::derive(layout(Fp8Scaling::current, true), model), step::Purpose::train, 0),
               InternalError);
}

}  // namespace fp8_expert_rows_test
}  // namespace hawser

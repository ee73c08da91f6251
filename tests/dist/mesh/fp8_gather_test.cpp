// Sequence parallelism whose gathers move FP8: rows that are rounded before the gather, with the scale that all tensor
// ranks share, have the bits of rows that are rounded after it.
#include "tensor_case.h"

namespace hawser {
namespace fp8_gather_test {

using testing::Trained;

struct Run {
  Trained trained;
  std::int64_t sent = 0;  // bytes of a step that tensor ranks exchange
};

std::int64_t bytes_sent(const models::Model& model, const plan::LayoutChoices& layout) {
  const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  std::int64_t bytes = 0;
  for (const TraceItem& item : plan.trace.items) {
    if (item.record.collective.kind == CollectiveKind::exchange) bytes += item.record.collective.bytes;
  }
  return bytes;
}

// The toy's blocks have row-parallel Linears with a bias, whose dy is gathered as it is, and without.
Run run(const nn::SavePolicy& policy, std::int64_t kv_heads, bool quantized) {
  models::ModelDescription whole = testing::divisible(testing::toy_description(false));
  for (models::BlockDescription& block : whole.blocks) block.attention.kv_heads = kv_heads;
  comm::MeshSizes mesh{.tensor = 2};
  mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
  const int part = comm::coordinate_of(the_world->rank().value(), mesh).tensor;
  const nn::FlatSpecOf own = [](const nn::Param& param) { return param.flat; };
  const models::Model model(testing::half_of(whole, part, testing::kSequence),
                            nn::with_sequence_parallelism(nn::with_fp8_weights(own, [](int) { return true; })));
  plan::LayoutChoices layout = testing::toy_layout({.mesh = mesh}, model);
  layout.sequence_parallel = true;
  layout.policies.assign(layout.policies.size(), policy);
  plan::set_formats(layout, model, {.saturation_limit = 1});
  if (policy.delay_weight_gradients) layout.schedule.group = 2;
  layout.gathers_quantized = quantized;
  return {testing::train(model, layout), bytes_sent(model, layout)};
}

using Fp8Gather = testing::CaseTest<testing::MeshCase>;

TEST_P(Fp8Gather, OfRoundedRowsHasTheBitsOfRowsRoundedAfter) {
  const nn::SavePolicy& policy = GetParam().policy;
  const std::int64_t kv_heads = policy.delay_weight_gradients ? 1 : 2;  // 1: W of q, k and v is two parameters
  const auto [rounded, fewer] = run(policy, kv_heads, true);
  const auto [gathered, more] = run(policy, kv_heads, false);
  EXPECT_EQ(rounded.losses, gathered.losses);
  EXPECT_EQ(rounded.clips, gathered.clips);
  ASSERT_EQ(rounded.after.size(), gathered.after.size());
  int amaxes = 0;
  for (const auto& [name, values] : gathered.after) {
    EXPECT_TRUE(rounded.after.at(name) == values) << name;
    amaxes += name.starts_with("quantization/amax_history/") && values.front() > 0 ? 1 : 0;
  }
  EXPECT_EQ(amaxes, 2 * 8);  // of x and dy of all Linears
  EXPECT_LT(fewer, more);
  EXPECT_GT(fewer, more / 4);  // float32 sums, and what is read as it is
}

std::vector<testing::MeshCase> two_tensor_ranks() {
  if (the_world->size() != 2) return {};
  return {{.mesh = {.tensor = 2}},
          {.mesh = {.tensor = 2}, .policy = {.checkpointing = Checkpointing::full, .delay_weight_gradients = true}}};
}
INSTANTIATE_TEST_SUITE_P(Policies, Fp8Gather, ::testing::ValuesIn(two_tensor_ranks()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Gather);  // two tensor ranks

}  // namespace fp8_gather_test
}  // namespace hawser

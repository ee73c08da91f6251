// Sequence parallelism whose gathers move FP8: rows that are rounded before the gather, with the scale that all tensor
// ranks share, have the bits of rows that are rounded after it.
#include "tensor_case.h"

namespace hawser {
namespace fp8_gather_test {

using testing::Trained;

// Counts what is gathered, by dtype.
class CountedGathers : public testing::SequenceParallel {
 public:
  CountedGathers(comm::Group& group, bool quantized, std::map<DType, int>& counts)
      : SequenceParallel(group), quantized_(quantized), counts_(counts) {}
  std::unique_ptr<Gather> gather(nn::LayerContext& ctx, const nn::Scaled& x) override {
    ++counts_[x.view.dtype()];
    return SequenceParallel::gather(ctx, x);
  }
  bool gathers_quantized() const override { return quantized_; }

 private:
  bool quantized_;
  std::map<DType, int>& counts_;
};

// The toy's blocks have row-parallel Linears with a bias, whose dy is gathered as it is, and without.
Trained run(const nn::SavePolicy& policy, std::int64_t kv_heads, bool quantized, std::map<DType, int>& counts) {
  models::ModelDescription whole = testing::toy_description(false);
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
  layout.replace_seams = [&](nn::Seams& seams, comm::Mesh& groups) {
    seams.redistribute = std::make_shared<CountedGathers>(groups.tensor(), quantized, counts);
    seams.tensor_reduce = std::make_shared<testing::TensorSums>(groups.tensor());
  };
  return testing::train(model, layout);
}

using Fp8Gather = testing::CaseTest<testing::MeshCase>;

TEST_P(Fp8Gather, OfRoundedRowsHasTheBitsOfRowsRoundedAfter) {
  const nn::SavePolicy& policy = GetParam().policy;
  const std::int64_t kv_heads = policy.delay_weight_gradients ? 1 : 2;  // 1: W of q, k and v is two parameters
  std::map<DType, int> before, after;
  const Trained rounded = run(policy, kv_heads, true, before), gathered = run(policy, kv_heads, false, after);
  EXPECT_EQ(rounded.losses, gathered.losses);
  EXPECT_EQ(rounded.clips, gathered.clips);
  ASSERT_EQ(rounded.after.size(), gathered.after.size());
  int amaxes = 0;
  for (const auto& [name, values] : gathered.after) {
    EXPECT_TRUE(rounded.after.at(name) == values) << name;
    amaxes += name.starts_with("quantization/amax_history/") && values.front() > 0 ? 1 : 0;
  }
  EXPECT_EQ(amaxes, 2 * 8);  // of x and dy of all Linears
  EXPECT_EQ(after.count(DType::f8e4m3) + after.count(DType::f8e5m2), 0u);
  EXPECT_GT(before[DType::f8e4m3], 0);  // x
  EXPECT_GT(before[DType::f8e5m2], 0);  // dy
  EXPECT_LT(before[DType::f32], after[DType::f32]);
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

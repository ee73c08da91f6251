// Scales of weights and operands in FP8 on tensor ranks.
#include "delayed_scaling.h"
#include "tensor_case.h"

namespace hawser {
namespace tensor_scales_test {

using testing::CaseName;
using testing::CaseTest;
using testing::half_of;
using testing::MeshCase;
using testing::train;
using testing::Trained;

// Embedding and head are not cut.
nn::FlatSpec spec_of(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  if (param.name.find("layers.") == std::string::npos) spec.domain = Domain::replicated;
  return spec;
}

using TensorScales = CaseTest<MeshCase>;

// The scale of a sliced weight is that of the global tensor, equal on its tensor ranks and saved once; so are the
// scales of x and dy, whose slices, and rows of sequence parallelism, have other maxima.
TEST_P(TensorScales, AreThoseOfOneRank) {
  const MeshCase& c = GetParam();
  const auto with_scales = [](nn::FlatSpec spec, const nn::Param& param) {
    if (param.name.ends_with("_proj.weight")) spec.scaled = true;
    return spec;
  };
  const auto quantize = [](plan::LayoutChoices& layout) {
    layout.quantizer = std::make_shared<testing::DelayedScaling>();
    for (nn::SavePolicy& policy : layout.policies) {
      for (int site = 0; site < static_cast<int>(nn::Site::logits); ++site) {
        policy.formats[static_cast<std::size_t>(site)] = LinearFormat::fp8_delayed;
      }
    }
  };
  const models::ModelDescription whole = testing::divisible(testing::toy_description());
  const int part = comm::coordinate_of(the_world->rank().value(), c.mesh).tensor;
  const nn::FlatSpecOf spec = [&](const nn::Param& param) { return with_scales(spec_of(param), param); };
  const models::Model model(half_of(whole, part, c.division),
                            c.division.sequence_parallel ? nn::with_sequence_parallelism(spec) : spec);
  plan::LayoutChoices layout = testing::toy_layout(c, model);
  quantize(layout);
  const Trained ours = train(model, layout, {.inputs = {0}});

  const models::Model one(whole, [&](const nn::Param& param) { return with_scales(nn::common_domain(param), param); });
  plan::LayoutChoices of_one = testing::toy_layout({}, one);
  quantize(of_one);
  const Trained expected = testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    const testing::ToySteps steps(one, of_one, self->coordinate(), 2LL * layout.data_ranks() * 2);
    const auto device = rank_device();
    engine::Session session(one, plan::derive(of_one, one), *device, *self, {step::Purpose::train});
    session.initialise(3);
    Trained trained{.before = testing::states_of(session)};
    testing::take_steps(session, steps, {.inputs = {0}}, trained);
    trained.after = testing::states_of(session);
    return trained;
  });
  EXPECT_TRUE(ours.before == expected.before);  // with the scales of the weights
  int compared = 0;
  for (const auto& [name, values] : expected.after) {
    if (!name.starts_with("quantization/amax_history/")) continue;
    EXPECT_NEAR(ours.after.at(name).front(), values.front(), 2e-2 * values.front()) << name;
    compared += values.front() > 0 ? 1 : 0;
  }
  EXPECT_GE(compared, 8 + 2);  // every x; a small dy is 0 with the first scale, and all dy before it
}

std::vector<MeshCase> two_tensor_ranks_with_shards() {
  const int world = the_world->size();
  if (world < 4) return {};
  std::vector<MeshCase> out(3, {.mesh = {.tensor = 2, .shard = world / 2}});
  out[1].division.whole_mlp = 1;
  out[2].division.sequence_parallel = true;
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, TensorScales, ::testing::ValuesIn(two_tensor_ranks_with_shards()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TensorScales);  // two tensor ranks with two shards need four ranks

}  // namespace tensor_scales_test
}  // namespace hawser

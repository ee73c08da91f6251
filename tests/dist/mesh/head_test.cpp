// A vocabulary projection with a bias and soft-capped logits, sliced over the tensor ranks and not: a vocabulary of 67
// does not divide, and the last rank has a column of padding.
#include "generate_case.h"
#include "tensor_case.h"

namespace hawser {
namespace head_test {

using testing::CaseName;
using testing::CaseTest;
using testing::Division;
using testing::MeshAndOneRank;
using testing::TensorCase;

// Most logits of the toy are between 0 and 3: many are near to the cap.
models::ModelDescription capped_toy(bool tied) {
  models::ModelDescription d = testing::toy_description(tied);
  d.head.bias = true;
  d.head.softcap = 2;
  return d;
}

TensorCase case_of(bool tied, int tensor, const Division& division) {
  TensorCase c{.model = tied ? "tied" : "untied",
               .on = {.mesh = {.tensor = tensor, .shard = the_world->size() / tensor}, .division = division},
               .whole = capped_toy(tied)};
  c.on.mesh.kv_copies = testing::kv_copies(c.whole, tensor);
  return c;
}

using HeadBias = CaseTest<TensorCase>;

// The bias is the head's own parameter, although a tied weight is the embedding's. Its gradient is of a rank's columns,
// an equal copy, or a part of a sum over the ranks' rows.
TEST_P(HeadBias, AndSoftcapTrainLikeOneRank) {
  const MeshAndOneRank trained = testing::expect_like_one_rank(GetParam());
  if (!GetParam().first_step) return;
  for (const float value : trained.mesh.before.at("lm_head.bias")) ASSERT_EQ(value, 0);
  double moved = 0;
  for (const float value : trained.mesh.after.at("lm_head.bias")) moved += std::abs(value);
  EXPECT_GT(moved, 1e-3);
}

std::vector<TensorCase> divisions() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 2 || world > 4) return out;  // long on eight ranks
  const Division copies, rows{.sequence_parallel = true};
  for (const bool tied : {true, false}) {
    for (const Division& division : {testing::kVocabulary, testing::kSequence, copies, rows}) {
      out.push_back(case_of(tied, world, division));
      out.back().first_step = true;
      // Later steps read the bias.
      if (tied == division.sequence_parallel) out.push_back(case_of(tied, world == 4 ? 2 : world, division));
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Divisions, HeadBias, ::testing::ValuesIn(divisions()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HeadBias);

using HeadWithoutItsBias = CaseTest<TensorCase>;

TEST_P(HeadWithoutItsBias, TrainsLikeOneRank) {
  const MeshAndOneRank trained = testing::expect_like_one_rank(GetParam());
  EXPECT_TRUE(trained.mesh.after.at("lm_head.bias") == trained.mesh.before.at("lm_head.bias"));
  EXPECT_FALSE(trained.mesh.after.contains("optimizer/exp_avg/lm_head.bias"));
}

std::vector<TensorCase> frozen_biases() {
  std::vector<TensorCase> out;
  if (the_world->size() != 2) return out;
  for (const Division& division : {testing::kSequence, Division{}}) {
    TensorCase c = case_of(true, 2, division);
    c.model = "tied_frozen_bias";
    c.spec = nn::FlatSpecOf([](const nn::Param& param) {
      nn::FlatSpec spec = param.flat;
      spec.trainable = param.name != "lm_head.bias";
      return spec;
    });
    c.first_step = true;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Divisions, HeadWithoutItsBias, ::testing::ValuesIn(frozen_biases()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HeadWithoutItsBias);  // two tensor ranks

// The logits of two passes over one token each, with a bias of random numbers.
std::vector<float> logits_of(const models::Model& model, const generate::Ranks& ranks) {
  const auto device = rank_device();
  const plan::Layout layout =
      generate::pass_layouts({}, model, {.sequences = 1, .positions = 4}, 1, device->kind(), ranks).front();
  const auto mesh = ranks.world == nullptr ? comm::make_self_mesh() : rank_mesh(layout.mesh);
  engine::Session session(model, layout, *device, *mesh, {step::Purpose::logits});
  session.initialise(3);
  const models::ParamIndex& place = model.head_params().back();
  const nn::Param& bias = model.flat(place.flat).params()[static_cast<std::size_t>(place.index)];
  EXPECT_EQ(bias.name, "lm_head.bias");
  const TensorView values = model.flat(place.flat).view(session.state().flat(place.flat).stored, place.index);
  const std::int64_t begin = bias.segments.front().slice->begin;
  for (std::int64_t i = 0; i < bias.segments.front().rows; ++i) {
    values.data<float>()[i] = static_cast<float>(RandomStream(5, "bias").normal(static_cast<std::uint64_t>(begin + i)));
  }
  session.parameters_changed();
  std::vector<float> all;
  for (const std::int32_t position : {0, 1}) {
    auto batch = std::make_shared<step::HostBatch>();
    batch->ids = {3 + position * 7};
    batch->positions = batch->slot_mapping = {position};
    batch->diagonal = {0, 1, 0, position + 1, position, 0};
    batch->logit_positions = {0};
    batch->token_mask = {1};
    step::StepInput input;
    input.batches.push_back(std::move(batch));
    const step::StepOutput output = session.enqueue(step::Purpose::logits, input);
    session.synchronize();
    all.insert(all.end(), output.logits->begin(), output.logits->end());
  }
  return all;
}

TEST(Head, LogitsOfGenerationAreThoseOfOneRank) {
  const int world = the_world->size();
  if (world < 2 || world > 4) GTEST_SKIP() << "two or four tensor ranks";
  models::ModelDescription whole = testing::divisible(capped_toy(false));
  const models::Model one(whole),
      part(testing::part_of(whole, the_world->rank().value(), world, testing::kVocabulary), testing::own_spec);
  const std::vector<float> expected = testing::on_one_rank([&] { return logits_of(one, {}); });
  const std::vector<float> got = logits_of(part, testing::generation::ranks_of({.tensor = world}));
  ASSERT_EQ(got.size(), expected.size());
  float largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
    largest = std::max(largest, std::abs(expected[i]));
  }
  EXPECT_GT(largest, 1);  // of at most 2
  EXPECT_LT(largest, 2);
}

}  // namespace head_test
}  // namespace hawser

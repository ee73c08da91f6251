// A model whose parameters have domains that do not fit the mesh is rejected before anything runs. One rank plans.
#include "toy_training.h"

namespace hawser {
namespace domains_test {

nn::FlatSpec own(const nn::Param& param) {
  return param.flat;
}

// Rank 0 of the mesh: its part of the model, with the last block's MLP as experts if the mesh divides them.
models::ModelDescription part_on(const comm::MeshSizes& mesh, bool experts, std::int64_t kv_heads = 2) {
  models::ModelDescription d = testing::divisible(testing::toy_with_adapters(0));
  for (models::BlockDescription& block : d.blocks) block.attention.kv_heads = kv_heads;
  if (experts) {
    d.blocks.back().mlp.adapters.clear();
    testing::set_experts(d, 1, 8, 2);
    d.blocks.back().moe->experts_shard = {.index = 0, .count = mesh.expert};
  }
  return mesh.tensor == 1 ? d : testing::part_of(std::move(d), 0, mesh.tensor, {.vocabulary = true});
}

// What plan_rank() throws; "" if it plans.
std::string rejection(const models::ModelDescription& part, const comm::MeshSizes& mesh, const nn::FlatSpecOf& spec,
                      bool sequence_parallel = false) {
  const models::Model model(part, spec);
  const plan::LayoutChoices layout =
      testing::toy_layout({.mesh = mesh, .division = {.sequence_parallel = sequence_parallel}}, model);
  try {
    plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

void expect_text(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

// The layer's own spec, with `change` for the parameters whose names end with `end`.
nn::FlatSpecOf changed(const std::string& end, const std::function<void(nn::FlatSpec&)>& change) {
  return nn::FlatSpecOf([=](const nn::Param& param) {
    nn::FlatSpec spec = param.flat;
    if (param.name.ends_with(end)) change(spec);
    return spec;
  });
}

nn::FlatSpecOf in_domain(const std::string& end, Domain domain) {
  return changed(end, [domain](nn::FlatSpec& spec) {
    spec.domain = domain;
    spec.partial_gradient = false;
  });
}

TEST(Domains, OfTensorRanksAreSlicesOrCopies) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const comm::MeshSizes mesh{.tensor = 2};
  const models::ModelDescription part = part_on(mesh, false);
  EXPECT_EQ(rejection(part, mesh, own), "");
  EXPECT_EQ(rejection(part, mesh, nn::with_sequence_parallelism(own), true), "");
  EXPECT_EQ(rejection(part_on({}, false), {}, nn::common_domain), "");
  EXPECT_EQ(rejection(part_on({}, false), {}, own), "");
  const models::ModelDescription with_whole =
      testing::part_of(testing::divisible(testing::toy_with_adapters(0)), 0, 2,
                       {.vocabulary = true, .whole_attention = 0, .whole_mlp = 1});
  EXPECT_EQ(rejection(with_whole, mesh, own), "");
  EXPECT_EQ(rejection(with_whole, mesh, nn::with_sequence_parallelism(own), true), "");

  expect_text(rejection(part, mesh, nn::common_domain),
              {"Domain::sliced", "2 tensor ranks", "0 of 1 segments are slices, not all"});
  expect_text(rejection(part, mesh, in_domain("0.input_layernorm.weight", Domain::sliced)),
              {"model.layers.0.input_layernorm.weight, Domain::sliced", "0 of 1 segments are slices, not all"});
  expect_text(rejection(part, mesh, in_domain("1.mlp.down_proj.weight", Domain::replicated)),
              {"model.layers.1.mlp.down_proj.weight, Domain::replicated", "1 of 1 segments are slices, not none"});
  expect_text(rejection(part_on({}, false), mesh, own), {"Domain::sliced", "segments are slices, not all"});
}

TEST(Domains, OfCopiesOfKeysAndValuesFitTheirNumber) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  for (const std::int64_t kv_heads : {1, 2}) {
    const comm::MeshSizes mesh{.tensor = 4, .kv_copies = static_cast<int>(4 / kv_heads)};
    const models::ModelDescription part = part_on(mesh, false, kv_heads);
    EXPECT_EQ(rejection(part, mesh, own), "");
    EXPECT_EQ(rejection(part, {.tensor = 4}, own), "");  // the layout takes it from the model
    if (kv_heads == 1) continue;
    expect_text(rejection(part, {.tensor = 4, .kv_copies = 4}, own),
                {"Domain::kv_copies", "4 tensor ranks", "2 of 2 segments are slices, not none"});
  }
}

TEST(Domains, OfExpertsAreTheirOwn) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const comm::MeshSizes experts{.shard = 2, .expert = 2}, both{.tensor = 2, .shard = 2, .expert = 2},
      tensor{.tensor = 2};
  for (const comm::MeshSizes& mesh : {experts, both, tensor}) {
    const models::ModelDescription part = part_on(mesh, true);
    const std::string ranks = cat(mesh.expert, " expert ranks");
    EXPECT_EQ(rejection(part, mesh, own), "");
    expect_text(rejection(part, mesh, in_domain(".down.weight", Domain::replicated)),
                {"model.layers.1.block_sparse_moe.experts", ".down.weight, Domain::replicated", ranks,
                 "experts, which have Domain::expert"});
    expect_text(rejection(part, mesh, in_domain("block_sparse_moe.gate.weight", Domain::expert)),
                {"block_sparse_moe.gate.weight, Domain::expert", ranks, "no experts"});
  }
  expect_text(rejection(part_on(experts, true), experts, nn::common_domain),
              {"Domain::sliced", "experts, which have Domain::expert"});
}

TEST(Domains, PartialGradientsAreThoseOfTheLayer) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const comm::MeshSizes mesh{.tensor = 2};
  const models::ModelDescription part = part_on(mesh, false);
  const auto partial = [](bool is) { return [is](nn::FlatSpec& spec) { spec.partial_gradient = is; }; };
  expect_text(
      rejection(part, mesh, changed("o_proj.lora_B.weight", partial(false))),
      {"model.layers.0.self_attn.o_proj.lora_B.weight, Domain::replicated", "parts of its gradient, not equal"});
  expect_text(rejection(part, mesh, changed("1.input_layernorm.weight", partial(true))),
              {"model.layers.1.input_layernorm.weight, Domain::replicated", "equal copies of its gradient, not parts"});
  expect_text(rejection(part, mesh, own, true), {"layernorm.weight, Domain::replicated", "parts of its gradient"});
  expect_text(rejection(part, mesh, nn::with_sequence_parallelism(own)), {"equal copies of its gradient, not parts"});
}

}  // namespace domains_test
}  // namespace hawser

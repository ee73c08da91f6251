// Adapters over tensor ranks, beside a base that is not quantized or in NF4: A and B are slices or copies as the Linear's
// form says, and every mesh trains like one rank.
#include "models/lora.h"
#include "tensor_case.h"

namespace hawser {
namespace tensor_adapters_test {

using testing::CaseName;
using testing::CaseTest;
using testing::divided_mesh;
using testing::kSequence;
using testing::kVocabulary;
using testing::TensorCase;
using testing::train_own_adapters;
using testing::with_kv_copies;

const nn::SavePolicy kFull{.checkpointing = Checkpointing::full}, kDelayed{.delay_weight_gradients = true};

nn::FlatSpec train_adapters_of_blocks(const nn::Param& param) {
  nn::FlatSpec spec = testing::spec_without_vocabulary(param);
  spec.trainable = testing::is_adapter(param.name);
  return spec;
}

using TensorAdapters = CaseTest<TensorCase>;

TEST_P(TensorAdapters, TrainLikeOneRank) {
  testing::expect_like_one_rank(GetParam());
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TensorAdapters);

// A frozen base with trainable adapters, whose dropout draws the same numbers on every mesh and in every pass:
// recomputed ones, delayed weight gradients, with two micro-batches in flight. A of a column-parallel Linear and B of a
// row-parallel one are copies with partial gradients.
std::vector<TensorCase> adapters() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  const auto add = [&](const comm::MeshSizes& mesh, const nn::SavePolicy& policy) {
    out.push_back({.model = "adapters",
                   .on = {.mesh = mesh, .policy = policy},
                   .whole = testing::toy_with_adapters(0.25),
                   .spec = train_adapters_of_blocks});
  };
  add({.shard = world}, kFull);
  add({.shard = world}, kDelayed);
  if (world >= 2) add({.context = 2, .shard = 1, .replicate = world / 2}, {});
  if (world < 4) return out;
  add({.tensor = 2, .shard = world / 2}, kFull);
  add({.tensor = 2, .context = 2, .shard = world / 4}, kDelayed);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Adapters, TensorAdapters, ::testing::ValuesIn(adapters()), CaseName());

// The base in NF4: a tensor rank's rows and columns are whole blocks, which have the bits of the complete tensor's. Of
// a wider MLP the columns of ranks cut blocks (nn::with_whole_blocks). With double quantization the groups of scales are
// the complete tensor's, also of one that is q in a flat, and copies of k and v in another.
std::vector<TensorCase> adapters_on_blocks() {
  if (the_world->size() < 2 || the_world->size() > 4) return {};
  std::vector<TensorCase> out;
  for (const DType form : {DType::nf4, DType::nf4_double}) {
    TensorCase c{.model = cat("adapters_on_", to_string(form)),
                 .whole = testing::toy_of_nf4_blocks(),
                 .spec = nn::with_nf4_weights(
                     train_own_adapters, [](int) { return true; }, form)};
    testing::add_toy_adapters(c.whole, 0.25);
    c.on = {.mesh = divided_mesh(), .policy = kFull, .division = kSequence};
    out.push_back(c);
    c.model += "_cut";
    for (models::BlockDescription& block : c.whole.blocks) block.mlp.inner = 192;
    c.on = {.mesh = divided_mesh(), .policy = kDelayed, .division = kVocabulary};
    out.push_back(c);
  }
  const models::ModelDescription fused = testing::with_fused_qkv(testing::toy_of_nf4_blocks(), 1);
  TensorCase c{.model = "adapters_on_fused_nf4_double",
               .on = {.mesh = with_kv_copies(divided_mesh(), fused), .policy = kFull, .division = kSequence},
               .whole = fused,
               .spec = nn::with_nf4_weights(
                   train_own_adapters, [](int) { return true; }, DType::nf4_double)};
  for (models::BlockDescription& block : c.whole.blocks) {
    block.attention.adapters = {{block.attention.fused, 3, 2.0}};
  }
  out.push_back(c);
  return out;
}
INSTANTIATE_TEST_SUITE_P(AdaptersOnBlocks, TensorAdapters, ::testing::ValuesIn(adapters_on_blocks()), CaseName());

// What freezes the base leaves domains and partial gradients as the layers of tensor ranks need them: norms and the
// head train beside adapters of all kinds.
std::vector<TensorCase> spec_of_adapters() {
  if (the_world->size() < 2) return {};
  TensorCase c{.model = "lora",
               .whole = testing::toy_description(false),
               .spec = models::train_lora(testing::own_spec, {"input_layernorm", "lm_head", "model.norm"})};
  Problems problems;
  models::add_lora(c.whole, {.rank = 3, .alpha = 6, .dropout = 0.25}, {}, problems);
  HAWSER_CHECK(problems.empty(), problems.lines());
  c.on = {.mesh = divided_mesh(), .policy = kFull, .division = kVocabulary};
  std::vector<TensorCase> out{c};
  for (models::BlockDescription& block : c.whole.blocks) block.attention.kv_heads = 1;
  c.on = {.mesh = with_kv_copies(divided_mesh(), c.whole), .policy = kDelayed, .division = kSequence};
  out.push_back(c);
  return out;
}
INSTANTIATE_TEST_SUITE_P(SpecOfAdapters, TensorAdapters, ::testing::ValuesIn(spec_of_adapters()), CaseName());

// The same with magnitudes of rows (DoRA): those of a column-parallel Linear are cut like its rows, those of a
// row-parallel one are copies with partial gradients, and its norms are sums over the tensor ranks. Magnitudes start
// with the norms of rows that several ranks have, and that several shards cut.
std::vector<TensorCase> magnitudes() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  const auto add = [&](double dropout, const comm::MeshSizes& mesh, const nn::SavePolicy& policy) {
    out.push_back({.model = dropout > 0 ? "magnitudes_and_dropout" : "magnitudes",
                   .on = {.mesh = mesh, .policy = policy},
                   .whole = testing::toy_with_adapters(dropout, true),
                   .spec = train_adapters_of_blocks});
  };
  add(0, {.shard = world}, kFull);
  add(0.25, {.shard = world}, kDelayed);
  if (world < 4) return out;
  add(0, {.tensor = 2, .shard = world / 2}, kDelayed);
  add(0.25, {.tensor = 2, .context = 2, .shard = world / 4}, kFull);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Magnitudes, TensorAdapters, ::testing::ValuesIn(magnitudes()), CaseName());

}  // namespace tensor_adapters_test
}  // namespace hawser

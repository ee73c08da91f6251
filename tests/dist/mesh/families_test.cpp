// Models of every family on meshes: loss, gradients, and the experts that tokens choose are those of one rank.
#include <filesystem>
#include <set>

#include "base/testing/test_paths.h"
#include "engine/open_model.h"
#include "ops/moe/router.h"
#include "outcome.h"

namespace hawser {
namespace families_test {

namespace fs = std::filesystem;
using testing::Case;
using testing::Outcome;

std::vector<std::string> families() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(testing::kSourceFolder) / "tests/golden/families")) {
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  }
  return {names.begin(), names.end()};
}

// The numbers of tokens of each expert are equal, and so are the losses of the routers.
void compare_routing(const std::string& text, const models::Model& model, const Outcome& mesh, const Outcome& one) {
  ASSERT_EQ(mesh.statistics.size(), one.statistics.size()) << text;
  EXPECT_NEAR(mesh.auxiliary_loss, one.auxiliary_loss, 1e-5 * one.auxiliary_loss + 1e-9) << text;
  std::size_t at = 0;
  for (const models::BlockDescription& block : model.description().blocks) {
    if (!block.moe) continue;
    double chosen = 0;
    for (std::int64_t e = 0; e < block.moe->experts; ++e) {
      const std::size_t s = at + static_cast<std::size_t>(e);
      EXPECT_EQ(mesh.statistics[s], one.statistics[s]) << text << ": statistic " << s;
      chosen += one.statistics[s];
    }
    at += static_cast<std::size_t>(ops::router_statistics_size(block.moe->experts));
    EXPECT_EQ(chosen, static_cast<double>(block.moe->top_k) * one.statistics[at - 2]) << text;
    EXPECT_EQ(mesh.statistics[at - 1], one.statistics[at - 1]) << text;
  }
  EXPECT_EQ(at, one.statistics.size()) << text;
}

class FamilyMesh : public ::testing::TestWithParam<std::string> {};

// Pairwise: each family has a third of the meshes with context parallelism and one of the others, with options in turn.
TEST_P(FamilyMesh, EqualsOneRank) {
  const std::vector<std::string> names = families();
  const auto number = static_cast<std::size_t>(std::find(names.begin(), names.end(), GetParam()) - names.begin()) +
                      static_cast<std::size_t>(the_world->size());
  Problems problems;
  engine::OpenModel opened = engine::open_model(
      (fs::path(testing::kSourceFolder) / "tests/golden/families" / GetParam()).string(), false, problems);
  ASSERT_EQ(problems.lines(), "");
  const models::Model& model = *opened.model;

  // One micro-batch of each step is the same sequences on every mesh: routers have a loss of each micro-batch.
  std::map<std::pair<std::int64_t, int>, Outcome> references;
  const auto check = [&](Case c) {
    const plan::LayoutChoices layout = testing::layout_of(c, model);
    const std::int64_t sequences = 2 * layout.data_ranks(), batch_size = sequences * c.accumulation;
    const auto mesh = rank_mesh(layout.mesh);
    const Outcome ours = testing::run(model, layout, *mesh, batch_size, c.random_delay_s, &*opened.weights);
    Outcome& one = references[{sequences, c.accumulation}];
    if (one.gradients.empty()) {
      plan::LayoutChoices alone = testing::layout_of(testing::Case{}, model);
      alone.batch_sizes.sequences = sequences;
      one = testing::on_one_rank(
          [&] { return testing::run(model, alone, *comm::make_self_mesh(), batch_size, 0, &*opened.weights); });
    }
    const std::string text = GetParam() + " " + c.text();
    EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss) << text;
    compare_routing(text, model, ours, one);
    testing::compare_shards(c, ours, one, 1e-5);
  };

  std::vector<Case> with_context, without;
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    (mesh.context == 1 || mesh.context == 8 ? without : with_context).push_back(mesh);
  }
  for (std::size_t i = number % 3; i < with_context.size(); i += 3) {
    Case c = with_context[i];
    c.by_work = (number + i) % 2 == 0;
    c.checkpointing = i % 2 == 0 ? Checkpointing::selective : Checkpointing::none;
    c.random_delay_s = number % 4 == 0 ? 0.0005 : 0;
    check(c);
  }
  Case c = without[number % without.size()];
  c.checkpointing = number % 2 == 0 ? Checkpointing::projections : Checkpointing::full;
  c.delay_weight_gradients = true;
  c.accumulation = c.in_flight = 2;
  check(c);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyMesh, ::testing::ValuesIn(families()),
                         [](const ::testing::TestParamInfo<std::string>& of) { return of.param; });

}  // namespace families_test
}  // namespace hawser

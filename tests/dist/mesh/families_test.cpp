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
using testing::MeshCase;
using testing::Outcome;

std::vector<std::string> families() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(testing::kSourceFolder) / "tests/golden/families")) {
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  }
  return {names.begin(), names.end()};
}

// The numbers of tokens of each expert are equal, and so are the losses of the routers.
void expect_routing(const models::Model& model, const Outcome& mesh, const Outcome& one) {
  ASSERT_EQ(mesh.statistics.size(), one.statistics.size());
  EXPECT_NEAR(mesh.auxiliary_loss, one.auxiliary_loss, 1e-5 * one.auxiliary_loss + 1e-9);
  std::size_t at = 0;
  for (const models::BlockDescription& block : model.description().blocks) {
    if (!block.moe) continue;
    double chosen = 0;
    for (std::int64_t e = 0; e < block.moe->experts; ++e) {
      const std::size_t s = at + static_cast<std::size_t>(e);
      EXPECT_EQ(mesh.statistics[s], one.statistics[s]) << "statistic " << s;
      chosen += one.statistics[s];
    }
    at += static_cast<std::size_t>(ops::router_statistics_size(block.moe->experts));
    EXPECT_EQ(chosen, static_cast<double>(block.moe->top_k) * one.statistics[at - 1]);
    EXPECT_EQ(mesh.statistics[at - 1], one.statistics[at - 1]);
  }
  EXPECT_EQ(at, one.statistics.size());
}

struct FamilyCase {
  std::string family;
  MeshCase on;

  std::string name() const { return testing::joined(family, on.name()); }
  friend void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name(); }
};

using Family = testing::CaseTest<FamilyCase>;

TEST_P(Family, EqualsOneRank) {
  const auto& [family, c] = GetParam();
  Problems problems;
  engine::OpenModel opened = engine::open_model(
      (fs::path(testing::kSourceFolder) / "tests/golden/families" / family).string(), false, problems);
  ASSERT_EQ(problems.lines(), "");
  const models::Model& model = *opened.model;
  const plan::LayoutChoices layout = testing::layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  const Outcome ours = testing::run(model, layout, *mesh, c.batch_size(), c.random_delay_s, &*opened.weights);
  // One micro-batch of each step is the same sequences on every mesh: routers have a loss of each micro-batch.
  static std::map<std::tuple<std::string, int, int>, Outcome> references;
  Outcome& one = references[{family, c.data_ranks(), c.micro_batches}];
  if (one.gradients.empty()) {
    plan::LayoutChoices of_one = testing::layout_of({}, model);
    of_one.batch_sizes.sequences = 2LL * c.data_ranks();
    one = testing::on_one_rank([&, batch_size = c.batch_size()] {
      return testing::run(model, of_one, *comm::make_self_mesh(), batch_size, 0, &*opened.weights);
    });
  }
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  expect_routing(model, ours, one);
  testing::expect_gradients(c.mesh, ours, one, 1e-5);
}

// Pairwise: each family has a third of the meshes with context parallelism and one of the others, with options in turn.
std::vector<FamilyCase> families_and_meshes() {
  std::vector<FamilyCase> out;
  std::vector<MeshCase> with_context, without;
  for (const MeshCase& c : testing::meshes()) {
    (c.mesh.context == 1 || c.mesh.context == 8 ? without : with_context).push_back(c);
  }
  auto number = static_cast<std::size_t>(the_world->size());
  for (const std::string& family : families()) {
    for (std::size_t i = number % 3; i < with_context.size(); i += 3) {
      MeshCase c = with_context[i];
      c.by_work = (number + i) % 2 == 0;
      c.policy.checkpointing = i % 2 == 0 ? Checkpointing::selective : Checkpointing::none;
      c.random_delay_s = number % 4 == 0 ? 0.0005 : 0;
      out.push_back({family, c});
    }
    MeshCase c = without[number % without.size()];
    c.policy = {.checkpointing = number % 2 == 0 ? Checkpointing::projections : Checkpointing::full,
                .delay_weight_gradients = true};
    c.micro_batches = c.in_flight = 2;
    out.push_back({family, c});
    ++number;
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Families, Family, ::testing::ValuesIn(families_and_meshes()), testing::CaseName());

}  // namespace families_test
}  // namespace hawser

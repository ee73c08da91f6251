// Experts on every mesh: the tokens of a step choose the same experts whatever ranks they are on, and the losses, their
// statistics and the states after some steps are those of one rank.
#include "ops/moe/router.h"
#include "toy_training.h"

namespace hawser {
namespace moe_test {

using testing::Tensors;

struct TrainedRouters {
  std::vector<double> losses, auxiliary;
  std::vector<std::vector<float>> statistics;  // of each step
  Tensors first, after;                        // the states after the first step and the last
  auto fields() { return std::tie(losses, auxiliary, statistics, first, after); }
};

TrainedRouters trained(const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh,
                       std::int64_t batch_size, bool one_rank) {
  const testing::ToySteps steps(model, layout, mesh.coordinate(), batch_size);
  const auto device = rank_device({.threads = 1, .random_delay_s = 2e-4, .delay_seed = 5});
  engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train}, std::nullopt,
                          {.replay = true});
  session.initialise(3);
  session.set_progress({.loss_scale = 8});
  TrainedRouters result;
  const auto states = [&] { return one_rank ? testing::states_of(session) : testing::assembled(session); };
  for (int i = 0; i < 2; ++i) {
    step::StepInput input = steps.input(i);
    input.record.learning_rate = 0.01f;
    const step::StepOutput output = session.enqueue(step::Purpose::train, input);
    session.synchronize();
    result.losses.push_back(output.result->loss_sum.value());
    result.auxiliary.push_back(output.result->auxiliary_loss);
    result.statistics.push_back(*output.auxiliary_statistics);
    if (i == 0) result.first = states();
  }
  result.after = states();
  return result;
}

// The largest difference of a tensor from the other's, relative to its norm, among names that begin with `of`. The
// gradient of a key's bias is zero up to rounding.
double distance(const Tensors& a, const Tensors& b, const std::string& of) {
  double largest = 0;
  for (const auto& [name, values] : b) {
    if (name.ends_with("k_proj.bias") || !name.starts_with(of)) continue;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{a.at(name).at(i)} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
    if (norm > 0) largest = std::max(largest, std::sqrt(difference / norm));
  }
  return largest;
}

std::int64_t tokens_of(const std::vector<float>& statistics, std::int64_t experts) {
  return static_cast<std::int64_t>(statistics[static_cast<std::size_t>(2 * experts + 1)]);
}

void expect_equal(const TrainedRouters& many, const TrainedRouters& one, std::int64_t experts) {
  const auto size = static_cast<std::size_t>(ops::router_statistics_size(experts));
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]);
    EXPECT_NEAR(many.auxiliary[i], one.auxiliary[i], 1e-5 * one.auxiliary[i]);
    ASSERT_EQ(many.statistics[i].size(), one.statistics[i].size());
    for (std::size_t s = 0; s < one.statistics[i].size(); ++s) {
      const double expected = one.statistics[i][s], got = many.statistics[i][s];
      const bool count = s % size < static_cast<std::size_t>(experts) || s % size == size - 1;
      if (count) {
        EXPECT_EQ(got, expected) << "step " << i << ", statistic " << s;
      }
      EXPECT_NEAR(got, expected, 1e-4 * expected);
    }
  }
  EXPECT_LT(distance(many.first, one.first, "optimizer/exp_avg/"), 2e-5);  // the gradients
  EXPECT_LT(distance(many.after, one.after, ""), 1e-3);  // AdamW magnifies differences of small gradients
}

using Experts = testing::CaseTest<testing::MeshCase>;

TEST_P(Experts, TrainLikeOneRank) {
  const testing::MeshCase& c = GetParam();
  const models::Model model(testing::toy_with_experts());
  const std::int64_t experts = model.description().blocks[0].moe->experts;
  const plan::LayoutChoices layout = testing::clipped_layout(c, model);
  const std::int64_t sequences = 2LL * c.data_ranks(), batch_size = c.batch_size();
  const auto mesh = rank_mesh(layout.mesh);
  const TrainedRouters many = trained(model, layout, *mesh, batch_size, false);
  plan::LayoutChoices of_one;
  of_one.batch_sizes = testing::toy_batch(1);
  of_one.batch_sizes.sequences = sequences;
  of_one.policies.assign(static_cast<std::size_t>(model.layers()), {});
  of_one.gradient_clip = layout.gradient_clip;
  const TrainedRouters one =
      testing::on_one_rank([&] { return trained(model, of_one, *comm::make_self_mesh(), batch_size, true); });
  expect_equal(many, one, experts);
  EXPECT_GT(one.auxiliary.front(), 0.3);  // balanced: 1, times the coefficient
  // Padding rows count nowhere.
  EXPECT_LT(tokens_of(one.statistics[0], experts), batch_size * testing::kToyLength);
  double chosen = 0;
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) chosen += one.statistics[0][e];
  EXPECT_EQ(chosen, 2.0 * static_cast<double>(tokens_of(one.statistics[0], experts)));
}

// Every mesh, packed documents with padding, policies in turn. A micro-batch of all ranks together is one of one rank.
std::vector<testing::MeshCase> in_turn() {
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::gate_up,
                                         Checkpointing::selective};
  std::vector<testing::MeshCase> out;
  for (testing::MeshCase c : testing::sharded_meshes()) {
    const std::size_t turn = out.size() + static_cast<std::size_t>(the_world->size());
    c.compute = DType::f32;
    c.policy = {.checkpointing = kPolicies[turn % 4], .delay_weight_gradients = turn / 2 % 2 == 0};
    c.micro_batches = c.in_flight = turn % 2 == 0 ? 2 : 1;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Experts, ::testing::ValuesIn(in_turn()), testing::CaseName());

// More experts than some ranks' tokens choose: experts without tokens on one rank, and on all.
TEST(Experts, SomeHaveNoToken) {
  if (the_world->size() > 2) GTEST_SKIP() << "two ranks are enough";
  models::ModelDescription description = testing::toy_with_experts(40, 1);
  for (models::BlockDescription& block : description.blocks) block.moe->normalise_top_k = false;
  const models::Model model(std::move(description));
  plan::LayoutChoices layout;
  layout.mesh = {.shard = the_world->size()};
  layout.batch_sizes = testing::toy_batch(1);
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
  layout.gradient_clip = 0.02;
  const auto mesh = rank_mesh(layout.mesh);
  const TrainedRouters many = trained(model, layout, *mesh, 2 * the_world->size(), false);
  layout.mesh = {};
  layout.batch_sizes.sequences = 2 * the_world->size();
  const TrainedRouters one = testing::on_one_rank(
      [&] { return trained(model, layout, *comm::make_self_mesh(), 2 * the_world->size(), true); });
  expect_equal(many, one, 40);
  EXPECT_GT(std::count(one.statistics[0].begin(), one.statistics[0].begin() + 40, 0.0f), 0);
}

// The gradient of the model's loss and the auxiliary losses together, by differences: of the losses of each
// micro-batch, or, with given statistics, of all of them together.
TEST(Experts, GradientEqualsDifferencesOfTheLoss) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const models::Model model(testing::toy_with_experts());
  for (const bool given : {false, true}) {
    plan::LayoutChoices layout;
    layout.batch_sizes = testing::toy_batch(1);
    layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
    const auto gradients_of = given ? step::Purpose::gradient_norms_of_part : step::Purpose::gradient_norms;
    const auto self = comm::make_self_mesh();
    const testing::ToySteps steps(model, layout, self->coordinate(), 4);
    ASSERT_EQ(layout.micro_batches, 2);
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, *self, {gradients_of, step::Purpose::loss});
    session.initialise(3);
    step::StepInput both = steps.input(0);
    const auto run = [&](step::Purpose purpose, const step::StepInput& input) {
      const step::StepOutput output = session.enqueue(purpose, input);
      session.synchronize();
      return output;
    };
    std::vector<double> statistics;
    // The loss of the model plus that of the routers, over both micro-batches.
    const auto total = [&] {
      double cross_entropy = 0, routers = 0;
      statistics.assign(2 * 12, 0);
      for (std::size_t m = 0; m < 2; ++m) {
        step::StepInput one = both;
        one.batches = {both.batches[m]};
        const step::StepOutput output = run(step::Purpose::loss, one);
        cross_entropy += output.result->loss_sum.value() / static_cast<double>(steps.targets(0));
        routers += output.result->auxiliary_loss / 2;
        for (std::size_t s = 0; s < statistics.size(); ++s) statistics[s] += (*output.auxiliary_statistics)[s];
      }
      if (given) {
        routers = 0;
        const auto sum = [&](std::size_t s) { return statistics[s] + statistics[12 + s]; };
        for (std::size_t e = 0; e < 5; ++e) routers += 0.3 * 5 * sum(e) / sum(11) * sum(5 + e) / sum(11);
        routers += 0.05 * sum(10) / sum(11);
      }
      return cross_entropy + routers;
    };
    const double loss = total();
    both.auxiliary_statistics.assign(statistics.begin(), statistics.end());
    const step::StepOutput output = run(gradients_of, both);
    EXPECT_NEAR(output.result->loss_sum.value() / static_cast<double>(steps.targets(0)) + output.result->auxiliary_loss,
                loss, 1e-5 * loss);
    int checked = 0;
    for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
      const nn::Flat& flat = model.flat(f);
      for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
        const std::string& name = flat.params()[static_cast<std::size_t>(p)].name;
        if (!name.ends_with("block_sparse_moe.gate.weight") &&
            !name.ends_with("0.block_sparse_moe.experts.down.weight")) {
          continue;
        }
        run(gradients_of, both);
        const TensorView gradients = session.executor(gradients_of).gradient_shard(f);
        // The largest element, whose difference float32 losses resolve.
        std::int64_t at = flat.offset(p);
        for (std::int64_t i = 0; i < flat.params()[static_cast<std::size_t>(p)].elements(); ++i) {
          const auto magnitude = [&](std::int64_t index) { return std::abs(gradients.data<float>()[index]); };
          if (magnitude(flat.offset(p) + i) > magnitude(at)) at = flat.offset(p) + i;
        }
        const float gradient = gradients.data<float>()[at];
        float& weight = session.state().flat(f).stored.data<float>()[at];
        const float before = weight;
        const auto loss_at = [&](float value) {
          weight = value;
          session.parameters_changed();
          return total();
        };
        const float step = 2e-3f;
        const double difference = (loss_at(before + step) - loss_at(before - step)) / (2 * double{step});
        loss_at(before);
        EXPECT_NEAR(gradient, difference, 1e-2 * std::abs(difference)) << name << (given ? ", given" : "");
        ++checked;
      }
    }
    EXPECT_EQ(checked, 3);
  }
}

}  // namespace moe_test
}  // namespace hawser

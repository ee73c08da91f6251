// Heads that predict masked tokens and classes of rows and of documents: micro-batches and ranks have different numbers
// of labels, some none, and the first and last rows of documents are on different ranks.
#include <set>

#include "outcome.h"
#include "support/toy_heads.h"
#include "tensor_case.h"

namespace hawser {
namespace heads_test {

using testing::CaseName;
using testing::CaseTest;
using testing::Division;
using testing::Head;
using testing::kHeads;
using testing::MeshCase;
using testing::Outcome;
using testing::TensorCase;

struct OnHead {
  Head head;
  MeshCase on = {};

  std::string name() const { return testing::joined(testing::text_of(head), on.name()); }
  friend void PrintTo(const OnHead& c, std::ostream* out) { *out << c.name(); }
};

using Heads = CaseTest<OnHead>;

TEST_P(Heads, HaveTheGradientsOfOneRank) {
  const auto& [head, c] = GetParam();
  const models::Model model(testing::toy_with(head));
  const plan::LayoutChoices layout = testing::layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  const Outcome ours = testing::run(model, layout, *mesh, c.batch_size(), c.random_delay_s);
  static std::map<std::pair<Head, std::int64_t>, Outcome> references;
  Outcome& one = references[{head, c.batch_size()}];
  if (one.gradients.empty()) {
    one = testing::on_one_rank([&, batch_size = c.batch_size()] {
      return testing::run(model, testing::layout_of({}, model), *comm::make_self_mesh(), batch_size, 0);
    });
  }
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  testing::expect_gradients(c.mesh, ours, one, 1e-5);
}

// One sequence is missing in the last micro-batch.
std::vector<OnHead> every_mesh() {
  std::vector<OnHead> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  for (const Head head : kHeads) {
    for (MeshCase c : testing::meshes()) {
      c.micro_batches = 2;
      c.missing = 1;
      c.by_work = c.mesh.shard_context;
      c.policy.checkpointing = c.mesh.context > 1 ? Checkpointing::full : Checkpointing::none;
      c.policy.delay_weight_gradients = c.mesh.shard > 1;
      c.in_flight = c.mesh.shard > 1 ? 2 : 1;
      c.random_delay_s = 2e-4;
      out.push_back({head, c});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Heads, ::testing::ValuesIn(every_mesh()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Heads);

using HeadLoss = CaseTest<OnHead>;

// The sum of the losses of a step's sequences, each alone, over the number of their labels, which is counted here.
// Their micro-batches have different numbers.
TEST_P(HeadLoss, IsTheMeanOfLabels) {
  const models::Model model(testing::toy_with(GetParam().head));
  plan::LayoutChoices layout = testing::layout_of({}, model);
  const auto self = comm::make_self_mesh();
  const testing::ToySequences sequences(5, testing::kToyLength, testing::kToyDocuments, 5, {},
                                        nn::labels_of(model.description().head));
  const double step = testing::run(model, layout, *self, sequences.size(), 0).loss;
  layout.batch_sizes.sequences = 1;
  const auto device = rank_device();
  engine::Session session(model, plan::derive(layout, model), *device, *self, {step::Purpose::loss});
  const batches::BatchShape& shape = session.layout().batch;
  session.initialise(3);
  double sum = 0;
  std::set<std::int64_t> counts;
  std::int64_t labels = 0;
  for (std::int64_t i = 0; i < sequences.size(); ++i) {
    const batches::Sequence sequence = sequences.get(i);
    const std::int64_t own = std::ranges::count_if(sequence.labels, [](std::int32_t label) { return label >= 0; });
    counts.insert(own);
    labels += own;
    step::StepInput input;
    input.record.inverse_targets = 1;
    input.batches = {engine::to_host_batch(batches::make_micro_batch(std::vector{sequence}, shape, 0), shape)};
    const auto output = session.enqueue(step::Purpose::loss, input);
    session.synchronize();
    sum += output.result->loss_sum.value();
  }
  EXPECT_GT(counts.size(), 1u);
  const double mean = sum / static_cast<double>(labels);
  EXPECT_NEAR(step, mean, 1e-5 * mean);
}

std::vector<OnHead> all_heads() {
  std::vector<OnHead> out;
  if (the_world->size() > 1) return out;
  for (const Head head : kHeads) out.push_back({head});
  return out;
}
INSTANTIATE_TEST_SUITE_P(OneRank, HeadLoss, ::testing::ValuesIn(all_heads()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HeadLoss);  // one rank

using HeadsOfTensorRanks = CaseTest<TensorCase>;

// Classes are not sliced, also beside a sliced embedding; with sequence parallelism each rank computes its rows of the
// residual.
TEST_P(HeadsOfTensorRanks, TrainLikeOneRank) {
  testing::expect_like_one_rank(GetParam());
}

std::vector<TensorCase> tensor_ranks() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 2 || world > 4) return out;  // long on eight ranks
  const Division copies, rows{.sequence_parallel = true};
  const nn::SavePolicy full{.checkpointing = Checkpointing::full, .delay_weight_gradients = true};
  for (const Head head : kHeads) {
    const auto add = [&](const comm::MeshSizes& mesh, const Division& division, const nn::SavePolicy& policy) {
      TensorCase c{.model = testing::text_of(head),
                   .on = {.mesh = mesh, .policy = policy, .division = division},
                   .whole = testing::toy_with(head),
                   .first_step = true};
      c.on.mesh.kv_copies = testing::kv_copies(c.whole, mesh.tensor);
      out.push_back(std::move(c));
    };
    if (world == 2) {
      for (const Division& division : {testing::kVocabulary, testing::kSequence, copies, rows}) {
        add({.tensor = 2}, division, division.sequence_parallel ? full : nn::SavePolicy());
      }
      continue;
    }
    add({.tensor = 4}, testing::kSequence, {});
    add({.tensor = 2, .context = 2}, rows, full);
    add({.tensor = 2, .shard = 2}, copies, {});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, HeadsOfTensorRanks, ::testing::ValuesIn(tensor_ranks()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HeadsOfTensorRanks);

}  // namespace heads_test
}  // namespace hawser

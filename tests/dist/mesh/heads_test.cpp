// Heads that predict masked tokens and classes of rows and of documents: micro-batches and ranks have different numbers
// of labels, some none, and the first and last rows of documents are on different ranks.
#include <set>

#include "outcome.h"
#include "support/toy_heads.h"
#include "tensor_case.h"

namespace hawser {
namespace heads_test {

using testing::Case;
using testing::Division;
using testing::Head;
using testing::kHeads;
using testing::Outcome;

// One sequence is missing in the last micro-batch.
TEST(Heads, EveryMeshTrainsLikeOneRank) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_1, mesh_2 and mesh_4 run it";
  for (const Head head : kHeads) {
    const models::Model model(testing::toy_with(head));
    std::map<std::int64_t, Outcome> alone;  // by the sequences of a step
    for (Case c : testing::cases_of_all_meshes()) {
      c.accumulation = 2;
      c.missing = 1;
      c.by_work = c.sharded;
      c.checkpointing = c.context > 1 ? Checkpointing::full : Checkpointing::none;
      c.delay_weight_gradients = c.shard > 1;
      c.in_flight = c.shard > 1 ? 2 : 1;
      c.random_delay_s = 2e-4;
      const plan::LayoutChoices layout = testing::layout_of(c, model);
      const std::int64_t batch_size = 2LL * layout.data_ranks() * c.accumulation - c.missing;
      const auto mesh = rank_mesh(layout.mesh);
      const Outcome ours = testing::run(model, layout, *mesh, batch_size, c.random_delay_s);
      if (!alone.contains(batch_size)) {
        alone[batch_size] = testing::on_one_rank([&] {
          return testing::run(model, testing::layout_of(testing::Case{}, model), *comm::make_self_mesh(), batch_size,
                              0);
        });
      }
      const Outcome& one = alone.at(batch_size);
      EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss) << testing::text_of(head) << ": " << c.text();
      testing::compare_shards(c, ours, one, 1e-5);
    }
  }
}

// The sum of the losses of a step's sequences, each alone, over the number of their labels, which is counted here.
// Their micro-batches have different numbers.
TEST(Heads, TheLossIsTheMeanOfLabels) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  for (const Head head : kHeads) {
    const models::Model model(testing::toy_with(head));
    plan::LayoutChoices layout = testing::layout_of(testing::Case{}, model);
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
    EXPECT_GT(counts.size(), 1u) << testing::text_of(head);
    const double mean = sum / static_cast<double>(labels);
    EXPECT_NEAR(step, mean, 1e-5 * mean) << testing::text_of(head);
  }
}

// Classes are not sliced, also beside a sliced embedding; with sequence parallelism each rank computes its rows of the
// residual.
TEST(Heads, TensorRanksTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  if (world > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const auto own = [](const nn::Param& param) { return param.flat; };
  const Division copies, rows{.sequence_parallel = true};
  for (const Head head : kHeads) {
    const models::ModelDescription whole = testing::toy_with(head);
    const auto train = [&](comm::MeshSizes mesh, const Division& division, const nn::SavePolicy& policy) {
      mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
      testing::expect_first_gradients(
          testing::expect_like_one_rank(whole, own, mesh, policy, testing::toy_adamw(), division, {.inputs = {0}}),
          testing::text_of(head));
    };
    const nn::SavePolicy full{.checkpointing = Checkpointing::full, .delay_weight_gradients = true};
    if (world == 2) {
      for (const Division& division : {testing::kVocabulary, testing::kSequence, copies, rows}) {
        train({.tensor = 2}, division, division.sequence_parallel ? full : nn::SavePolicy());
      }
      continue;
    }
    train({.tensor = 4}, testing::kSequence, {});
    train({.tensor = 2, .context = 2}, rows, full);
    train({.tensor = 2, .shard = 2}, copies, {});
  }
}

}  // namespace heads_test
}  // namespace hawser

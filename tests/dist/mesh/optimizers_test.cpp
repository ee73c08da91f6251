// Optimizers whose state or update is not that of single elements: every mesh trains like one rank, and loads what
// another has saved.
#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "plan/disk.h"
#include "support/exchanging_adamw.h"
#include "toy_muon.h"
#include "toy_training.h"
#include "train/saver.h"

namespace hawser {
namespace optimizers_test {

using testing::CaseName;
using testing::CaseTest;
using testing::clipped_layout;
using testing::MeshCase;
using testing::sharded_meshes;
using testing::Tensors;
using testing::train;
using testing::Trained;

struct Toy {
  models::Model model;
  std::shared_ptr<const optim::Optimizer> optimizer;
};

Toy toy_of(const std::string& optimizer) {
  if (optimizer == "adafactor") {
    return {models::Model(testing::toy_description(), testing::by_rank), std::make_shared<testing::Adafactor>()};
  }
  if (optimizer == "lamb") return {models::Model(testing::toy_description(false)), std::make_shared<testing::Lamb>()};
  if (optimizer == "muon") {
    return {models::Model(testing::toy_description(), testing::Muon::spec_of), std::make_shared<testing::Muon>()};
  }
  return {models::Model(testing::toy_of_nf4_blocks(), testing::EightBits::spec_of),
          std::make_shared<testing::EightBits>()};
}

struct OptimizerCase {
  std::string optimizer;
  MeshCase on;

  std::string name() const { return testing::joined(optimizer, on.name()); }
  friend void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.name(); }
};

// Every mesh, in float32, with sharded and with complete weights in turns.
std::vector<MeshCase> meshes_in_turn() {
  std::vector<MeshCase> out;
  for (MeshCase c : sharded_meshes()) {
    c.compute = DType::f32;
    c.shard_policy = out.size() % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    out.push_back(c);
  }
  return out;
}

std::vector<OptimizerCase> with_each_mesh(const std::vector<std::string>& optimizers) {
  std::vector<OptimizerCase> out;
  for (const std::string& optimizer : optimizers) {
    for (const MeshCase& c : meshes_in_turn()) out.push_back({optimizer, c});
  }
  return out;
}

plan::LayoutChoices layout_of(const Toy& toy, const MeshCase& c) {
  plan::LayoutChoices layout = clipped_layout(c, toy.model);
  layout.optimizer = toy.optimizer;
  return layout;
}

// The states after three steps of one rank with the sequences of a mesh.
Tensors states_of_one_rank(const Toy& toy, const plan::LayoutChoices& like) {
  return testing::on_one_rank([&] {
    plan::LayoutChoices layout = like;
    layout.mesh = {};
    layout.batch_sizes = testing::toy_batch(1);
    const auto mesh = comm::make_self_mesh();
    const testing::ToySteps steps(toy.model, layout, mesh->coordinate(), 2LL * like.data_ranks() * 2);
    const auto device = rank_device();
    engine::Session session(toy.model, plan::derive(layout, toy.model), *device, *mesh, {step::Purpose::train});
    session.initialise(3);
    for (int step = 0; step < 3; ++step) {
      step::StepInput input = steps.input(step);
      input.record.learning_rate = 0.01f;
      session.enqueue(step::Purpose::train, input);
    }
    return testing::states_of(session);
  });
}

// Of slots, which hold squares of gradients. Without optimization, with the sanitizers, sums are in another order, and
// one mesh of four ranks has 1.02e-5.
#ifdef __SANITIZE_ADDRESS__
constexpr double kSlotBound = 2e-5;
#else
constexpr double kSlotBound = 1e-5;
#endif

using Optimizers = CaseTest<OptimizerCase>;

TEST_P(Optimizers, TrainLikeOneRank) {
  const auto& [optimizer, c] = GetParam();
  const Toy toy = toy_of(optimizer);
  const plan::LayoutChoices layout = layout_of(toy, c);
  static std::map<std::pair<std::string, int>, Tensors> references;
  Tensors& one = references[{optimizer, c.data_ranks()}];
  if (one.empty()) one = states_of_one_rank(toy, layout);
  std::int64_t bytes = 0;
  const Trained mesh = train(toy.model, layout, {.look = [&](engine::Session& session) {
                               bytes = session.plan(step::Purpose::train).saved_bytes;
                               std::vector<engine::StatePart> parts = engine::state_parts(session);
                               EXPECT_EQ(bytes, engine::place_copies(parts, nullptr));
                             }});
  EXPECT_EQ(mesh.after.size(), one.size());
  EXPECT_LT(testing::difference(mesh.after, one, "model"), 1e-5);
  std::set<std::string> slots;
  for (const auto& [name, values] : one) {
    if (name.starts_with("optimizer/")) slots.insert(name.substr(0, name.find('/', 10)));
  }
  for (const std::string& slot : slots) EXPECT_LT(testing::difference(mesh.after, one, slot), kSlotBound) << slot;
  EXPECT_GT(testing::difference(mesh.after, mesh.before, "model"), 1e-3);
}
INSTANTIATE_TEST_SUITE_P(RowsAndColumns, Optimizers, ::testing::ValuesIn(with_each_mesh({"adafactor"})), CaseName());
INSTANTIATE_TEST_SUITE_P(NormsOfTensors, Optimizers, ::testing::ValuesIn(with_each_mesh({"lamb"})), CaseName());
INSTANTIATE_TEST_SUITE_P(CompleteMatrices, Optimizers, ::testing::ValuesIn(with_each_mesh({"muon"})), CaseName());

struct LoadCase {
  std::string optimizer;
  testing::TwoMeshes meshes;

  std::string name() const { return testing::joined(optimizer, meshes.name()); }
  friend void PrintTo(const LoadCase& c, std::ostream* out) { *out << c.name(); }
};

using OptimizerStates = CaseTest<LoadCase>;

// What every second mesh has saved, the next one loads: the same states to the bit, in a checkpoint of the predicted
// size.
TEST_P(OptimizerStates, AreLoadedOnAnotherMesh) {
  const auto& [from, to] = GetParam().meshes;
  const Toy toy = toy_of(GetParam().optimizer);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const Trained trained =
      train(toy.model, layout_of(toy, from), {.inputs = {0, 1}, .look = [&](engine::Session& session) {
                                                train::save(session, the_world, {.root = root},
                                                            {.step = 1, .recipe = "{}", .config = "{}"});
                                              }});
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  std::int64_t bytes = 0;
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    bytes += tensor.shape.elements() * size_of(tensor.dtype);
  }
  const plan::LayoutChoices layout = layout_of(toy, to);
  EXPECT_EQ(plan::checkpoint_bytes(toy.model, plan::derive(layout, toy.model)), bytes);
  const auto mesh = rank_mesh(layout.mesh);
  const auto device = rank_device();
  engine::Session session(toy.model, plan::derive(layout, toy.model), *device, *mesh, {step::Purpose::train});
  session.initialise(5);
  engine::load(session, checkpoint);
  EXPECT_TRUE(testing::assembled(session) == trained.after);
}

std::vector<LoadCase> every_second_mesh() {
  std::vector<LoadCase> out;
  for (const char* const optimizer : {"adafactor", "eight_bits"}) {
    const std::vector<testing::TwoMeshes> all = testing::each_to_next(meshes_in_turn());
    for (std::size_t i = 0; i < all.size(); i += 2) out.push_back({optimizer, all[i]});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, OptimizerStates, ::testing::ValuesIn(every_second_mesh()), CaseName());

using OptimizerExchanges = CaseTest<MeshCase>;

TEST_P(OptimizerExchanges, ReturnWhatTheyGot) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(GetParam(), model);
  const Trained plain = train(model, layout);
  layout.optimizer = std::make_shared<testing::ExchangingAdamW>();
  EXPECT_TRUE(train(model, layout).after == plain.after);
}

std::vector<MeshCase> sharded_or_complete() {
  std::vector<MeshCase> out = sharded_meshes();
  for (MeshCase& c : out) {
    c.shard_policy = c.mesh.context > 1 ? ShardPolicy::parameters : ShardPolicy::optimizer;
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, OptimizerExchanges, ::testing::ValuesIn(sharded_or_complete()), CaseName());

TEST(Optimizers, OfCompleteMatricesHaveThoseOfBlocks) {
  const models::Model model(testing::toy_description(), testing::Muon::spec_of);
  // The updates are nearly orthogonal matrices: of the biases and norms, AdamW's.
  std::int64_t matrices = 0;
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      const bool block = param.name.find("layers.") != std::string::npos;
      EXPECT_EQ(flat.spec().group, block && param.shape.rank() == 2 ? 1 : 0) << param.name;
      if (flat.spec().group == 1) matrices += static_cast<std::int64_t>(param.segments.size());
    }
  }
  EXPECT_EQ(matrices, 2 * 7);
}

// That planning one rank rejects these, with this message.
void expect_rejected(const models::ModelDescription& description, std::shared_ptr<const optim::Optimizer> optimizer,
                     const std::string& message) {
  const models::Model model(description, testing::Muon::spec_of);
  const plan::LayoutChoices layout = [&] {
    plan::LayoutChoices out = clipped_layout(meshes_in_turn().front(), model);
    out.optimizer = std::move(optimizer);
    return out;
  }();
  try {
    plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    ADD_FAILURE() << "no error";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

// No layer makes two slices of one matrix, except where two of its names are one.
TEST(Optimizers, OfCompleteMatricesRejectSeveralSlicesOfOne) {
  models::ModelDescription description = testing::toy_description();
  nn::MlpConfig& mlp = description.blocks[0].mlp;
  mlp.gate = mlp.up;
  mlp.inner_slice = {.begin = 0, .total = 2 * mlp.inner};
  expect_rejected(
      description, std::make_shared<testing::Muon>(),
      cat("the optimizer muon needs the complete matrix ", mlp.up, ".weight, of which a rank has several slices"));
}

// A matrix of which each rank has a slice is never complete.
TEST(Optimizers, OfCompleteMatricesRejectSlicesThatNoPhaseGathers) {
  class OfOneSlice : public testing::Muon {
   public:
    std::vector<optim::Phase> phases(const nn::Flat& flat) const override {
      std::vector<optim::Phase> phases = Muon::phases(flat);
      for (optim::Phase& phase : phases) phase.slices = false;
      return phases;
    }
  };
  models::ModelDescription description = testing::toy_description();
  for (models::BlockDescription& block : description.blocks) {
    block.mlp.inner_slice = {.begin = 0, .total = 2 * block.mlp.inner};
  }
  expect_rejected(description, std::make_shared<OfOneSlice>(),
                  "the optimizer muon needs the complete matrix model.layers.0.mlp.gate_proj.weight, which tensor "
                  "parallelism slices");
}

using OptimizersOfFewBits = CaseTest<MeshCase>;

// Blocks of 32 elements share a scale, and stochastic rounding draws by the element of the global tensor: the same
// bits on every mesh.
TEST_P(OptimizersOfFewBits, HaveTheSameBitsOnEveryMesh) {
  const Toy toy = toy_of("eight_bits");
  static const Tensors one = states_of_one_rank(toy, layout_of(toy, meshes_in_turn().front()));
  EXPECT_TRUE(train(toy.model, layout_of(toy, GetParam())).after == one);
}
INSTANTIATE_TEST_SUITE_P(Meshes, OptimizersOfFewBits, ::testing::ValuesIn(meshes_in_turn()), CaseName());

TEST(Optimizers, OfFewBitsFollowTheSeed) {
  const Toy toy = toy_of("eight_bits");
  plan::LayoutChoices layout = layout_of(toy, meshes_in_turn().front());
  const Tensors one = states_of_one_rank(toy, layout);
  layout.seed = 1;
  EXPECT_FALSE(states_of_one_rank(toy, layout) == one);
}

// Before there is memory: a plan of such a run is an error.
TEST(Optimizers, OfBlocksRejectSlicesThatCutOne) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  const auto error_of = [](const models::ModelDescription& description) -> std::string {
    const models::Model model(description, [](const nn::Param& param) { return param.flat; });
    plan::LayoutChoices layout = testing::toy_layout({}, model);
    layout.optimizer = std::make_shared<testing::EightBits>();
    try {
      plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  };
  models::ModelDescription whole = testing::toy_of_nf4_blocks();
  EXPECT_EQ(error_of(whole), "");
  models::ModelDescription cut = whole;
  for (models::BlockDescription& block : cut.blocks) block.mlp.inner_slice = {.begin = 16, .total = 144};
  EXPECT_NE(error_of(cut).find("model.layers.0.mlp.down_proj.weight: the slice [16, 144) of dim 1 of [64, 144] cuts a "
                               "block of 32 that shares a value"),
            std::string::npos)
      << error_of(cut);
  for (models::BlockDescription& block : whole.blocks) block.mlp.inner = 127;
  whole.blocks.resize(1);
  EXPECT_EQ(error_of(whole), "");  // two tensors of 127 x 64 elements
  whole.blocks[0].mlp.bias = true;
  EXPECT_NE(error_of(whole).find("model.layers.0.mlp.up_proj.bias: begins at element 127 of "
                                 "model.layers.0.mlp.gate_up_proj.bias, inside of a block of 32"),
            std::string::npos)
      << error_of(whole);
}

}  // namespace optimizers_test
}  // namespace hawser

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

using testing::meshes;
using testing::Tensors;
using testing::text_of;
using testing::train;
using testing::Trained;

struct Toy {
  const models::Model& model;
  std::shared_ptr<const optim::Optimizer> optimizer;
};

// Every mesh, in float32, with sharded and with complete weights in turns.
std::vector<plan::LayoutChoices> layouts_of(const Toy& toy) {
  std::vector<plan::LayoutChoices> layouts = meshes(toy.model);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    layouts[i].compute = DType::f32;
    layouts[i].optimizer = toy.optimizer;
    layouts[i].shard_policy = i % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
  }
  return layouts;
}

// The states after three steps of one rank with the sequences of a mesh.
Tensors alone(const Toy& toy, const plan::LayoutChoices& like) {
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

void expect_like_one_rank(const Toy& toy) {
  std::map<int, Tensors> expected;  // by the number of data ranks
  for (const plan::LayoutChoices& layout : layouts_of(toy)) {
    const std::string text = text_of(layout);
    if (!expected.contains(layout.data_ranks())) expected[layout.data_ranks()] = alone(toy, layout);
    const Tensors& one = expected.at(layout.data_ranks());
    std::int64_t bytes = 0;
    const Trained mesh = train(toy.model, layout, {.look = [&](engine::Session& session) {
                                 bytes = session.plan(step::Purpose::train).saved_bytes;
                                 std::vector<engine::StatePart> parts = engine::state_parts(session);
                                 EXPECT_EQ(bytes, engine::place_copies(parts, nullptr)) << text;
                               }});
    EXPECT_EQ(mesh.after.size(), one.size()) << text;
    EXPECT_LT(testing::difference(mesh.after, one, "model"), 1e-5) << text;
    std::set<std::string> slots;
    for (const auto& [name, values] : one) {
      if (name.starts_with("optimizer/")) slots.insert(name.substr(0, name.find('/', 10)));
    }
    for (const std::string& slot : slots)
      EXPECT_LT(testing::difference(mesh.after, one, slot), kSlotBound) << text << " " << slot;
    EXPECT_GT(testing::difference(mesh.after, mesh.before, "model"), 1e-3) << text;
  }
}

// What every second mesh has saved, the next one loads: the same states to the bit, in a checkpoint of the predicted
// size.
void expect_same_after_loading(const Toy& toy) {
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::vector<plan::LayoutChoices> layouts = layouts_of(toy);
  int step = 0;
  for (std::size_t i = 0; i < layouts.size(); i += 2) {
    const plan::LayoutChoices& to = layouts[(i + 1) % layouts.size()];
    const std::string text = cat(text_of(layouts[i]), " to ", text_of(to));
    const Trained trained =
        train(toy.model, layouts[i], {.inputs = {0, 1}, .look = [&](engine::Session& session) {
                                        train::save(session, the_world, {.root = root},
                                                    {.step = ++step, .recipe = "{}", .config = "{}"});
                                      }});
    checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(step)));
    std::int64_t bytes = 0;
    for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
      bytes += tensor.shape.elements() * size_of(tensor.dtype);
    }
    EXPECT_EQ(plan::checkpoint_bytes(toy.model, plan::derive(to, toy.model)), bytes) << text;
    const auto mesh = rank_mesh(to.mesh);
    const auto device = rank_device();
    engine::Session session(toy.model, plan::derive(to, toy.model), *device, *mesh, {step::Purpose::train});
    session.initialise(5);
    engine::load(session, checkpoint);
    EXPECT_TRUE(testing::assembled(session) == trained.after) << text;
  }
}

TEST(Optimizers, ExchangesReturnWhatTheyGot) {
  const models::Model model(testing::toy_description());
  for (const plan::LayoutChoices& mesh : meshes(model)) {
    plan::LayoutChoices layout = mesh;
    layout.shard_policy = layout.mesh.context > 1 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    const Trained plain = train(model, layout);
    layout.optimizer = std::make_shared<testing::ExchangingAdamW>();
    EXPECT_TRUE(train(model, layout).after == plain.after) << text_of(layout);
  }
}

TEST(Optimizers, WithRowsAndColumnsTrainLikeOneRank) {
  const models::Model model(testing::toy_description(), testing::by_rank);
  const Toy toy{model, std::make_shared<testing::Adafactor>()};
  expect_like_one_rank(toy);
  expect_same_after_loading(toy);
}

TEST(Optimizers, WithNormsOfTensorsTrainLikeOneRank) {
  const models::Model model(testing::toy_description(false));
  expect_like_one_rank({model, std::make_shared<testing::Lamb>()});
}

TEST(Optimizers, OfCompleteMatricesTrainLikeOneRank) {
  const models::Model model(testing::toy_description(), testing::Muon::spec_of);
  const Toy toy{model, std::make_shared<testing::Muon>()};
  expect_like_one_rank(toy);
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
  const plan::LayoutChoices layout = layouts_of({model, std::move(optimizer)}).front();
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

// Blocks of 32 elements share a scale, and stochastic rounding draws by the element of the global tensor: the same
// bits on every mesh.
TEST(Optimizers, OfFewBitsHaveTheSameBitsOnEveryMesh) {
  const models::Model model(testing::toy_of_nf4_blocks(), testing::EightBits::spec_of);
  const Toy toy{model, std::make_shared<testing::EightBits>()};
  const Tensors one = alone(toy, layouts_of(toy).front());
  for (const plan::LayoutChoices& layout : layouts_of(toy)) {
    EXPECT_TRUE(train(model, layout).after == one) << text_of(layout);
  }
  expect_same_after_loading(toy);
  plan::LayoutChoices other = layouts_of(toy).front();
  other.seed = 1;
  EXPECT_FALSE(alone(toy, other) == one);
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

// States that one mesh saves and another loads, to the bit, and the loss of the step after them. Tensor ranks have a
// tied table and a bias of the head, whose vocabulary of 67 has padding on the last one, and adapters of sliced
// Linears. Replicas without shards have float32 weights and moments beside complete weights in bf16.
#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "tensor_case.h"
#include "train/saver.h"

namespace hawser {
namespace saved_states_test {

using testing::MeshCase;
using testing::Trained;

struct StatesCase {
  std::string model;
  testing::TwoMeshes meshes;

  std::string name() const { return testing::joined(model, meshes.name()); }
  friend void PrintTo(const StatesCase& c, std::ostream* out) { *out << c.name(); }
};

models::ModelDescription whole_of(const std::string& model) {
  models::ModelDescription d = model == "tied" ? testing::toy_description() : testing::toy_with_adapters(0, true);
  d.head.bias = model == "tied";
  return testing::divisible(std::move(d));
}

nn::FlatSpecOf spec_of(const std::string& model, const MeshCase& on) {
  if (on.mesh.tensor == 1) return model == "tied" ? nn::common_domain : testing::train_adapters;
  const nn::FlatSpecOf own = model == "tied" ? testing::own_spec : testing::train_own_adapters;
  return on.division.sequence_parallel ? nn::with_sequence_parallelism(own) : own;
}

// A session on a mesh, which reads the same sequences as those on other meshes of the world.
class MeshRun {
 public:
  MeshRun(const std::string& of, const MeshCase& on, std::uint64_t seed)
      : model_(part_of(whole_of(of), on), spec_of(of, on)),
        layout_(testing::toy_layout(on, model_)),
        mesh_(rank_mesh(layout_.mesh)),
        device_(rank_device()),
        steps_(model_, layout_, mesh_->coordinate(), 2LL * the_world->size()),
        session_(model_, plan::derive(layout_, model_), *device_, *mesh_, {step::Purpose::train}) {
    session_.initialise(seed);
  }
  // The loss of the step.
  double step(std::int64_t which) {
    Trained trained;
    testing::take_steps(session_, steps_, {.inputs = {which}}, trained);
    return trained.losses.front();
  }
  engine::Session& session() { return session_; }

 private:
  static models::ModelDescription part_of(const models::ModelDescription& whole, const MeshCase& on) {
    const int part = comm::coordinate_of(the_world->rank().value(), on.mesh).tensor;
    return on.mesh.tensor == 1 ? whole : testing::part_of(whole, part, on.mesh.tensor, on.division);
  }

  models::Model model_;
  plan::LayoutChoices layout_;
  std::shared_ptr<comm::Mesh> mesh_;
  std::shared_ptr<Device> device_;
  testing::ToySteps steps_;
  engine::Session session_;
};

using SavedStates = testing::CaseTest<StatesCase>;

TEST_P(SavedStates, AreSavedAndLoadedOnAnotherMesh) {
  const auto& [model, meshes] = GetParam();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  MeshRun from(model, meshes.from, 3);
  for (const std::int64_t which : {0, 1}) from.step(which);
  const testing::Tensors saved = testing::assembled(from.session());
  train::save(from.session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  MeshRun to(model, meshes.to, 4);
  EXPECT_FALSE(testing::same_bits(testing::assembled(to.session()), saved));
  engine::load(to.session(), checkpoint);
  EXPECT_TRUE(testing::same_bits(testing::assembled(to.session()), saved));
  const double loss = from.step(2);
  EXPECT_NEAR(to.step(2), loss, 1e-5 * loss);
}

std::vector<StatesCase> pairs_of_meshes() {
  const int world = the_world->size();
  if (world != 2 && world != 4) return {};  // long on eight ranks
  const auto tensor = [&](int ranks, const testing::Division& division) {
    MeshCase c{.mesh = {.tensor = ranks, .shard = world / ranks}, .division = division};
    c.mesh.kv_copies = testing::kv_copies(testing::toy_description(), ranks);
    return c;
  };
  std::vector<MeshCase> meshes = {tensor(2, testing::kSequence), {.mesh = {.shard = world}}};
  if (world == 4) meshes.push_back(tensor(4, testing::kVocabulary));
  std::vector<StatesCase> out;
  for (const char* const model : {"tied", "adapters"}) {
    for (const testing::TwoMeshes& two : testing::each_to_next(meshes)) out.push_back({model, two});
  }
  const MeshCase replicas{.mesh = {.replicate = world, .shard_context = false}, .compute = DType::bf16},
      shards{.mesh = {.shard = world}, .compute = DType::bf16};
  for (const testing::TwoMeshes& two : testing::each_to_next({replicas, shards})) out.push_back({"tied", two});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, SavedStates, ::testing::ValuesIn(pairs_of_meshes()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SavedStates);

}  // namespace saved_states_test
}  // namespace hawser

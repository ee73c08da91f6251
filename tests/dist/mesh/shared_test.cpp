// Parameters that several layers use (nn::Param::shared): the norm of a parallel block, a norm of another block, and
// all of a block's. Each is one parameter of the model on every mesh, with the sum of its uses' gradients.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "nn/testing/forwarding_layer.h"
#include "outcome.h"
#include "toy_training.h"
#include "train/saver.h"

namespace hawser {
namespace shared_test {

using models::Residual;
using testing::CaseName;
using testing::CaseTest;
using testing::MeshCase;
using testing::Outcome;
using testing::Tensors;

// The toy with parallel blocks, the first with a LayerNorm, the second with an RMS norm. With two norms they have the
// same values, so that all else is equal.
models::ModelDescription parallel_toy(Residual residual, bool experts = false) {
  models::ModelDescription description = experts ? testing::toy_with_experts() : testing::toy_description();
  for (models::BlockDescription& block : description.blocks) {
    nn::NormConfig norm;
    if (&block == &description.blocks.front()) norm = {.kind = nn::NormKind::layer, .bias = true};
    block.residual = residual;
    block.attention.norm_config = block.mlp.norm_config = norm;
    if (block.moe) {
      block.moe->norm_config = norm;
      block.moe->auxiliary_loss = block.moe->router_z_loss = 0;  // they depend on the micro-batches
    }
    if (residual != Residual::parallel_one_norm) continue;
    block.mlp.norm = block.attention.norm;
    if (block.moe) block.moe->norm = block.attention.norm;
  }
  return description;
}

using Prepare = std::function<void(engine::Session&)>;

Outcome run(const models::Model& model, const MeshCase& c, const Prepare& prepare = {}) {
  const plan::LayoutChoices layout = testing::layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  return testing::run(model, layout, *mesh, c.batch_size(), c.random_delay_s, nullptr, prepare);
}

// Expects that the gradients of `shared` are those of `apart`, whose parameters have the same values: of a parameter
// with several uses the sum of theirs, by the names that it has in `apart`. A use that is lost or counted twice is
// found. Elements that this rank has of both are compared.
void expect_sums(const Outcome& shared, const Outcome& apart,
                 const std::map<std::string, std::string>& name_in_shared) {
  EXPECT_EQ(shared.loss, apart.loss);
  std::map<std::string, std::vector<double>> sums;
  for (const auto& [name, gradient] : apart.gradients) {
    const auto found = name_in_shared.find(name);
    std::vector<double>& sum = sums[found == name_in_shared.end() ? name : found->second];
    sum.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
  }
  EXPECT_EQ(sums.size(), shared.gradients.size());
  for (const auto& [name, gradient] : shared.gradients) {
    const std::vector<double>& sum = sums.at(name);
    ASSERT_EQ(sum.size(), gradient.size()) << name;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (std::isnan(sum[i]) || std::isnan(gradient[i])) continue;
      difference += std::pow(sum[i] - gradient[i], 2);
      norm += sum[i] * sum[i];
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << name;
  }
}

std::map<std::string, std::string> one_norm_names() {
  std::map<std::string, std::string> names;
  for (int b = 0; b < 2; ++b) {
    for (const char* const suffix : {"weight", "bias"}) {
      const std::string layer = cat("model.layers.", b, ".");
      names[cat(layer, "post_attention_layernorm.", suffix)] = cat(layer, "input_layernorm.", suffix);
    }
  }
  return names;
}

// Another layer whose parameters earlier layers declare.
class SharingLayer : public nn::testing::ForwardingLayer {
 public:
  explicit SharingLayer(std::unique_ptr<nn::Layer> layer) : ForwardingLayer(std::move(layer)) {
    for (nn::Param& param : params_) param.shared = true;
  }
};

// The toy whose second block is the first once more (ALBERT, arXiv 1909.11942): its unit has no flat.
models::Model one_block_twice() {
  models::ModelDescription description = testing::toy_description();
  description.blocks[1] = description.blocks[0];
  return models::Model(std::move(description), nn::common_domain, {}, [](auto layer, int number) {
    return number < 2 ? std::move(layer) : std::make_unique<SharingLayer>(std::move(layer));
  });
}

// The same, but the second block has parameters of its own.
models::Model two_equal_blocks() {
  models::ModelDescription description = testing::toy_description();

  models::BlockDescription second = description.blocks[0];
  nn::AttentionConfig& attention = second.attention;
  for (std::string* name :
       {&attention.norm, &attention.q, &attention.k, &attention.v, &attention.output, &attention.fused,
        &second.mlp.norm, &second.mlp.gate, &second.mlp.up, &second.mlp.down, &second.mlp.fused}) {
    name->replace(name->find(".0."), 3, ".1.");
  }
  description.blocks[1] = second;
  return models::Model(std::move(description));
}

// The same model with one parameter of several uses, or parameters of their own for each use.
enum class Sharing { norm_of_block, norm_of_block_with_experts, block, norm_of_another_block };

models::ModelDescription norm_of_another_block() {
  models::ModelDescription description = testing::toy_description();
  description.blocks[1].mlp.norm = description.blocks[0].mlp.norm;
  description.blocks[1].mlp.shared_norm = true;
  return description;
}

models::Model shared_model(Sharing sharing) {
  switch (sharing) {
    case Sharing::block:
      return one_block_twice();
    case Sharing::norm_of_another_block:
      return models::Model(norm_of_another_block());
    default:
      return models::Model(parallel_toy(Residual::parallel_one_norm, sharing == Sharing::norm_of_block_with_experts));
  }
}

models::Model apart_model(Sharing sharing) {
  switch (sharing) {
    case Sharing::block:
      return two_equal_blocks();
    case Sharing::norm_of_another_block:
      return models::Model(testing::toy_description());
    default:
      return models::Model(parallel_toy(Residual::parallel));
  }
}

// By the name of a parameter that only apart_model() has, its name in shared_model().
std::map<std::string, std::string> names_in_shared(Sharing sharing) {
  if (sharing == Sharing::norm_of_block) return one_norm_names();
  if (sharing == Sharing::norm_of_another_block) {
    return {
        {testing::toy_description().blocks[1].mlp.norm + ".weight", "model.layers.0.post_attention_layernorm.weight"}};
  }
  std::map<std::string, std::string> names;
  for (const models::HfTensor& tensor : models::hf_tensors(two_equal_blocks())) {
    const std::size_t at = tensor.name.find(".1.");
    if (at == std::string::npos) continue;
    names[tensor.name] = std::string(tensor.name).replace(at, 3, ".0.");
  }
  return names;
}

struct SharedCase {
  Sharing sharing;
  MeshCase on;

  std::string name() const {
    constexpr const char* kNames[] = {"norm_of_block", "norm_of_block_with_experts", "block", "norm_of_another_block"};
    return testing::joined(kNames[static_cast<int>(sharing)], on.name());
  }
  friend void PrintTo(const SharedCase& c, std::ostream* out) { *out << c.name(); }
};

// All meshes with two micro-batches: once with saved activations, interleaved micro-batches and delayed weight
// gradients, and once with recompute, where gradients accumulate in shards or locally.
std::vector<MeshCase> two_per_mesh() {
  std::vector<MeshCase> out;
  for (MeshCase c : testing::meshes()) {
    c.micro_batches = 2;
    MeshCase recomputed = c;
    recomputed.policy.checkpointing = Checkpointing::full;
    recomputed.accumulation = out.size() % 4 == 0 ? GradientAccumulation::local : GradientAccumulation::sharded;
    c.in_flight = 2;
    c.policy.delay_weight_gradients = true;
    c.prefetch = 0;
    c.random_delay_s = 2e-4;
    out.insert(out.end(), {c, recomputed});
  }
  return out;
}

using Shared = CaseTest<SharedCase>;

TEST_P(Shared, EqualsOneRank) {
  const auto& [sharing, c] = GetParam();
  const models::Model model = shared_model(sharing);
  static std::map<std::pair<Sharing, std::int64_t>, Outcome> references;
  Outcome& one = references[{sharing, c.batch_size()}];
  if (one.gradients.empty()) {
    one = testing::on_one_rank([&, batch_size = c.batch_size()] {
      return testing::run(model, testing::layout_of({}, model), *comm::make_self_mesh(), batch_size, 0);
    });
  }
  const Outcome ours = run(model, c);
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  testing::expect_gradients(c.mesh, ours, one, 1e-5);
}

std::vector<SharedCase> every_mesh() {
  std::vector<SharedCase> out;
  for (const Sharing sharing : {Sharing::norm_of_block, Sharing::block, Sharing::norm_of_another_block}) {
    for (const MeshCase& c : two_per_mesh()) out.push_back({sharing, c});
  }
  for (MeshCase c : testing::meshes()) {
    c.policy.checkpointing = Checkpointing::full;
    out.push_back({Sharing::norm_of_block_with_experts, c});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Shared, ::testing::ValuesIn(every_mesh()), CaseName());

using SharedGradient = CaseTest<SharedCase>;

TEST_P(SharedGradient, IsTheSumOfAllUses) {
  const auto& [sharing, c] = GetParam();
  Prepare copy_block;
  if (sharing == Sharing::block) {
    copy_block = [](engine::Session& session) {
      session.synchronize();
      const TensorView from = session.state().flat(1).stored, to = session.state().flat(2).stored;
      std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
      session.parameters_changed();
    };
  }
  expect_sums(run(shared_model(sharing), c), run(apart_model(sharing), c, copy_block), names_in_shared(sharing));
}

// Of one norm, the shards of both models have other elements.
std::vector<SharedCase> comparable_meshes() {
  std::vector<SharedCase> out;
  for (const Sharing sharing : {Sharing::norm_of_block, Sharing::block, Sharing::norm_of_another_block}) {
    for (const MeshCase& c : two_per_mesh()) {
      if (sharing != Sharing::block && c.mesh.shard_ranks() > 1) continue;
      out.push_back({sharing, c});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, SharedGradient, ::testing::ValuesIn(comparable_meshes()), CaseName());

TEST(Shared, ParametersAreInTheModelOnce) {
  const models::Model shared = one_block_twice(), apart = two_equal_blocks();
  ASSERT_EQ(shared.flats().size(), 3u);
  EXPECT_TRUE(shared.units()[2].flats.empty());
  EXPECT_EQ(shared.flat(1).total(8), apart.flat(1).total(8));
  std::int64_t second = 0;
  for (const nn::Param& param : apart.flat(2).params()) second += param.elements();
  EXPECT_EQ(shared.parameters(), apart.parameters() - second);
  const models::Model norm(norm_of_another_block());
  EXPECT_EQ(norm.parameters(), models::Model(testing::toy_description()).parameters() - norm.width());
}

using SharedReduction = CaseTest<MeshCase>;

// Gradients that are reduced in bf16 are also accumulated in it.
TEST_P(SharedReduction, InBf16DiffersOnlyByRounding) {
  MeshCase c = GetParam();
  const models::Model model(parallel_toy(Residual::parallel_one_norm));
  const Outcome rounded = run(model, c);
  c.reduce_dtype = DType::f32;
  const Outcome exact = run(model, c);
  EXPECT_EQ(rounded.loss, exact.loss);
  testing::expect_gradients(c.mesh, rounded, exact, 0.02);
}

std::vector<MeshCase> reduced_in_bf16() {
  std::vector<MeshCase> out = testing::meshes();
  for (MeshCase& c : out) c.compute = c.reduce_dtype = DType::bf16;
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, SharedReduction, ::testing::ValuesIn(reduced_in_bf16()), CaseName());

struct Steps {
  std::vector<double> losses, norms, clips;
  step::OptimizerProgress progress;
  auto fields() { return std::tie(losses, norms, clips, progress); }
};

// Steps [begin, end) of a training; `batch_size` is the same on all meshes.
Steps take(engine::Session& session, plan::LayoutChoices layout, std::int64_t batch_size, std::int64_t begin,
           std::int64_t end) {
  const testing::ToySteps steps(session.model(), layout, session.mesh().coordinate(), batch_size);
  Steps out;
  for (std::int64_t i = begin; i < end; ++i) {
    step::StepInput input = steps.input(i);
    input.record.learning_rate = step::LearningRates(0.001f);
    const step::StepOutput output = session.enqueue(step::Purpose::train, input);
    session.synchronize();
    out.losses.push_back(output.result->loss_sum.value());
    out.norms.push_back(output.result->gradient_norm);
    out.clips.push_back(output.result->clip);
    out.progress = *output.progress;
  }
  return out;
}

plan::LayoutChoices training_layout(const MeshCase& c, const models::Model& model, std::int64_t batch_size) {
  plan::LayoutChoices layout = testing::layout_of(c, model);
  layout.gradient_clip = 0.02;
  layout.micro_batches = static_cast<int>(batch_size / (2 * layout.data_ranks()));
  return layout;
}

struct ResumeCase {
  Sharing sharing;
  testing::TwoMeshes meshes;

  std::string name() const { return testing::joined(SharedCase{sharing, meshes.from}.name(), "to", meshes.to.name()); }
  friend void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name(); }
};

// Four steps of one rank, without a break.
const Steps& steps_of_one_rank(Sharing sharing, std::int64_t batch_size) {
  static std::map<Sharing, Steps> references;
  Steps& expected = references[sharing];
  if (!expected.losses.empty()) return expected;
  const models::Model model = shared_model(sharing);
  const plan::LayoutChoices layout = training_layout({}, model, batch_size);
  Outcome gradients;
  std::tie(expected, gradients) = testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, *self, {step::Purpose::train});
    session.initialise(3);
    const Steps taken = take(session, layout, batch_size, 0, 4);
    return std::pair(taken, testing::run(model, layout, *self, batch_size, 0));
  });
  double squares = 0;
  for (const auto& [name, gradient] : gradients.gradients) {
    for (const float value : gradient) squares += double{value} * value;
  }
  EXPECT_NEAR(expected.norms[0], std::sqrt(squares), 1e-5 * std::sqrt(squares));
  EXPECT_NEAR(expected.clips[0], *layout.gradient_clip / std::sqrt(squares), 1e-5 * expected.clips[0]);
  return expected;
}

using SharedRun = CaseTest<ResumeCase>;

// A shared parameter is in a checkpoint once, with its moments, and in the gradient's norm once. A run that is saved on
// one mesh and resumed on another takes the steps of one rank.
TEST_P(SharedRun, ResumesOnAnotherMesh) {
  const auto& [from, to] = GetParam().meshes;
  const models::Model model = shared_model(GetParam().sharing);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::int64_t batch_size = 4LL * the_world->size();
  const Steps& expected = steps_of_one_rank(GetParam().sharing, batch_size);
  const auto device = rank_device();
  Steps steps;
  Tensors before;
  {
    const plan::LayoutChoices layout = training_layout(from, model, batch_size);
    const auto mesh = rank_mesh(layout.mesh);
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
    session.initialise(3);
    steps = take(session, layout, batch_size, 0, 2);
    before = testing::assembled(session);
    train::save(session, the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  std::int64_t elements = 0;
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) elements += tensor.shape.elements();
  EXPECT_EQ(checkpoint.tensors().size(), 3 * models::hf_tensors(model).size());
  EXPECT_EQ(elements, 3 * model.parameters());
  const plan::LayoutChoices layout = training_layout(to, model, batch_size);
  const auto mesh = rank_mesh(layout.mesh);
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
  session.initialise(4);
  EXPECT_FALSE(testing::assembled(session) == before);
  engine::load(session, checkpoint);
  session.set_progress(steps.progress);
  EXPECT_TRUE(testing::assembled(session) == before);
  const Steps rest = take(session, layout, batch_size, 2, 4);
  steps.losses.insert(steps.losses.end(), rest.losses.begin(), rest.losses.end());
  steps.norms.insert(steps.norms.end(), rest.norms.begin(), rest.norms.end());
  steps.clips.insert(steps.clips.end(), rest.clips.begin(), rest.clips.end());
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_NEAR(steps.losses[s], expected.losses[s], 1e-4 * expected.losses[s]) << "step " << s;
    EXPECT_NEAR(steps.norms[s], expected.norms[s], 1e-4 * expected.norms[s]) << "step " << s;
    EXPECT_NEAR(steps.clips[s], expected.clips[s], 1e-4 * expected.clips[s]) << "step " << s;
  }
}

std::vector<ResumeCase> resumed() {
  std::vector<MeshCase> all = testing::meshes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].policy.checkpointing = i % 2 == 0 ? Checkpointing::full : Checkpointing::none;
    all[i].micro_batches = 2;
  }
  std::vector<ResumeCase> out;
  for (const Sharing sharing : {Sharing::norm_of_block, Sharing::block}) {
    for (const testing::TwoMeshes& meshes : testing::each_to_next(all)) out.push_back({sharing, meshes});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, SharedRun, ::testing::ValuesIn(resumed()), CaseName());

}  // namespace shared_test
}  // namespace hawser

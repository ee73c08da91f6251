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
using testing::Case;
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

Outcome run(const models::Model& model, const Case& c, std::int64_t batch_size, const Prepare& prepare = {}) {
  const plan::LayoutChoices layout = testing::layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  return testing::run(model, layout, *mesh, batch_size, c.random_delay_s, nullptr, prepare);
}

Outcome run_alone(const models::Model& model, std::int64_t batch_size) {
  return testing::on_one_rank([&] {
    return testing::run(model, testing::layout_of(testing::Case{}, model), *comm::make_self_mesh(), batch_size, 0);
  });
}

std::int64_t batch_of(const Case& c) {
  return 2LL * c.shard * c.replicate * c.accumulation;
}

// All meshes with two micro-batches: once with saved activations, interleaved micro-batches and delayed weight
// gradients, and once with recompute, where gradients accumulate in shards or locally.
std::vector<Case> cases() {
  std::vector<Case> out;
  for (Case c : testing::cases_of_all_meshes()) {
    c.accumulation = 2;
    Case recomputed = c;
    recomputed.checkpointing = Checkpointing::full;
    recomputed.policy = out.size() % 4 == 0 ? GradientAccumulation::local : GradientAccumulation::sharded;
    c.in_flight = 2;
    c.delay_weight_gradients = true;
    c.prefetch = 0;
    c.random_delay_s = 2e-4;
    out.insert(out.end(), {c, recomputed});
  }
  return out;
}

void expect_one_rank(const models::Model& model, const std::vector<Case>& on) {
  std::map<std::int64_t, Outcome> references;
  for (const Case& c : on) {
    Outcome& one = references[batch_of(c)];
    if (one.gradients.empty()) one = run_alone(model, batch_of(c));
    const Outcome ours = run(model, c, batch_of(c));
    EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss) << c.text();
    testing::compare_shards(c, ours, one, 1e-5);
  }
}

TEST(Shared, OneNormOfParallelBlocksEqualsOneRank) {
  expect_one_rank(models::Model(parallel_toy(Residual::parallel_one_norm)), cases());
  std::vector<Case> some = testing::cases_of_all_meshes();
  for (Case& c : some) c.checkpointing = Checkpointing::full;
  expect_one_rank(models::Model(parallel_toy(Residual::parallel_one_norm, true)), some);
}

// Expects that the gradients of `shared` are those of `apart`, whose parameters have the same values: of a parameter
// with several uses the sum of theirs, by the names that it has in `apart`. A use that is lost or counted twice is
// found. Elements that this rank has of both are compared.
void expect_sums(const Outcome& shared, const Outcome& apart, const std::map<std::string, std::string>& name_in_shared,
                 const std::string& text) {
  EXPECT_EQ(shared.loss, apart.loss) << text;
  std::map<std::string, std::vector<double>> sums;
  for (const auto& [name, gradient] : apart.gradients) {
    const auto found = name_in_shared.find(name);
    std::vector<double>& sum = sums[found == name_in_shared.end() ? name : found->second];
    sum.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
  }
  EXPECT_EQ(sums.size(), shared.gradients.size()) << text;
  for (const auto& [name, gradient] : shared.gradients) {
    const std::vector<double>& sum = sums.at(name);
    ASSERT_EQ(sum.size(), gradient.size()) << text << ": " << name;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (std::isnan(sum[i]) || std::isnan(gradient[i])) continue;
      difference += std::pow(sum[i] - gradient[i], 2);
      norm += sum[i] * sum[i];
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << text << ": " << name;
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

TEST(Shared, TheGradientIsTheSumOfBothUses) {
  const models::Model shared(parallel_toy(Residual::parallel_one_norm)), apart(parallel_toy(Residual::parallel));
  for (const Case& c : cases()) {
    if (c.sharded && c.shard * c.context > 1) continue;  // other elements of both
    expect_sums(run(shared, c, batch_of(c)), run(apart, c, batch_of(c)), one_norm_names(), c.text());
  }
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
  return models::Model(std::move(description), nn::common_domain, [](auto layer, int number) {
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

TEST(Shared, AllParametersOfAnotherUnit) {
  const models::Model shared = one_block_twice(), apart = two_equal_blocks();
  ASSERT_EQ(shared.flats().size(), 3u);
  EXPECT_TRUE(shared.units()[2].flats.empty());
  EXPECT_EQ(shared.flat(1).total(8), apart.flat(1).total(8));
  std::int64_t second = 0;
  for (const nn::Param& param : apart.flat(2).params()) second += param.elements();
  EXPECT_EQ(shared.parameters(), apart.parameters() - second);
  expect_one_rank(shared, cases());
  std::map<std::string, std::string> names;
  for (const models::HfTensor& tensor : models::hf_tensors(apart)) {
    const std::size_t at = tensor.name.find(".1.");
    if (at == std::string::npos) continue;
    names[tensor.name] = std::string(tensor.name).replace(at, 3, ".0.");
  }
  const Prepare copy_block = [&](engine::Session& session) {
    session.synchronize();
    const TensorView from = session.state().flat(1).stored, to = session.state().flat(2).stored;
    std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
    session.parameters_changed();
  };
  for (const Case& c : cases()) {
    expect_sums(run(shared, c, batch_of(c)), run(apart, c, batch_of(c), copy_block), names, c.text());
  }
}

// A unit that uses one parameter of an earlier one, and has others.
TEST(Shared, ANormOfAnotherUnit) {
  models::ModelDescription description = testing::toy_description();
  const models::Model apart(description);
  const std::string own = description.blocks[1].mlp.norm;
  description.blocks[1].mlp.norm = description.blocks[0].mlp.norm;
  description.blocks[1].mlp.shared_norm = true;
  const models::Model shared(std::move(description));
  EXPECT_EQ(shared.parameters(), apart.parameters() - shared.width());
  expect_one_rank(shared, cases());
  for (const Case& c : cases()) {
    if (c.sharded && c.shard * c.context > 1) continue;
    expect_sums(run(shared, c, batch_of(c)), run(apart, c, batch_of(c)),
                {{own + ".weight", "model.layers.0.post_attention_layernorm.weight"}}, c.text());
  }
}

// Gradients that are reduced in bf16 are also accumulated in it.
TEST(Shared, GradientsInBf16DifferOnlyByRounding) {
  const models::Model model(parallel_toy(Residual::parallel_one_norm));
  for (Case c : testing::cases_of_all_meshes()) {
    c.compute = DType::bf16;
    const Outcome exact = run(model, c, batch_of(c));
    c.reduce_dtype = DType::bf16;
    const Outcome rounded = run(model, c, batch_of(c));
    EXPECT_EQ(rounded.loss, exact.loss) << c.text();
    testing::compare_shards(c, rounded, exact, 0.02);
  }
}

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

plan::LayoutChoices training_layout(const Case& c, const models::Model& model, std::int64_t batch_size) {
  plan::LayoutChoices layout = testing::layout_of(c, model);
  layout.gradient_clip = 0.02;
  layout.micro_batches = static_cast<int>(batch_size / (2 * layout.data_ranks()));
  return layout;
}

// A shared parameter is in a checkpoint once, with its moments, and in the gradient's norm once. A run that is saved on
// one mesh and resumed on another takes the steps of one rank.
TEST(Shared, TrainsAndResumesOnAnotherMesh) {
  const models::Model models[] = {models::Model(parallel_toy(Residual::parallel_one_norm)), one_block_twice()};
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::int64_t batch_size = 4LL * the_world->size();
  int saved = 0;
  for (const models::Model& model : models) {
    const auto device = rank_device();
    const auto open = [&](const plan::LayoutChoices& layout, comm::Mesh& mesh) {
      return engine::Session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train});
    };
    // One rank, without a break.
    const plan::LayoutChoices alone = training_layout({}, model, batch_size);
    const auto [expected, gradients] = testing::on_one_rank([&] {
      const auto self = comm::make_self_mesh();
      engine::Session reference = open(alone, *self);
      reference.initialise(3);
      const Steps taken = take(reference, alone, batch_size, 0, 4);
      return std::pair(taken, testing::run(model, alone, *self, batch_size, 0));
    });
    double squares = 0;
    for (const auto& [name, gradient] : gradients.gradients) {
      for (const float value : gradient) squares += double{value} * value;
    }
    EXPECT_NEAR(expected.norms[0], std::sqrt(squares), 1e-5 * std::sqrt(squares));
    EXPECT_NEAR(expected.clips[0], *alone.gradient_clip / std::sqrt(squares), 1e-5 * expected.clips[0]);

    std::vector<Case> all = testing::cases_of_all_meshes();
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].checkpointing = i % 2 == 0 ? Checkpointing::full : Checkpointing::none;
      all[i].accumulation = 2;
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Case &from = all[i], &to = all[(i + 1) % all.size()];
      const std::string text = cat(from.text(), " to ", to.text());
      Steps steps;
      Tensors before;
      {
        const plan::LayoutChoices layout = training_layout(from, model, batch_size);
        const auto mesh = rank_mesh(layout.mesh);
        engine::Session session = open(layout, *mesh);
        session.initialise(3);
        steps = take(session, layout, batch_size, 0, 2);
        before = testing::assembled(session);
        train::save(session, the_world, {.root = root}, {.step = ++saved, .recipe = "{}", .config = "{}"});
      }
      checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(saved)));
      std::int64_t elements = 0;
      for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) elements += tensor.shape.elements();
      EXPECT_EQ(checkpoint.tensors().size(), 3 * models::hf_tensors(model).size()) << text;
      EXPECT_EQ(elements, 3 * model.parameters()) << text;
      const plan::LayoutChoices layout = training_layout(to, model, batch_size);
      const auto mesh = rank_mesh(layout.mesh);
      engine::Session session = open(layout, *mesh);
      session.initialise(4);
      EXPECT_FALSE(testing::assembled(session) == before) << text;
      engine::load(session, checkpoint);
      session.set_progress(steps.progress);
      EXPECT_TRUE(testing::assembled(session) == before) << text;
      const Steps rest = take(session, layout, batch_size, 2, 4);
      steps.losses.insert(steps.losses.end(), rest.losses.begin(), rest.losses.end());
      steps.norms.insert(steps.norms.end(), rest.norms.begin(), rest.norms.end());
      steps.clips.insert(steps.clips.end(), rest.clips.begin(), rest.clips.end());
      for (std::size_t s = 0; s < 4; ++s) {
        EXPECT_NEAR(steps.losses[s], expected.losses[s], 1e-4 * expected.losses[s]) << text << ", step " << s;
        EXPECT_NEAR(steps.norms[s], expected.norms[s], 1e-4 * expected.norms[s]) << text << ", step " << s;
        EXPECT_NEAR(steps.clips[s], expected.clips[s], 1e-4 * expected.clips[s]) << text << ", step " << s;
      }
    }
  }
}

}  // namespace shared_test
}  // namespace hawser

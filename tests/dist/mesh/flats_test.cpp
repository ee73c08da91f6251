// Flats that are not a dense model's: frozen ones, and weights that every rank keeps while the optimizer's state is
// sharded. The real layers run through plan, checker, executor and session on every mesh.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/gemm_algorithms.h"
#include "engine/load_state.h"
#include "models/weights.h"
#include "tensor/dtype_dispatch.h"
#include "toy_training.h"
#include "train/saver.h"

namespace hawser {
namespace flats_test {

using testing::CaseName;
using testing::CaseTest;
using testing::clipped_layout;
using testing::MeshCase;
using testing::sharded_meshes;
using testing::Tensors;
using testing::train;
using testing::Trained;

using FlatsOnEveryRank = CaseTest<MeshCase>;

TEST_P(FlatsOnEveryRank, TrainLikeShardedOnes) {
  const models::Model model(testing::toy_description());
  const plan::LayoutChoices parameters = clipped_layout(GetParam(), model);
  const Trained sharded = train(model, parameters);
  plan::LayoutChoices layout = parameters;
  layout.shard_policy = ShardPolicy::optimizer;
  const Trained kept =
      train(model, layout, {.look = [&](engine::Session& session) {
              std::int64_t bytes = 0;
              for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
                const step::FlatState& flat = session.state().flat(f);
                const std::int64_t total = model.flat(f).total(layout.parts());
                ASSERT_EQ(flat.unsharded.elements(), total);
                EXPECT_EQ(flat.count, total / layout.parts());
                bytes += flat.unsharded.bytes() + (layout.compute == DType::f32 ? 0 : flat.stored.bytes());
              }
              EXPECT_EQ(session.state().parameter_bytes(), bytes);
              for (const program::Instruction& instruction : session.plan(step::Purpose::train).program.instructions) {
                EXPECT_NE(instruction.op, program::Op::gather);
              }
            }});
  EXPECT_EQ(kept.losses, sharded.losses);
  EXPECT_TRUE(kept.before == sharded.before);
  EXPECT_TRUE(kept.after == sharded.after);
  EXPECT_FALSE(kept.after == kept.before);
}
INSTANTIATE_TEST_SUITE_P(Meshes, FlatsOnEveryRank, ::testing::ValuesIn(sharded_meshes()), CaseName());

// Freezes the parameters whose names contain one of these.
models::Model freeze(const std::vector<std::string>& names, bool tied = true) {
  return models::Model(testing::toy_description(tied), [names](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    for (const std::string& name : names) {
      if (param.name.find(name) != std::string::npos) spec.trainable = false;
    }
    return spec;
  });
}

bool is_frozen(const models::Model& model, const std::string& name) {
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        if (segment.name == name) return !flat.spec().trainable;
      }
    }
  }
  return false;
}

Tensors gradients(const models::Model& model, plan::LayoutChoices layout) {
  const auto mesh = rank_mesh(layout.mesh);
  const testing::ToySteps steps(model, layout, mesh->coordinate(), 2LL * layout.data_ranks() * 2);
  const auto device = rank_device();
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::gradient_norms});
  session.initialise(3);
  const step::StepOutput output = session.enqueue(step::Purpose::gradient_norms, steps.input(0));
  session.synchronize();
  Tensors norms;
  const auto tensors = models::hf_tensors(model);
  for (std::size_t i = 0; i < tensors.size(); ++i) norms[tensors[i].name] = {(*output.parameter_norms)[i]};
  return norms;
}

struct FrozenCase {
  const char* frozen;
  std::vector<std::string> names;
  MeshCase on;

  std::string name() const { return testing::joined(frozen, on.name()); }
  friend void PrintTo(const FrozenCase& c, std::ostream* out) { *out << c.name(); }
};

using FrozenFlats = CaseTest<FrozenCase>;

// Frozen parameters stay as they are, cost no more than what layers read, and leave the gradients of all others as they
// are in a model that trains everything.
TEST_P(FrozenFlats, HaveNoGradientMomentsOrMasterWeights) {
  const models::Model whole(testing::toy_description(false)), model = freeze(GetParam().names, false);
  const plan::LayoutChoices layout = clipped_layout(GetParam().on, model);
  const Trained trained = train(model, layout, {.look = [&](engine::Session& session) {
                                  std::int64_t parameters = 0, moments = 0;
                                  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
                                    const std::int64_t count = model.flat(f).total(layout.parts()) / layout.parts();
                                    const bool trainable = model.flat(f).spec().trainable;
                                    const std::int64_t read = count * size_of(layout.compute),
                                                       master = layout.compute == DType::f32 ? 0 : 4 * count;
                                    parameters += read + (trainable ? master : 0);
                                    moments += trainable ? 8 * count : 0;
                                  }
                                  EXPECT_EQ(session.state().parameter_bytes(), parameters);
                                  EXPECT_EQ(session.state().optimizer_bytes(), moments);
                                }});
  for (const auto& [name, values] : trained.after) {
    const std::string tensor = name.substr(name.rfind('/') + 1);
    EXPECT_EQ(values == trained.before.at(name), is_frozen(model, tensor)) << name;
    EXPECT_TRUE(name == tensor || !is_frozen(model, tensor)) << "moments " << name;
  }
  const Tensors all = gradients(whole, layout), some = gradients(model, layout);
  for (const auto& [name, norm] : some) {
    // Shards begin elsewhere in a tensor, so its squares are summed in another order.
    const float expected = is_frozen(model, name) ? 0.0f : all.at(name).front();
    EXPECT_NEAR(norm.front(), expected, 1e-6 * expected) << name;
  }
}

std::vector<FrozenCase> frozen() {
  std::vector<FrozenCase> out;
  for (const MeshCase& c : sharded_meshes()) {
    out.push_back({"parts_of_every_layer", {"qkv_proj", "down_proj", "norm"}, c});
    out.push_back({"embedding_and_first_block", {"embed_tokens", "layers.0."}, c});  // backward ends above block 0
    out.push_back({"all_but_the_head", {"embed_tokens", "layers.", "model.norm"}, c});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, FrozenFlats, ::testing::ValuesIn(frozen()), CaseName());

using ScaledFlats = CaseTest<MeshCase>;

// Frozen weights of a quarter with a scale of four are the same model: a power of two leaves every product exact.
TEST_P(ScaledFlats, HaveProductsWithTheirScales) {
  const models::ModelDescription description = testing::llama_description({.width = 24,
                                                                           .heads = 4,
                                                                           .kv_heads = 2,
                                                                           .head_dim = 10,
                                                                           .inner = 37,
                                                                           .vocabulary = 67,
                                                                           .blocks = 2,
                                                                           .initial_std = 0.3});
  const auto model_with = [&](bool scaled) {
    return models::Model(description, [scaled](const nn::Param& param) {
      nn::FlatSpec spec = nn::common_domain(param);
      if (param.name.find("_proj.weight") != std::string::npos) spec.trainable = false, spec.scaled = scaled;
      return spec;
    });
  };
  const models::Model plain = model_with(false), scaled = model_with(true);
  const plan::LayoutChoices layout = clipped_layout(GetParam(), plain);
  const auto norms_of = [&](const models::Model& model, float factor, float scale) {
    const auto mesh = rank_mesh(layout.mesh);
    plan::LayoutChoices own = layout;
    const testing::ToySteps steps(model, own, mesh->coordinate(), 2LL * own.data_ranks());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(own, model), *device, *mesh, {step::Purpose::gradient_norms});
    session.initialise(3);
    for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
      const step::FlatState& flat = session.state().flat(f);
      if (flat.scales.empty()) continue;
      std::fill_n(flat.scales.data<float>(), flat.scales.elements(), scale);
      dispatch_float(flat.stored.dtype(), [&](auto tag) {
        auto* const values = flat.stored.data<decltype(tag)>();
        std::transform(values, values + flat.count, values,
                       [&](auto value) { return static_cast<decltype(tag)>(factor * static_cast<float>(value)); });
      });
    }
    session.parameters_changed();
    const step::StepOutput output = session.enqueue(step::Purpose::gradient_norms, steps.input(0));
    session.synchronize();
    std::vector<float> values = *output.parameter_norms;
    values.push_back(static_cast<float>(output.result->loss_sum.value()));
    return values;
  };
  const std::vector<float> expected = norms_of(plain, 1, 1);
  EXPECT_EQ(norms_of(scaled, 0.25f, 4), expected);
  EXPECT_NE(norms_of(scaled, 0.25f, 2), expected);
}

std::vector<MeshCase> both_shardings() {
  std::vector<MeshCase> out;
  for (MeshCase c : sharded_meshes()) {
    for (const ShardPolicy policy : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      c.shard_policy = policy;
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ScaledFlats, ::testing::ValuesIn(both_shardings()), CaseName());

// The algorithm that is measured for weights without scales is not stored for those with a scale, or of another dtype.
TEST(Flats, TheListOfGemmsHasTheDtypesAndScalesOfWeights) {
  const models::Model model(testing::toy_description(), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    if (param.name == "model.layers.1.mlp.down_proj.weight") {
      spec.scaled = true;
      spec.gathered = DType::bf16;
    }
    return spec;
  });
  const plan::LayoutChoices layout = clipped_layout(sharded_meshes().front(), model);
  std::map<std::string, std::vector<engine::GemmShape>> found;
  for (const engine::GemmShape& shape : engine::gemms_of(model, plan::derive(layout, model), false))
    found[shape.name].push_back(shape);
  for (const auto* name : {"down_proj, y", "down_proj, dx"}) {
    ASSERT_EQ(found[name].size(), 2u) << name;
    const engine::GemmShape &plain = found[name][0], &scaled = found[name][1];
    EXPECT_EQ(plain.in_b, layout.compute);
    EXPECT_FALSE(plain.scaling_b);
    EXPECT_EQ(scaled.in_a, layout.compute);
    EXPECT_EQ(scaled.in_b, DType::bf16);
    EXPECT_EQ(scaled.scaling_b, ops::ScaleKind::one);
    EXPECT_EQ(plain.count, scaled.count);
  }
  EXPECT_EQ(found["down_proj, dW"].size(), 1u);
  EXPECT_EQ(found["gate_up_proj, y"].size(), 1u);
}

using FlatScales = CaseTest<testing::TwoMeshes>;

// Saved on one mesh and loaded on another: every rank has every scale again.
TEST_P(FlatScales, AreSavedOnceAndLoadedByAll) {
  const models::Model model(testing::toy_description(), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    if (param.name.find("_proj.weight") == std::string::npos) return spec;
    spec.scaled = true;
    spec.trainable = false;
    return spec;
  });
  const plan::LayoutChoices from = clipped_layout(GetParam().from, model), to = clipped_layout(GetParam().to, model);
  const auto with_session = [&](const plan::LayoutChoices& layout, const auto& body) {
    const auto mesh = rank_mesh(layout.mesh);
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::gradient_norms});
    session.initialise(3);
    body(session);
  };
  const auto each_scale = [&](engine::Session& session, const auto& body) {
    for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
      const TensorView scales = session.state().flat(f).scales;
      for (std::int64_t p = 0; !scales.empty() && p < scales.elements(); ++p)
        body(scales.data<float>()[p], 1.0f + 10 * f + p);
    }
  };
  Tensors saved;
  with_session(from, [&](engine::Session& session) {
    each_scale(session, [](float& scale, double value) { scale = static_cast<float>(value); });
    saved = testing::assembled(session);
  });
  with_session(to, [&](engine::Session& session) {
    engine::HostCopy copy(session, {.optimizer = false});
    for (const NamedState& state : copy.states(engine::StatesFor::load)) {
      if (state.name.starts_with("scale/")) *state.boxes.at(0).view.data<float>() = saved.at(state.name).at(0);
    }
    copy.store();
    int count = 0;
    each_scale(session, [&](float scale, double value) { count += scale == static_cast<float>(value) ? 1 : 0; });
    EXPECT_EQ(count, 8);
  });
}

std::vector<testing::TwoMeshes> of_one_dtype() {
  std::vector<testing::TwoMeshes> out = testing::each_to_next(sharded_meshes());
  std::erase_if(out, [](const testing::TwoMeshes& c) { return c.from.compute != c.to.compute; });
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, FlatScales, ::testing::ValuesIn(of_one_dtype()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlatScales);

using FlatsOfAdapters = CaseTest<testing::TwoMeshes>;

// A checkpoint of what training changes alone, saved on one mesh and loaded on another that has the frozen weights.
TEST_P(FlatsOfAdapters, AreSavedAndLoadedWithoutTheFrozenWeights) {
  const models::Model model(testing::toy_with_adapters(0), testing::train_adapters);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const plan::LayoutChoices from = clipped_layout(GetParam().from, model);
  plan::LayoutChoices to = clipped_layout(GetParam().to, model);
  to.compute = from.compute;  // frozen weights are stored in it
  Trained trained = train(model, from, {.look = [&](engine::Session& session) {
                            train::save(session, the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"},
                                        {.frozen = false});
                          }});
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  EXPECT_GT(checkpoint.tensors().size(), 10u);
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    EXPECT_NE(tensor.name.find("lora_"), std::string::npos) << tensor.name;
  }
  const auto mesh = rank_mesh(to.mesh);
  const auto device = rank_device();
  engine::Session session(model, plan::derive(to, model), *device, *mesh, {step::Purpose::train});
  session.initialise(3);
  EXPECT_FALSE(testing::assembled(session) == trained.after);
  engine::load(session, checkpoint, {.frozen = false});
  EXPECT_TRUE(testing::assembled(session) == trained.after);
}
INSTANTIATE_TEST_SUITE_P(Meshes, FlatsOfAdapters, ::testing::ValuesIn(testing::each_to_next(sharded_meshes())),
                         CaseName());

TEST(Flats, BackwardEndsAtTheLowestTrainableLayer) {
  const models::Model model = freeze({"embed_tokens", "layers.0."}, false);
  const plan::Layout layout = plan::derive(clipped_layout(sharded_meshes().front(), model), model);
  const program::Program program = step::make_program(model, plan::schedule_options(layout, step::Purpose::train));
  int lowest = model.layers();
  for (const program::Instruction& instruction : program.instructions) {
    EXPECT_NE(instruction.op, program::Op::embed_backward);
    if (instruction.op == program::Op::backward) lowest = std::min(lowest, instruction.layer);
  }
  EXPECT_EQ(lowest, 2);
  const models::Model frozen = freeze({""});
  EXPECT_THROW(step::make_program(frozen, plan::schedule_options(layout, step::Purpose::train)), InternalError);
}

}  // namespace flats_test
}  // namespace hawser

// Adapters on a frozen base in NF4 (QLoRA), on every mesh: the base is stored and gathered in blocks of 36 bytes, or 33
// with double quantization, and training has the bits of training on the dequantized weights.
#include <cmath>

#include "base/testing/temporary_folder.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "models/weights.h"
#include "toy_training.h"
#include "train/saver.h"

namespace hawser {
namespace nf4_adapters_test {

using testing::assembled;
using testing::CaseName;
using testing::CaseTest;
using testing::is_adapter;
using testing::MeshCase;
using testing::same_bits;
using testing::Tensors;
using testing::train_adapters;

// `experts`: in place of the MLPs.
models::ModelDescription description_of(bool experts) {
  models::ModelDescription description = testing::toy_of_nf4_blocks();
  testing::add_toy_adapters(description, 0);
  for (int b = 0; experts && b < static_cast<int>(description.blocks.size()); ++b) {
    testing::set_experts(description, b, 3, 3);  // of all tokens: no rounding changes the routing
    nn::MoeConfig& moe = *description.blocks[static_cast<std::size_t>(b)].moe;
    moe.inner = 64;
    // That of a micro-batch depends on what it has, not on each token one.
    moe.auxiliary_loss = moe.router_z_loss = 0;
  }
  return description;
}

models::Model packed_model(bool experts = false, DType form = DType::nf4) {
  return models::Model(description_of(experts), nn::with_nf4_weights(
                                                    train_adapters, [](int) { return true; }, form));
}
models::Model plain_model(bool experts = false) {
  return models::Model(description_of(experts), train_adapters);
}

plan::LayoutChoices layout_with(MeshCase c, const models::Model& model, DType compute = DType::f32) {
  c.compute = compute;
  return testing::clipped_layout(c, model);
}

// Calls change(name, element, value) for each element of the shard's parameters.
template <class Change>
void for_each_stored(engine::Session& session, const Change& change) {
  for (int f = 0; f < session.state().flats(); ++f) {
    const nn::Flat& flat = session.model().flat(f);
    const step::FlatState& state = session.state().flat(f);
    for (int p = 0; !flat.spec().packed() && p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      const std::int64_t from = std::max(state.begin, flat.offset(p));
      const std::int64_t to = std::min(state.begin + state.count, flat.offset(p) + param.elements());
      for (std::int64_t i = from; i < to; ++i) {
        const TensorView at = state.stored.rows(i - state.begin, 1);
        float value = testing::floats_of(at).front();
        change(param.name, static_cast<std::size_t>(i - flat.offset(p)), value);
        if (at.dtype() == DType::f32) {
          *at.data<float>() = value;
        } else {
          *at.data<Bf16>() = Bf16(value);
        }
      }
    }
  }
  session.parameters_changed();
}

// Initial values, and B that are not zero, so that A have gradients.
void write(engine::Session& session) {
  session.initialise(3);
  for_each_stored(session, [](const std::string& name, std::size_t i, float& value) {
    if (name.find("lora_B") != std::string::npos) value = 0.05f * (static_cast<float>(i * 40503 % 1021 % 7) - 3);
  });
}

constexpr std::array kForms = {DType::nf4, DType::nf4_double};

// The scales of the groups of a tensor with these values.
std::vector<Nf4Group> groups_of(const std::vector<float>& values) {
  std::vector<float> scales;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 64 == 0) scales.push_back(0);
    scales.back() = std::max(scales.back(), std::abs(values[i]));
  }
  return nf4_groups(scales);
}

// The largest value, and the level nearest to each.
Nf4Block block_of(const float* values) {
  Nf4Block block;
  for (int i = 0; i < 64; ++i) block.scale = std::max(block.scale, std::abs(values[i]));
  for (std::size_t i = 0; i < 64; ++i) {
    const double value = double{values[i]} / block.scale;
    const auto nearest = std::ranges::min_element(kNf4Values, {}, [&](float level) { return std::abs(level - value); });
    const auto code = static_cast<std::uint8_t>(nearest - kNf4Values.begin());
    block.codes[i / 2] |= static_cast<std::uint8_t>(i % 2 == 0 ? code << 4 : code);
  }
  return block;
}

// Every block that this rank has, of its shard and of unsharded weights.
void expect_blocks(engine::Session& session, const Tensors& weights) {
  std::size_t checked = 0, wrong = 0;
  for (int f = 0; f < session.state().flats(); ++f) {
    const nn::Flat& flat = session.model().flat(f);
    const step::FlatState& state = session.state().flat(f);
    ASSERT_EQ(state.quantized_on_load(), flat.spec().packed());
    if (!flat.spec().packed()) continue;
    EXPECT_EQ(state.stored.raw(), state.compute.raw());
    const bool doubly = flat.spec().double_quantized();
    EXPECT_EQ(state.stored.bytes(), state.count / 64 * (doubly ? 33 : 36));
    EXPECT_EQ(state.count * state.shard.count, flat.total(state.shard.count));
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      std::vector<float> values;
      std::vector<Nf4Group> groups;  // by block
      for (const nn::Segment& segment : param.segments) {
        const std::vector<float>& of = weights.at(segment.name);
        values.insert(values.end(), of.begin(), of.end());
        const std::vector<Nf4Group> own = groups_of(of);
        for (std::size_t b = 0; b < of.size() / 64; ++b) groups.push_back(own[b / 256]);
      }
      for (std::int64_t i = 0; i < param.elements(); i += 64) {
        const Nf4Block block = block_of(&values[static_cast<std::size_t>(i)]);
        const Nf4DoubleBlock double_block{groups[static_cast<std::size_t>(i / 64)].code(block.scale), block.codes};
        const auto differs = [&](const TensorView& view, std::int64_t at) {
          ++checked;
          const std::byte* const raw = view.rows(at / 64, 1).raw();
          const int order =
              doubly ? std::memcmp(raw, &double_block, sizeof(double_block)) : std::memcmp(raw, &block, sizeof(block));
          return order == 0 ? 0u : 1u;
        };
        const std::int64_t at = flat.offset(p) + i;
        if (at >= state.begin && at < state.begin + state.count) wrong += differs(state.stored, at - state.begin);
        if (!state.unsharded.empty()) wrong += differs(state.unsharded, at);
      }
    }
  }
  EXPECT_GT(checked, 0u);
  EXPECT_EQ(wrong, 0u) << "of " << checked;
}

// What the state and the plan have of the base: 36 bytes for 64 weights, nothing else; or 33, 8 for a group and 4 for a
// row.
void expect_bytes(engine::Session& session) {
  const plan::RankPlan& plan = session.plan(step::Purpose::train);
  EXPECT_EQ(plan.state_bytes, session.state().bytes());
  std::int64_t bytes = 0;
  for (int f = 0; f < session.state().flats(); ++f) {
    const nn::Flat& flat = session.model().flat(f);
    const step::FlatState& state = session.state().flat(f);
    const std::int64_t count = state.unsharded.empty() ? state.count : flat.total(state.shard.count);
    const std::int64_t block = flat.spec().packed() ? size_of(*flat.spec().gathered) : 4 * 64;
    bytes += round_up(count / 64 * block, Device::kAlignment);
    if (!flat.spec().double_quantized()) continue;
    std::int64_t groups = 0, rows = 0;
    for (const nn::Param& param : flat.params()) {
      rows += param.shape[0];
      for (const nn::Segment& segment : param.segments) groups += ceil_div(segment.global.elements(), 64 * 256);
    }
    bytes += round_up(8 * groups, Device::kAlignment) + round_up(4 * rows, Device::kAlignment);
  }
  EXPECT_EQ(session.state().parameter_bytes(), bytes);
  int gathered = 0;
  for (const auto& [key, buffer] : plan.buffers.index) {
    if (key.role != step::Role::weights) continue;
    const int f = plan.program.instructions[static_cast<std::size_t>(key.a)].flat;
    if (!session.model().flat(f).spec().packed()) continue;
    const std::int64_t total = session.model().flat(f).total(session.state().flat(f).shard.count);
    EXPECT_EQ(plan.buffers.buffers[static_cast<std::size_t>(buffer)].bytes,
              total / 64 * size_of(*session.model().flat(f).spec().gathered));
    ++gathered;
  }
  EXPECT_EQ(gathered > 0, session.layout().gathers_weights());
  // A temporary for each GEMM with W of forward and backward, four a block.
  int dequantized = 0;
  for (const TraceItem& item : plan.trace.items) dequantized += std::string(item.record.name) == "dequantize_nf4";
  EXPECT_EQ(dequantized, 8 * session.model().blocks() * session.layout().micro_batches);
}

Tensors initial_values(const models::Model& plain) {
  return testing::on_one_rank([&] {
    const auto device = rank_device();
    const auto self = comm::make_self_mesh();
    engine::Session one(plain, plan::derive(layout_with({}, plain), plain), *device, *self, {step::Purpose::train});
    one.initialise(3);
    return testing::states_of(one);
  });
}

struct BaseCase {
  DType form = DType::nf4;
  MeshCase on;

  std::string name() const { return testing::joined(to_string(form), on.name()); }
  friend void PrintTo(const BaseCase& c, std::ostream* out) { *out << c.name(); }
};

using Nf4Base = CaseTest<BaseCase>;

TEST_P(Nf4Base, HasTheBytesOfItsBlocks) {
  const MeshCase& c = GetParam().on;
  const models::Model model = packed_model(false, GetParam().form);
  const auto device = rank_device();
  static const Tensors weights = initial_values(plain_model());
  const auto mesh = rank_mesh(c.mesh);
  // Each rank plans itself, and so has a trace.
  engine::Session session(model, plan::derive(layout_with(c, model), model), *device, *mesh, {step::Purpose::train},
                          std::nullopt, {.replay = true});
  session.initialise(3);
  expect_blocks(session, weights);
  expect_bytes(session);
}

std::vector<BaseCase> both_shardings() {
  std::vector<BaseCase> out;
  for (MeshCase c : testing::sharded_meshes()) {
    for (const ShardPolicy policy : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      c.shard_policy = policy;
      for (const DType form : kForms) out.push_back({form, c});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Nf4Base, ::testing::ValuesIn(both_shardings()), CaseName());

// The values of all packed parameters, as a GEMM reads them.
Tensors dequantized(const models::Model& model) {
  return testing::on_one_rank([&] {
    const auto device = rank_device();
    const auto self = comm::make_self_mesh();
    engine::Session one(model, plan::derive(layout_with({}, model), model), *device, *self, {step::Purpose::train});
    one.initialise(3);
    Tensors out;
    for (int f = 0; f < one.state().flats(); ++f) {
      const nn::Flat& flat = model.flat(f);
      for (int p = 0; flat.spec().packed() && p < static_cast<int>(flat.params().size()); ++p) {
        const TensorView view = flat.view(one.state().flat(f).unsharded, p);
        std::vector<float>& values = out[flat.params()[static_cast<std::size_t>(p)].name];
        const nn::Nf4Matrix nf4 = one.state().nf4_matrix(f, p);
        const auto* const groups = reinterpret_cast<const Nf4Group*>(nf4.scales.groups.raw());
        const auto append = [&](float scale, const auto& codes) {
          for (std::size_t i = 0; i < 64; ++i) {
            const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
            values.push_back(scale * kNf4Values[static_cast<std::size_t>(code)]);
          }
        };
        for (std::int64_t b = 0; b < view.elements(); ++b) {
          if (flat.spec().double_quantized()) {
            const auto& block = view.data<Nf4DoubleBlock>()[b];
            const std::int64_t row = b / view.size(1);
            const std::int64_t place = nf4.scales.row_places.data<std::int32_t>()[row] + b % view.size(1);
            append(groups[place / 256].value(block.scale), block.codes);
          } else {
            append(view.data<Nf4Block>()[b].scale, view.data<Nf4Block>()[b].codes);
          }
        }
      }
    }
    return out;
  });
}

struct AdapterCase {
  bool experts = false;  // in place of the MLPs
  MeshCase on;
  DType form = DType::nf4;

  std::string name() const {
    const std::string model = testing::joined(testing::name_if(experts, "experts"), on.name());
    return testing::joined(testing::name_if(form == DType::nf4_double, "double"), model);
  }
  friend void PrintTo(const AdapterCase& c, std::ostream* out) { *out << c.name(); }
};

using Nf4Weights = CaseTest<AdapterCase>;

// On every mesh, of the same mesh.
TEST_P(Nf4Weights, HaveTheBitsOfDequantizedWeights) {
  const bool experts = GetParam().experts;
  const MeshCase& c = GetParam().on;
  const DType form = GetParam().form;
  const models::Model model = packed_model(experts, form), plain = plain_model(experts);
  static std::map<std::pair<bool, DType>, Tensors> references;
  if (!references.contains({experts, form})) references[{experts, form}] = dequantized(model);
  const Tensors& weights = references.at({experts, form});
  // `of`: of the model; `given`: the base has `weights`, rounded to the compute dtype.
  const auto trained = [&](const models::Model& of, bool given) {
    plan::LayoutChoices layout = layout_with(c, of, c.compute);
    const auto groups = rank_mesh(layout.mesh);
    const testing::ToySteps steps(of, layout, groups->coordinate(), 4LL * layout.data_ranks());
    const auto device = rank_device({.random_delay_s = 1e-4, .delay_seed = 5});
    engine::Session session(of, plan::derive(layout, of), *device, *groups, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    write(session);
    if (given) {
      for_each_stored(session, [&](const std::string& name, std::size_t i, float& value) {
        if (const auto found = weights.find(name); found != weights.end()) value = found->second.at(i);
      });
    }
    testing::Trained run;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, run);
    for (const auto& [name, values] : testing::states_of(session)) {
      if (is_adapter(name)) run.after[name] = values;
    }
    return run;
  };
  const testing::Trained packed = trained(model, false), same = trained(plain, true), other = trained(plain, false);
  ASSERT_FALSE(packed.after.empty());
  EXPECT_EQ(packed.losses, same.losses);
  EXPECT_TRUE(same_bits(packed.after, same.after));
  EXPECT_NE(packed.losses, other.losses);
  EXPECT_FALSE(same_bits(packed.after, other.after));
}

std::vector<AdapterCase> both_dtypes() {
  std::vector<AdapterCase> out;
  if (the_world->size() > 4) return out;  // fewer ranks are enough
  const std::vector<MeshCase> meshes = testing::sharded_meshes();
  for (const bool experts : {false, true}) {
    for (std::size_t m = 0; m < meshes.size(); ++m) {
      for (const DType compute : {DType::f32, DType::bf16}) {
        // Of several meshes each has both dtypes, one of them with experts.
        const std::size_t turn = m + (compute == DType::bf16 ? 1 : 0);
        if (meshes.size() > 1 && (turn % 2 == 0) != experts) continue;
        MeshCase c = meshes[m];
        c.compute = compute;
        c.shard_policy = m % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
        c.policy = {.checkpointing = turn / 2 % 2 == 0 ? Checkpointing::full : Checkpointing::none,
                    .delay_weight_gradients = turn % 3 == 1};
        out.push_back({experts, c, kForms[turn / 2 % 2]});
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Nf4Weights, ::testing::ValuesIn(both_dtypes()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Nf4Weights);

using Nf4Adapters = CaseTest<AdapterCase>;

TEST_P(Nf4Adapters, TrainLikeOneRank) {
  const models::Model model = packed_model(GetParam().experts, GetParam().form);
  plan::LayoutChoices layout = layout_with(GetParam().on, model), of_one = layout_with({}, model);
  layout.optimizer = of_one.optimizer = testing::toy_adamw();
  const testing::Trained trained = testing::train(model, layout);
  testing::expect_training_of_one_rank(model, of_one, 4LL * layout.data_ranks(), trained);
}

std::vector<AdapterCase> in_turn() {
  std::vector<AdapterCase> out;
  if (the_world->size() > 4) return out;  // fewer ranks are enough
  int turn = the_world->size();
  for (const bool experts : {false, true}) {
    for (MeshCase c : testing::sharded_meshes()) {
      c.compute = DType::f32;
      c.shard_policy = turn % 2 == 0 ? ShardPolicy::optimizer : ShardPolicy::parameters;
      c.policy.checkpointing = turn / 2 % 2 == 0 ? Checkpointing::full : Checkpointing::none;
      out.push_back({experts, c, kForms[turn / 2 % 2]});
      ++turn;
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Nf4Adapters, ::testing::ValuesIn(in_turn()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Nf4Adapters);

// From files in bf16, with adapters that these do not have.
TEST(Nf4Adapters, WeightsInFilesAreQuantizedOnce) {
  const models::Model plain = plain_model();
  const auto device = rank_device();
  Tensors weights = initial_values(plain);
  const TemporaryFolder own;
  std::vector<checkpoint::SafetensorsSpec> specs;
  for (const models::HfTensor& tensor : models::hf_tensors(plain)) {
    if (!is_adapter(tensor.name)) specs.push_back({tensor.name, tensor.file_shape, DType::bf16});
  }
  checkpoint::write_safetensors(own.path("base"), specs, [&](const checkpoint::SafetensorsSpec& spec) {
    std::vector<float>& values = weights.at(spec.name);
    return TensorView(reinterpret_cast<std::byte*>(values.data()), DType::f32, spec.shape, DeviceKind::cpu);
  });
  for (auto& [name, values] : weights) {
    for (float& value : values) value = static_cast<float>(Bf16(value));
  }
  Problems problems;
  auto folder = checkpoint::SafetensorsFolder::open(own.path("base"), problems);
  ASSERT_TRUE(folder) << problems.lines();
  int turn = 0;
  for (const MeshCase& c : testing::sharded_meshes()) {
    SCOPED_TRACE(c.name());
    const models::Model model = packed_model(false, kForms[++turn % 2]);
    const auto mesh = rank_mesh(c.mesh);
    engine::Session session(model, plan::derive(layout_with(c, model), model), *device, *mesh, {step::Purpose::train});
    session.load(models::WeightSources(*folder), 3);
    expect_blocks(session, weights);
  }
}

// The base is what a run has trained in full: its checkpoint has float32 weights, which are quantized as they are read.
TEST(Nf4Adapters, WeightsInACheckpointAreQuantizedOnce) {
  const models::Model plain = plain_model();
  const std::vector<MeshCase> meshes = testing::sharded_meshes();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const auto device = rank_device();
  Tensors weights;
  {
    const auto mesh = rank_mesh(meshes.front().mesh);
    engine::Session session(plain, plan::derive(layout_with(meshes.front(), plain), plain), *device, *mesh,
                            {step::Purpose::train});
    write(session);
    train::save(session, the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
    weights = assembled(session);
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  for (const DType form : kForms) {
    const MeshCase& c = form == DType::nf4 ? meshes.front() : meshes.back();
    SCOPED_TRACE(c.name());
    const models::Model model = packed_model(false, form);
    const auto mesh = rank_mesh(c.mesh);
    engine::Session session(model, plan::derive(layout_with(c, model), model), *device, *mesh, {step::Purpose::train});
    engine::load(session, checkpoint);
    expect_blocks(session, weights);
    for (const auto& [name, values] : assembled(session)) {
      EXPECT_TRUE(!is_adapter(name) || values == weights.at(name)) << name;
    }
  }
}

// A run's checkpoint has nothing of the base, which is loaded again. It continues on another mesh with the same state,
// and on the same mesh with the bits of a run that did not stop.
TEST(Nf4Adapters, AResumedRunHasTheSameBase) {
  const std::vector<MeshCase> meshes = testing::sharded_meshes();
  for (const DType form : kForms) {
    const models::Model model = packed_model(false, form);
    const TemporaryFolder own;
    const auto with_session = [&](const MeshCase& c, const auto& body) {
      plan::LayoutChoices layout = layout_with(c, model);
      const auto mesh = rank_mesh(layout.mesh);
      const testing::ToySteps steps(model, layout, mesh->coordinate(), 2LL * the_world->size());
      const auto device = rank_device();
      engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
      write(session);
      body(session, steps);
    };
    const std::string root = the_world->all_gather_strings(own.path("adapters")).front();
    const engine::StateScope scope{.frozen = false};
    Tensors saved, after;
    step::OptimizerProgress progress;
    with_session(meshes.front(), [&](engine::Session& session, const testing::ToySteps& steps) {
      testing::Trained ignored;
      testing::take_steps(session, steps, {.inputs = {0, 1}}, ignored,
                          [&](const step::StepOutput& output) { progress = *output.progress; });
      train::save(session, the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"}, scope);
      saved = assembled(session);
      testing::take_steps(session, steps, {.inputs = {2}}, ignored);
      after = assembled(session);
    });
    checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
    for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
      EXPECT_TRUE(is_adapter(tensor.name)) << tensor.name;
    }
    with_session(meshes.back(), [&](engine::Session& session, const testing::ToySteps&) {
      engine::load(session, checkpoint, scope);
      EXPECT_TRUE(same_bits(assembled(session), saved));
    });
    with_session(meshes.front(), [&](engine::Session& session, const testing::ToySteps& steps) {
      engine::load(session, checkpoint, scope);
      session.set_progress(progress);
      testing::Trained ignored;
      testing::take_steps(session, steps, {.inputs = {2}}, ignored);
      EXPECT_TRUE(same_bits(assembled(session), after));
    });
  }
}

}  // namespace nf4_adapters_test
}  // namespace hawser

// What one mesh has saved, another one loads, although it has other tensors together in a parameter, and other slices:
// scales of FP8 weights, and slots of an optimizer whose values are not those of single elements (nn/granularity.h).
#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "engine/load_state.h"
#include "experts_case.h"
#include "plan/disk.h"
#include "tensor_case.h"
#include "toy_muon.h"
#include "train/saver.h"

namespace hawser {
namespace saved_granularities_test {

using testing::assembled;
using testing::Tensors;
using Kind = nn::Granularity::Kind;

// Embedding and head are not cut.
nn::FlatSpec domain_of(const nn::Param& param, const comm::MeshSizes& mesh) {
  if (mesh.tensor == 1 && mesh.expert == 1) return nn::common_domain(param);
  nn::FlatSpec spec = param.flat;
  if (param.name.find("layers.") == std::string::npos) spec.domain = Domain::replicated;
  return spec;
}

enum class Of { fp8, frozen_scaled, slots };

nn::FlatSpecOf spec_of(const comm::MeshSizes& mesh, Of of) {
  nn::FlatSpecOf own([mesh, of](const nn::Param& param) {
    nn::FlatSpec spec = domain_of(param, mesh);
    if (of == Of::slots) spec.group = testing::group_by_rank(param);
    if (of != Of::frozen_scaled || !param.of_linear) return spec;
    spec.trainable = false;
    spec.scaled = true;
    return spec;
  });
  return of == Of::fp8 ? nn::with_fp8_weights(own, [](int) { return true; }) : own;
}

// What a rank has of a model.
models::Model model_of(models::ModelDescription d, const comm::MeshSizes& mesh, Of of,
                       int rank = the_world->rank().value()) {
  const comm::MeshCoordinate place = comm::coordinate_of(rank, mesh);
  d = testing::divisible(std::move(d));
  for (models::BlockDescription& block : d.blocks) {
    if (block.moe) block.moe->experts_shard = {.index = comm::expert_part(place, mesh), .count = mesh.expert};
  }
  if (mesh.tensor > 1) d = testing::part_of(std::move(d), place.tensor, mesh.tensor, {});
  return models::Model(std::move(d), spec_of(mesh, of));
}

// Values of all kinds that are not of an element, which a test writes. It updates nothing.
class Slots : public testing::WithRate {
 public:
  std::string name() const override { return "slots"; }
  std::vector<optim::StateSlot> slots(const nn::Flat&) const override {
    return {{"code", DType::u8},
            {"block", DType::f32, {.kind = Kind::block, .block = 32}},
            {"row", DType::f32, {.kind = Kind::row}},
            {"column", DType::f32, {.kind = Kind::column}},
            {"matrix", DType::f32, {.kind = Kind::matrix}},
            {"part", DType::bf16, {.kind = Kind::gemm_matrix}}};
  }
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    testing::host(stream, "nothing", {u.weights}, {u.weights, u.compute}, [] {});
  }
};

plan::LayoutChoices layout_of(const comm::MeshSizes& mesh, const models::Model& model, Of of) {
  plan::LayoutChoices layout = testing::toy_layout({.mesh = mesh}, model);
  if (of == Of::slots) layout.optimizer = std::make_shared<Slots>();
  if (of != Of::fp8) return layout;
  plan::set_formats(layout, model, {.saturation_limit = 1});
  return layout;
}

// Writes numbers that depend on the tensor and the element to all slots.
void fill_slots(engine::Session& session) {
  for (NamedState& state : engine::HostCopy(session).states(engine::StatesFor::load)) {
    if (!state.name.starts_with("optimizer/")) continue;
    for (const Box& box : state.boxes) {
      for (std::int64_t i = 0; i < box.extent.elements(); ++i) {
        const bool matrix = state.shape.rank() == 2;
        const std::int64_t wide = matrix ? box.extent[1] : 1, row = box.offset[0] + i / wide;
        const std::int64_t element = matrix ? row * state.shape[1] + box.offset[1] + i % wide : row;
        const auto value = static_cast<float>(fnv1a(cat(state.name, '/', element)) % 128);
        if (state.dtype == DType::u8) {
          box.view.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
        } else if (state.dtype == DType::bf16) {
          box.view.data<Bf16>()[i] = Bf16(value);
        } else {
          box.view.data<float>()[i] = value;
        }
      }
    }
  }
}

// What a mesh loads of these states: the largest value of the tensors that share one. `shared` counts differences.
Tensors as_loaded(const models::ModelDescription& whole, const comm::MeshSizes& mesh, Of of, const Tensors& saved,
                  int& shared) {
  Tensors out = saved;
  shared = 0;
  for (int rank = 0; rank < the_world->size(); ++rank) {
    const models::Model model = model_of(whole, mesh, of, rank);
    for (const nn::Flat& flat : model.flats()) {
      for (const nn::Param& param : flat.params()) {
        for (const char* const prefix : {"scale/", "optimizer/part/"}) {
          const auto same = [&](const nn::Segment& a, const nn::Segment& b) {
            return param.matrices == 0 ||
                   a.row / (param.shape[0] / param.matrices) == b.row / (param.shape[0] / param.matrices);
          };
          for (const nn::Segment& to : param.segments) {
            const auto found = out.find(prefix + nn::range_name(to));
            if (found == out.end()) continue;
            for (const nn::Segment& other : param.segments) {
              if (!same(to, other)) continue;
              const float value = saved.at(prefix + nn::range_name(other)).at(0);
              if (value != saved.at(prefix + nn::range_name(to)).at(0)) ++shared;
              found->second[0] = std::max(found->second[0], value);
            }
          }
        }
      }
    }
  }
  return out;
}

class SavedExtents : public ::testing::Test {
 protected:
  checkpoint::Checkpoint saved() const {
    return checkpoint::Checkpoint::open(cat(root_, "/", checkpoint::step_name(step_)));
  }
  void save(engine::Session& session) {
    train::save(session, the_world, {.root = root_}, {.step = ++step_, .recipe = "{}", .config = "{}"});
  }
  // As earlier versions did.
  void save_with_former_names(engine::Session& session) {
    std::set<std::string> former;
    std::vector<NamedState> list;
    engine::HostCopy copy(session);
    copy.fetch();
    for (NamedState& state : copy.states()) {
      if (!state.former_names.empty()) state.name = state.former_names.front();
      if (state.shape.elements() > 1 || former.insert(state.name).second) list.push_back(state);
    }
    const checkpoint::SaveOptions options{.root = root_, .step = ++step_, .world = the_world->size()};
    const bool first = the_world->rank() == Rank(0);
    std::optional<checkpoint::SaveSession> saving;
    if (first) saving.emplace(checkpoint::SaveSession::begin(options));
    const std::string ticket = the_world->all_gather_strings(first ? saving->ticket() : "").front();
    if (!first) saving.emplace(checkpoint::SaveSession::join(options, ticket, the_world->rank().value()));
    const std::vector<std::string> parts = the_world->all_gather_strings(saving->write(list));
    if (first) saving->commit(parts, "{}");
    the_world->all_gather_strings("");
  }

  // Calls body(session) with a new one.
  template <class Body>
  void with_session(const models::ModelDescription& whole, const comm::MeshSizes& sizes, Of of, const Body& body) {
    const models::Model model = model_of(whole, sizes, of);
    const auto mesh = rank_mesh(sizes);
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout_of(sizes, model, of), model), *device, *mesh,
                            {step::Purpose::train});
    session.initialise(4);
    body(session);
  }

  // Every mesh saves, as much as its forecast says on all of them, and all others load. Returns how many values that
  // tensors share on a mesh differed where they were saved.
  int expect_slots_on_all(const models::ModelDescription& whole, const std::vector<comm::MeshSizes>& meshes) {
    int differing = 0;
    std::set<std::int64_t> bytes;
    for (const comm::MeshSizes& from : meshes) {
      Tensors states;
      with_session(whole, from, Of::slots, [&](engine::Session& session) {
        bytes.insert(plan::checkpoint_bytes(session.model(), session.layout()));
        fill_slots(session);
        states = assembled(session);
        save(session);
      });
      for (const comm::MeshSizes& to : meshes) {
        if (&to == &from) continue;
        with_session(whole, to, Of::slots, [&](engine::Session& session) {
          checkpoint::Checkpoint checkpoint = saved();
          engine::load(session, checkpoint);
          int shared = 0;
          const Tensors expected = as_loaded(whole, to, Of::slots, states, shared), loaded = assembled(session);
          differing += shared;
          EXPECT_EQ(loaded.size(), expected.size());
          for (const auto& [name, values] : expected) {
            EXPECT_TRUE(loaded.at(name) == values)
                << name << ", " << testing::name_of(from) << " to " << testing::name_of(to);
          }
        });
      }
    }
    EXPECT_EQ(bytes.size(), 1u);
    return differing;
  }

  const TemporaryFolder own_;
  const std::string root_ = the_world->all_gather_strings(own_.path("checkpoints")).front();
  int step_ = 0;
};

// Tensor ranks with key-value heads of their own and with copies, and none.
std::vector<comm::MeshSizes> tensor_meshes(const models::ModelDescription& whole) {
  const int world = the_world->size();
  std::vector<comm::MeshSizes> meshes = {{.shard = world}, {.tensor = 2, .shard = world / 2}};
  if (world == 4) meshes.push_back({.tensor = 4});
  for (comm::MeshSizes& mesh : meshes) mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
  return meshes;
}

// `fused`: q, k and v are one tensor, of which copies of key-value heads leave q in another parameter than k and v.
models::ModelDescription one_block(bool fused) {
  models::ModelDescription whole = testing::toy_of_nf4_blocks();
  whole.blocks.resize(1);
  whole.blocks[0].attention.kv_heads = std::max(1, the_world->size() / 2);
  return fused ? testing::with_fused_qkv(whole, whole.blocks[0].attention.kv_heads) : whole;
}

struct QkvCase {
  bool fused = false;

  std::string name() const { return fused ? "fused" : "apart"; }
  friend void PrintTo(const QkvCase& c, std::ostream* out) { *out << c.name(); }
};

// Of q, k and v that are one tensor, or three.
class ExtentsOfQkv : public SavedExtents, public ::testing::WithParamInterface<QkvCase> {};
class FrozenExtentsOfQkv : public SavedExtents, public ::testing::WithParamInterface<QkvCase> {};

std::vector<QkvCase> fused_and_apart(bool runs) {
  return runs ? std::vector<QkvCase>{{false}, {true}} : std::vector<QkvCase>();
}
INSTANTIATE_TEST_SUITE_P(Qkv, ExtentsOfQkv,
                         ::testing::ValuesIn(fused_and_apart(the_world->size() == 2 || the_world->size() == 4)),
                         testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExtentsOfQkv);
INSTANTIATE_TEST_SUITE_P(Qkv, FrozenExtentsOfQkv, ::testing::ValuesIn(fused_and_apart(the_world->size() == 2)),
                         testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FrozenExtentsOfQkv);  // two tensor ranks with one key-value head

// The largest scale of tensors is the one that is measured of them together.
TEST_P(ExtentsOfQkv, ScalesOfWeightsLoadOnOtherTensorRanks) {
  const models::ModelDescription whole = one_block(GetParam().fused);
  const std::vector<comm::MeshSizes> meshes = tensor_meshes(whole);
  EXPECT_EQ(meshes.back().kv_copies, 2);
  int differing = 0;
  for (const comm::MeshSizes& from : meshes) {
    const models::Model model = model_of(whole, from, Of::fp8);
    const Tensors states = testing::train(model, layout_of(from, model, Of::fp8),
                                          {.inputs = {0}, .look = [&](engine::Session& session) { save(session); }})
                               .after;
    for (const comm::MeshSizes& to : meshes) {
      if (&to == &from) continue;
      with_session(whole, to, Of::fp8, [&](engine::Session& session) {
        SCOPED_TRACE(cat(testing::name_of(from), " to ", testing::name_of(to)));
        checkpoint::Checkpoint checkpoint = saved();
        EXPECT_TRUE(engine::has_scales(session, checkpoint));
        EXPECT_EQ(engine::missing_scales(session, checkpoint, {}).lines(), "");
        engine::load(session, checkpoint);
        int shared = 0;
        const Tensors expected = as_loaded(whole, to, Of::fp8, states, shared), loaded = assembled(session);
        EXPECT_EQ(loaded.size(), expected.size());
        for (const auto& [name, values] : expected) EXPECT_TRUE(loaded.at(name) == values) << name;
        if (to.kv_copies > from.kv_copies) return;  // has the scales of more tensors
        differing += shared;
        session.parameters_changed();
        EXPECT_TRUE(assembled(session) == loaded);
      });
    }
  }
  EXPECT_GT(differing, 0);
}

TEST_F(SavedExtents, ScalesOfEarlierVersionsAreLoaded) {
  const int world = the_world->size();
  if (world > 2) GTEST_SKIP() << "mesh_1 and mesh_2 run it";
  const std::string block = "scale/model.layers.0.self_attn.",
                    expert = "scale/model.layers.1.block_sparse_moe.experts.3.";
  const auto expect = [&](const models::ModelDescription& whole, const comm::MeshSizes& mesh, const comm::MeshSizes& to,
                          const std::vector<std::string>& names, const std::vector<std::string>& others) {
    const models::Model model = model_of(whole, mesh, Of::fp8);
    const Tensors states =
        testing::train(model, layout_of(mesh, model, Of::fp8),
                       {.inputs = {0}, .look = [&](engine::Session& session) { save_with_former_names(session); }})
            .after;
    checkpoint::Checkpoint checkpoint = saved();
    for (const std::string& name : names) EXPECT_NE(checkpoint.find(name), nullptr) << name;
    for (const std::string& name : others) {
      EXPECT_TRUE(states.contains(name)) << name;
      EXPECT_EQ(checkpoint.find(name), nullptr) << name;
    }
    with_session(whole, to, Of::fp8, [&](engine::Session& session) {
      EXPECT_TRUE(engine::has_scales(session, checkpoint));
      EXPECT_EQ(engine::missing_scales(session, checkpoint, {}).lines(), "");
      engine::load(session, checkpoint);
      EXPECT_TRUE(assembled(session) == states);
    });
  };
  models::ModelDescription experts = testing::toy_description();
  testing::set_experts(experts, 1, 4, 2);
  const comm::MeshSizes shards = {.shard = world};
  expect(experts, shards, shards, {block + "qkv_proj.weight", expert + "w1.weight"},
         {block + "q_proj.weight", expert + "w3.weight"});
  const models::ModelDescription fused = one_block(true);
  const std::vector<std::string> ranges = {block + "qkv_proj.weight[0:128]", block + "qkv_proj.weight[128:160]"};
  expect(fused, shards, shards, {block + "qkv_proj.weight"}, ranges);
  if (world == 1) return;
  const comm::MeshSizes copies = tensor_meshes(fused).back();
  expect(fused, copies, copies, {block + "qkv_proj.weight", block + "qkv_proj+kv.weight"}, ranges);
  // The copies of k and v read the scale of the complete tensor, their last former name.
  expect(fused, shards, copies, {block + "qkv_proj.weight"}, ranges);
}

// Frozen weights are products with their scales: those with different ones cannot become one with one scale.
TEST_P(FrozenExtentsOfQkv, NeedTheirScales) {
  const models::ModelDescription whole = one_block(GetParam().fused);
  const std::vector<comm::MeshSizes> meshes = tensor_meshes(whole);
  for (const comm::MeshSizes& from : meshes) {
    Tensors states;
    with_session(whole, from, Of::frozen_scaled, [&](engine::Session& session) {
      for (int f = 0; f < session.state().flats(); ++f) {
        const nn::Flat& flat = session.model().flat(f);
        for (int p = 0; flat.scale_count() > 0 && p < static_cast<int>(flat.params().size()); ++p) {
          const std::string& name = flat.params()[static_cast<std::size_t>(p)].name;
          *flat.scale_view(session.state().flat(f).scales, p).data<float>() = static_cast<float>(fnv1a(name) % 1000);
        }
      }
      states = assembled(session);
      save(session);
    });
    for (const comm::MeshSizes& to : meshes) {
      with_session(whole, to, Of::frozen_scaled, [&](engine::Session& session) {
        checkpoint::Checkpoint checkpoint = saved();
        if (to.kv_copies >= from.kv_copies) {
          engine::load(session, checkpoint);
          EXPECT_TRUE(assembled(session) == states);
          return;
        }
        try {
          engine::load(session, checkpoint);
          ADD_FAILURE() << "no error";
        } catch (const UserError& error) {
          const std::string text = error.what(), block = "scale/model.layers.0.self_attn.";
          const std::string names = GetParam().fused
                                        ? cat(block, "qkv_proj.weight[0:128], ", block, "qkv_proj.weight[128:160]")
                                        : cat(block, "q_proj.weight, ", block, "k_proj.weight");
          for (const std::string& part :
               {std::string("tensors that are one parameter on this mesh have different scales (got "),
                "at " + names}) {
            EXPECT_NE(text.find(part), std::string::npos) << text;
          }
        }
      });
    }
  }
}

TEST_P(ExtentsOfQkv, SlotsLoadOnOtherTensorRanks) {
  const models::ModelDescription whole = one_block(GetParam().fused);
  EXPECT_GT(expect_slots_on_all(whole, tensor_meshes(whole)), 0);
}

TEST_F(SavedExtents, SlotsLoadOnOtherExpertRanks) {
  const int world = the_world->size();
  if (world != 2 && world != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  models::ModelDescription whole = one_block(true);
  testing::set_experts(whole, 0, 4, 2);
  whole.blocks[0].moe->inner = 24;
  std::vector<comm::MeshSizes> meshes = {{.shard = world}, {.shard = world, .expert = world}};
  if (world == 4) meshes.push_back({.tensor = 2, .shard = 2, .expert = 2});
  expect_slots_on_all(whole, meshes);
}

using TensorOfFewBits = testing::CaseTest<testing::TensorCase>;

// Row-parallel slices of whole blocks.
TEST_P(TensorOfFewBits, HasTheBitsOfOneRank) {
  const testing::MeshAndOneRank states = testing::expect_like_one_rank(GetParam());
  EXPECT_TRUE(states.mesh.after == states.one);
  EXPECT_EQ(states.one.at("optimizer/scale/model.layers.0.mlp.down_proj.weight").size(), 64u * 4);
}

std::vector<testing::TensorCase> eight_bits() {
  std::vector<testing::TensorCase> out;
  if (the_world->size() != 2 && the_world->size() != 4) return out;
  for (const bool fused : {false, true}) {
    const models::ModelDescription whole = one_block(fused);
    for (const comm::MeshSizes& mesh : tensor_meshes(whole)) {
      if (mesh.tensor == 1) continue;
      out.push_back({.model = fused ? "fused" : "",
                     .on = {.mesh = mesh, .division = testing::kVocabulary},
                     .whole = whole,
                     .optimizer = std::make_shared<testing::EightBits>()});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(TensorRanks, TensorOfFewBits, ::testing::ValuesIn(eight_bits()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TensorOfFewBits);

}  // namespace saved_granularities_test
}  // namespace hawser

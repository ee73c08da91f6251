// Slices of tensors over ranks, with a filling of the redistribute seam that all-reduces: attention heads and the MLP's
// inner width are cut over two tensor ranks, all other parameters are copies. The real layers run through plan,
// checker, executor and session; each element of a copy is reduced, counted in the norm and saved once.
#include "models/weights.h"
#include "toy_training.h"

namespace hawser {
namespace {

using testing::Tensors;
using testing::train;
using testing::Trained;

// The all-reduces of tensor parallelism without sequence parallelism.
class AllReduce : public nn::Redistribute {
 public:
  explicit AllReduce(comm::Group& group) : group_(group) {}
  TensorView forward(nn::LayerContext& ctx, nn::Boundary boundary, const TensorView& x) override {
    return boundary == nn::Boundary::row_output ? sum(ctx, x) : x;
  }
  TensorView backward(nn::LayerContext& ctx, nn::Boundary boundary, const TensorView& dy) override {
    return boundary == nn::Boundary::column_input ? sum(ctx, dy) : dy;
  }

 private:
  TensorView sum(nn::LayerContext& ctx, const TensorView& x) {
    const TensorView flat = x.reshape({x.elements()});
    const std::int64_t bytes =
        comm::all_reduce_workspace(x.elements(), x.dtype(), group_.size(), ctx.compute().target());
    group_.all_reduce(ctx.compute(), flat, comm::Reduction::sum,
                      bytes > 0 ? ctx.temp(DType::u8, {bytes}) : TensorView());
    return x;
  }

  comm::Group& group_;
};

// Part `part` of two: two of four heads, one of two key-value heads, and 19 or 18 of 37 inner channels.
models::ModelDescription half_of(models::ModelDescription d, int part) {
  for (models::BlockDescription& block : d.blocks) {
    nn::AttentionConfig& a = block.attention;
    a.heads_part = {.begin = part * a.heads / 2, .total = a.heads};
    a.kv_heads_part = {.begin = part * a.kv_heads / 2, .total = a.kv_heads};
    a.heads /= 2;
    a.kv_heads /= 2;
    nn::MlpConfig& m = block.mlp;
    const std::int64_t first = (m.inner + 1) / 2;
    m.inner_part = {.begin = part == 0 ? 0 : first, .total = m.inner};
    m.inner = part == 0 ? first : m.inner - first;
  }
  return d;
}

// Embedding and head are not cut here.
nn::FlatSpec spec_of(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  if (param.name.find("layers.") == std::string::npos) spec.domain = Domain::replicated;
  return spec;
}

plan::Layout layout_of(comm::MeshSizes mesh, const models::Model& model) {
  plan::Layout layout;
  layout.mesh = mesh;
  layout.batch = testing::toy_batch(mesh.context);
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
  layout.gradient_clip = 0.02;
  plan::set_bounds(layout);
  return layout;
}

double distance(const Tensors& a, const Tensors& b) {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : b) {
    const std::vector<float>& other = a.at(name);
    EXPECT_EQ(other.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{other[i]} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

TEST(Tensor, SlicesAndCopiesTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 4) GTEST_SKIP() << "two tensor ranks with two shards need four ranks";
  for (const bool tied : {true, false}) {
    const models::ModelDescription whole = testing::toy_description(tied);
    const models::Model one(whole);
    std::vector<comm::MeshSizes> meshes = {{.tensor = 2, .shard = world / 2},
                                           {.tensor = 2, .context = 2, .shard = world / 4}};
    if (world == 8) meshes.push_back({.tensor = 2, .shard = 2, .replicate = 2});
    for (const comm::MeshSizes& mesh : meshes) {
      const std::string text = cat("context ", mesh.context, " shard ", mesh.shard, " replicate ", mesh.replicate);
      const int part = comm::place_of(the_world->rank().value(), mesh).tensor;
      const models::Model model(half_of(whole, part), spec_of);
      plan::Layout layout = layout_of(mesh, model);
      layout.replace_seams = [](nn::Seams& seams, comm::Mesh& groups) {
        seams.redistribute = std::make_shared<AllReduce>(groups.tensor());
      };
      const Trained cut = train(model, layout);

      // One rank, which every process runs itself, with the same sequences.
      plan::Layout alone = layout_of({}, one);
      const auto self = comm::make_self_mesh();
      const testing::ToySteps steps(alone, self->place(), 2LL * layout.data_ranks() * 2);
      const auto device = make_cpu_device();
      engine::Session session(one, alone, *device, *self, {step::Purpose::train});
      session.initialise(3);
      const Tensors before = testing::states_of(session);
      std::vector<float> clips;
      for (int step = 0; step < 3; ++step) {
        step::StepInput input = steps.input(step);
        input.record.learning_rate = 0.01f;
        const step::StepOutput output = session.enqueue(step::Purpose::train, input);
        session.synchronize();
        EXPECT_NEAR(cut.losses[static_cast<std::size_t>(step)], output.result->loss_sum.value(),
                    1e-5 * output.result->loss_sum.value())
            << text;
        EXPECT_NEAR(cut.clips[static_cast<std::size_t>(step)], output.result->clip, 1e-6) << text;
      }
      EXPECT_TRUE(cut.before == before) << text << ": initial values";
      EXPECT_LT(distance(cut.after, testing::states_of(session)), 1e-5) << text;
    }
  }
}

}  // namespace
}  // namespace hawser

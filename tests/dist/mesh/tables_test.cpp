// A model with tables of its own: the MLP of each block also adds the embedding of the token's type, times a weight of
// the token's sequence.
//
//   y = mlp(x) + w[sequence of t] * types[type_ids[t], :]
//   dtypes[k, :] = sum over t with type_ids[t] = k of w[sequence of t] * dy[t, :]
#include <atomic>

#include "engine/evaluate_loss.h"
#include "nn/testing/forwarding_layer.h"
#include "outcome.h"

namespace hawser {
namespace tables_test {

using testing::MeshCase;
using testing::Outcome;

constexpr std::int64_t kTypes = 3;
constexpr int kPaddingType = 3;
constexpr float kPaddingWeight = -5;

const std::vector<TableSpec> kTables = {
    {.name = "type_ids", .dtype = DType::i32, .padding = kPaddingType},
    {.name = "weight", .dtype = DType::f32, .entry = TableSpec::Entry::sequence, .padding = kPaddingWeight}};

class TypedLayer : public nn::testing::ForwardingLayer {
 public:
  TypedLayer(std::unique_ptr<nn::Layer> layer, int number, std::int64_t width, std::atomic<std::int64_t>& sequences)
      : ForwardingLayer(std::move(layer)), types_(static_cast<int>(params_.size())), sequences_(sequences) {
    params_.push_back(nn::replicated_param(cat("layers.", number, ".types.weight"), {kTypes, width},
                                           {.kind = nn::Initial::Kind::normal, .std = 0.3}));
  }
  void forward(nn::LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
               const nn::Saved& saved) const override {
    ForwardingLayer::forward(ctx, x, residual, y, saved);
    const Tables tables = tables_of(ctx, y);
    const TensorView types = ctx.weight(types_);
    ctx.compute().launch(
        {.name = "add_types",
         .kind = OpKind::copy,
         .accesses = {reads(tables.ids), reads(tables.weights), reads(types), reads(y), writes(y)}},
        [=, this] {
          tables.for_each_token([&](std::int64_t row, int type, float weight) {
            for (std::int64_t c = 0; c < y.size(1); ++c) {
              y.data<float>()[row * y.size(1) + c] += weight * types.data<float>()[type * y.size(1) + c];
            }
          });
          const float* const weights = tables.weights.data<float>();
          sequences_ += tables.weights.size(0) - std::count(weights, weights + tables.weights.size(0), kPaddingWeight);
        });
  }
  void backward(nn::LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                const nn::Saved& saved, nn::GradientSink& sink, const nn::SavePolicy& policy) const override {
    ForwardingLayer::backward(ctx, dy, dresidual, dx, saved, sink, policy);
    const Tables tables = tables_of(ctx, dy);
    const nn::GradientTarget target = sink.target(types_);
    OpRecord record{.name = "type_gradients",
                    .kind = OpKind::copy,
                    .accesses = {reads(tables.ids), reads(tables.weights), reads(dy), writes(target.view)}};
    if (target.accumulate) record.accesses.push_back(reads(target.view));
    ctx.compute().launch(std::move(record), [=] {
      float* const out = target.view.data<float>();
      if (!target.accumulate) std::fill_n(out, target.view.elements(), 0.0f);
      tables.for_each_token([&](std::int64_t row, int type, float weight) {
        for (std::int64_t c = 0; c < dy.size(1); ++c) {
          out[type * dy.size(1) + c] += weight * dy.data<float>()[row * dy.size(1) + c];
        }
      });
    });
  }

 private:
  struct Tables {
    TensorView ids, weights;

    // Both tables are padded where there is no token.
    void for_each_token(const std::function<void(std::int64_t row, int type, float weight)>& use) const {
      const std::int64_t of_sequence = ids.size(0) / weights.size(0);
      for (std::int64_t row = 0; row < ids.size(0); ++row) {
        const std::int32_t type = ids.data<std::int32_t>()[row];
        const float weight = weights.data<float>()[row / of_sequence];
        if (type != kPaddingType) use(row, type, weight);
        HAWSER_CHECK(type == kPaddingType || (type < kTypes && weight != kPaddingWeight), "type ", type, ", weight ",
                     weight, " in row ", row);
      }
    }
  };
  static Tables tables_of(const nn::LayerContext& ctx, const TensorView& rows) {
    const Tables tables{ctx.batch().table("type_ids", DType::i32), ctx.batch().table("weight", DType::f32)};
    HAWSER_CHECK(tables.ids.size(0) == rows.size(0), "types ", tables.ids.text());
    return tables;
  }

  int types_;
  std::atomic<std::int64_t>& sequences_;
};

// `sequences` counts those that forward passes see.
models::Model typed(std::atomic<std::int64_t>& sequences, const std::vector<TableSpec>& tables = kTables) {
  models::ModelDescription description = testing::toy_description();
  const std::int64_t width = description.embedding.width;
  description.tables = tables;
  return models::Model(std::move(description), nn::common_domain, {}, [&, width](auto layer, int number) {
    const bool mlp = number % 2 == 1;
    return mlp ? std::make_unique<TypedLayer>(std::move(layer), number, width, sequences) : std::move(layer);
  });
}

using Tables = testing::CaseTest<MeshCase>;

TEST_P(Tables, TrainLikeOneRank) {
  const MeshCase& c = GetParam();
  std::atomic<std::int64_t> sequences = 0;
  const models::Model model = typed(sequences);
  const plan::LayoutChoices layout = testing::layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  const Outcome ours = testing::run(model, layout, *mesh, c.batch_size(), c.random_delay_s);
  const Outcome one = testing::on_one_rank([&] {
    return testing::run(model, testing::layout_of({.packed = c.packed}, model), *comm::make_self_mesh(), c.batch_size(),
                        0);
  });
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  testing::expect_gradients(c.mesh, ours, one, 1e-5);
  double squares = 0;
  for (const float value : one.gradients.at("layers.1.types.weight")) squares += double{value} * value;
  EXPECT_GT(squares, 1e-6);
}

// One sequence is missing in the last micro-batch, and the sequences are shorter than the rows for them.
std::vector<MeshCase> every_mesh() {
  std::vector<MeshCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  for (MeshCase c : testing::meshes()) {
    c.micro_batches = 2;
    c.missing = 1;
    c.packed = c.by_work = !c.mesh.shard_context;
    c.policy.checkpointing = c.mesh.context > 1 ? Checkpointing::full : Checkpointing::none;
    c.random_delay_s = 2e-4;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Tables, ::testing::ValuesIn(every_mesh()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Tables);

// What fills an incomplete round of an evaluation has neither tokens nor sequences.
TEST(Tables, FillersOfAnEvaluationHaveNoEntries) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  std::atomic<std::int64_t> sequences = 0;
  const models::Model model = typed(sequences);
  plan::LayoutChoices layout = testing::layout_of({}, model);
  const auto self = comm::make_self_mesh();
  const testing::ToySteps steps(model, layout, self->coordinate(), 3);  // micro-batches of two sequences and of one
  layout.forward_micro_batches = 3;
  const auto device = rank_device();
  engine::Session session(model, plan::derive(layout, model), *device, *self, {step::Purpose::loss});
  session.initialise(3);
  engine::evaluate_loss(session, steps.loader(), 1);
  EXPECT_EQ(sequences, 3 * model.blocks());
}

std::string rejection(const models::Model& model, step::Purpose purpose = step::Purpose::train) {
  try {
    plan::plan_rank(model, plan::derive(testing::layout_of({}, model), model), purpose, 0);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

// Before anything runs: planning runs the layers.
TEST(Tables, ThatLayersReadAreDeclared) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  std::atomic<std::int64_t> sequences = 0;
  EXPECT_EQ(rejection(typed(sequences)), "");
  EXPECT_NE(rejection(typed(sequences, {kTables.begin(), kTables.end() - 1}))
                .find("a layer reads table weight, which the model does not declare"),
            std::string::npos);
  std::vector<TableSpec> other = kTables;
  other[1].dtype = DType::bf16;
  EXPECT_NE(rejection(typed(sequences, other)).find("a layer reads table weight as float32, not as bfloat16"),
            std::string::npos);
  EXPECT_NE(rejection(typed(sequences), step::Purpose::logits).find("logits of a model with tables"),
            std::string::npos);
  other[1].name = "type_ids";
  EXPECT_THROW(typed(sequences, other), InternalError);
}

}  // namespace tables_test
}  // namespace hawser

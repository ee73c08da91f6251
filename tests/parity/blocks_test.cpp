// Blocks of other kinds than Llama's, described as data alone: loss and gradients of GPT-NeoX and GPT-2 equal those of
// transformers in float64 (tests/golden/blocks, made by tools/golden/make_blocks.py).
#include <gtest/gtest.h>

#include <functional>

#include "engine/feed.h"
#include "engine/session.h"
#include "golden.h"
#include "plan/layout.h"

namespace hawser {
namespace {

constexpr std::int64_t kVocabulary = 67, kWidth = 36, kHeads = 3, kHeadDim = 12, kInner = 50;
constexpr nn::NormConfig kLayerNorm{.kind = nn::NormKind::layer, .bias = true};

// LayerNorm, GELU, parallel residual, half of each head rotated; in the file each head's q, k and v are side by side.
models::ModelDescription neox() {
  models::ModelDescription d;
  d.family = "gpt_neox";
  d.embedding = {.vocabulary = kVocabulary, .width = kWidth, .table = "gpt_neox.embed_in"};
  std::vector<nn::FileForm::Rows> rows;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::int64_t part = 0; part < 3; ++part) rows.push_back({(part * kHeads + head) * kHeadDim, kHeadDim});
  }
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("gpt_neox.layers.", b, ".");
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .norm_config = kLayerNorm,
                                      .norm = p + "input_layernorm",
                                      .output = p + "attention.dense",
                                      .fused = p + "attention.query_key_value",
                                      .qkv_rows = rows},
                        .mlp = {.width = kWidth,
                                .inner = kInner,
                                .bias = true,
                                .norm_config = kLayerNorm,
                                .activation = nn::Activation::gelu,
                                .norm = p + "post_attention_layernorm",
                                .up = p + "mlp.dense_h_to_4h",
                                .down = p + "mlp.dense_4h_to_h",
                                .fused = p + "mlp.dense_h_to_4h"},
                        .residual = models::Residual::parallel});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .norm_config = kLayerNorm,
            .norm = "gpt_neox.final_layer_norm",
            .output = "lm_head"};
  d.ropes = {{.theta = 10000.0, .head_dim = kHeadDim / 2}};
  return d;
}

// LayerNorm, GELU by tanh, learned positions, no RoPE, a tied head; the file's weights are transposed.
models::ModelDescription gpt2() {
  models::ModelDescription d;
  d.family = "gpt2";
  d.embedding = {.vocabulary = kVocabulary,
                 .width = kWidth,
                 .table = "transformer.wte",
                 .positions = "transformer.wpe",
                 .max_position = 64};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("transformer.h.", b, ".");
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .norm_config = kLayerNorm,
                                      .transposed = true,
                                      .rope = -1,
                                      .norm = p + "ln_1",
                                      .output = p + "attn.c_proj",
                                      .fused = p + "attn.c_attn"},
                        .mlp = {.width = kWidth,
                                .inner = kInner,
                                .bias = true,
                                .norm_config = kLayerNorm,
                                .transposed = true,
                                .activation = nn::Activation::gelu_tanh,
                                .norm = p + "ln_2",
                                .up = p + "mlp.c_fc",
                                .down = p + "mlp.c_proj",
                                .fused = p + "mlp.c_fc"}});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .tied = true,
            .norm_config = kLayerNorm,
            .norm = "transformer.ln_f",
            .output = "lm_head"};
  return d;
}

std::string golden(const std::string& name, const std::string& file) {
  return cat(HAWSER_SOURCE_DIR, "/tests/golden/blocks/", name, "/", file);
}

checkpoint::SafetensorsFolder open(const models::Model& model, const std::string& folder) {
  Problems problems;
  auto opened = checkpoint::SafetensorsFolder::open(folder, problems);
  if (opened) models::check_weights(model, *opened, problems);
  EXPECT_EQ(problems.lines(), "");
  return std::move(*opened);
}

step::HostBatch document(const std::vector<std::int32_t>& ids) {
  step::HostBatch batch{.ids = ids, .labels = ids};
  batch.labels.erase(batch.labels.begin());
  batch.labels.push_back(-100);
  const auto length = static_cast<std::int32_t>(ids.size());
  for (std::int32_t i = 0; i < length; ++i) batch.positions.push_back(i);
  batch.diagonal = {0, length, 0, length, 0, 0};
  return batch;
}

struct Difference {
  double loss = 0;
  std::map<std::string, double> gradients;  // relative, by tensor
};

// The difference of a description's loss and gradients from the golden ones.
Difference difference(const std::string& name, models::ModelDescription description, Checkpointing checkpointing,
                      bool delayed) {
  const models::Model model(std::move(description));
  const nlohmann::json expected = testing::read_json(golden(name, "expected.json"));
  const auto ids = expected.at("ids").get<std::vector<std::int32_t>>();
  plan::Layout layout;
  layout.batch = {.sequences = 1, .sequence_length = static_cast<std::int64_t>(ids.size()), .max_documents = 1};
  layout.policies.assign(static_cast<std::size_t>(model.layers()),
                         {.checkpointing = checkpointing, .delay_weight_gradients = delayed});
  plan::set_bounds(layout);
  const auto device = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  engine::Session session(model, layout, *device, *mesh, {step::Purpose::gradient_norms}, std::nullopt,
                          {.replay = true});
  auto weights = open(model, golden(name, "model")), gradients = open(model, golden(name, "gradients"));
  session.load(weights, 0);
  step::StepInput input;
  const auto targets = static_cast<double>(ids.size() - 1);
  input.record.inverse_targets = static_cast<float>(1 / targets);
  input.batches = {std::make_shared<step::HostBatch>(document(ids))};
  const step::StepOutput output = session.enqueue(step::Purpose::gradient_norms, input);
  session.synchronize();
  Difference out{.loss = std::abs(output.result->loss_sum.value() / targets / expected.at("loss").get<double>() - 1)};
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const std::int64_t count = session.state().flat(f).count;
    const TensorView own = session.executor(step::Purpose::gradient_norms).gradient_shard(f);
    const Storage reference(*device, DType::f32, {count});
    models::load_flat(model, f, gradients, 0, count, reference);
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      double squares = 0, norm = 0;
      for (std::int64_t i = flat.offset(p); i < flat.offset(p) + param.elements(); ++i) {
        const double there = reference.view().data<float>()[i];
        squares += std::pow(own.data<float>()[i] - there, 2);
        norm += there * there;
      }
      out.gradients[param.name] = std::sqrt(squares / norm);
    }
  }
  return out;
}

void expect_equal(const std::string& name, const std::function<models::ModelDescription()>& describe) {
  for (const bool delayed : {false, true}) {
    for (const auto checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up,
                                     Checkpointing::qkv, Checkpointing::projections, Checkpointing::full}) {
      const Difference off = difference(name, describe(), checkpointing, delayed);
      EXPECT_LT(off.loss, 1e-6) << name;
      for (const auto& [tensor, error] : off.gradients) {
        // The gradient of a key's bias is zero up to rounding where a softmax ignores it; it is part of a fused bias.
        EXPECT_LT(error, 1e-5) << name << ": " << tensor << ", checkpointing " << static_cast<int>(checkpointing);
      }
    }
  }
}

TEST(Blocks, NeoXIsDataAlone) {
  expect_equal("neox", neox);
}

TEST(Blocks, Gpt2IsDataAlone) {
  expect_equal("gpt2", gpt2);
}

// What a description says matters: each of these is another model.
TEST(Blocks, AWrongDescriptionIsFound) {
  using Change = std::function<void(models::ModelDescription&)>;
  const std::map<std::string, Change> changes = {
      {"qkv rows in the model's order", [](auto& d) { d.blocks[0].attention.qkv_rows.clear(); }},
      {"serial residual", [](auto& d) { d.blocks[1].residual = models::Residual::serial; }},
      {"other GELU", [](auto& d) { d.blocks[0].mlp.activation = nn::Activation::gelu_tanh; }},
      {"all of a head rotated", [](auto& d) { d.ropes[0].head_dim = kHeadDim; }},
      {"one of two RoPE bases",
       [](auto& d) {
         d.ropes.push_back({.theta = 50.0, .head_dim = kHeadDim / 2});
         d.blocks[1].attention.rope = 1;
       }},
      {"epsilon", [](auto& d) { d.blocks[0].mlp.norm_config.epsilon = 1e-2; }},
      {"scale", [](auto& d) { d.blocks[0].attention.scale = 0.3; }},
  };
  for (const auto& [text, change] : changes) {
    models::ModelDescription description = neox();
    change(description);
    EXPECT_GT(difference("neox", description, Checkpointing::none, false).loss, 1e-6) << text;
  }
}

}  // namespace
}  // namespace hawser

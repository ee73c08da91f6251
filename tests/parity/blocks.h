// Models that are described as data alone, compared with the golden files of tests/golden/blocks: loss and gradients of
// transformers in float64 (tools/golden/make_blocks.py).
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "base/testing/test_paths.h"
#include "engine/feed.h"
#include "engine/session.h"
#include "generate/decoder.h"
#include "golden.h"
#include "plan/layout.h"

namespace hawser::testing::blocks {

constexpr std::int64_t kVocabulary = 67, kWidth = 36, kHeads = 3, kHeadDim = 12, kInner = 50;
constexpr nn::NormConfig kLayerNorm{.kind = nn::NormKind::layer, .bias = true};

using Describe = std::function<models::ModelDescription()>;

inline std::string golden(const std::string& name, const std::string& file) {
  return cat(testing::kSourceFolder, "/tests/golden/blocks/", name, "/", file);
}

inline checkpoint::SafetensorsFolder open(const models::Model& model, const std::string& folder) {
  Problems problems;
  auto opened = checkpoint::SafetensorsFolder::open(folder, problems);
  if (opened) models::check_weights(model, *opened, problems);
  EXPECT_EQ(problems.lines(), "");
  return std::move(*opened);
}

// The document of a golden file. Its types of tokens are the batch's table of that name.
inline step::HostBatch document(const nlohmann::json& expected) {
  const auto ids = expected.at("ids").get<std::vector<std::int32_t>>();
  step::HostBatch batch{.ids = ids, .labels = ids};
  batch.labels.erase(batch.labels.begin());
  batch.labels.push_back(-100);
  const auto length = static_cast<std::int32_t>(ids.size());
  for (std::int32_t i = 0; i < length; ++i) batch.positions.push_back(i);
  batch.diagonal = {0, length, 0, length, 0, 0};
  batch.token_mask.assign(ids.size(), 1);
  if (const auto types = expected.find(nn::kTokenTypes.name); types != expected.end()) {
    batch.tables.emplace(nn::kTokenTypes.name, TableValues(types->get<std::vector<std::int32_t>>()));
  }
  return batch;
}

struct Difference {
  double loss = 0, router_loss = 0;
  std::map<std::string, double> gradients;  // relative, by tensor
};

// The relative differences of a session's gradients from those of files, by tensor.
inline std::map<std::string, double> gradient_errors(engine::Session& session, const models::Model& model,
                                                     checkpoint::SafetensorsFolder& gradients) {
  std::map<std::string, double> out;
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const std::int64_t count = session.state().flat(f).count;
    const TensorView own = session.executor(step::Purpose::gradient_norms).gradient_shard(f);
    const Storage reference(session.device(), DType::f32, {count});
    models::load_flat(model, f, gradients, 0, count, reference);
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      double squares = 0, norm = 0;
      const std::int64_t row = param.elements() / param.shape[0];
      const bool experts = param.segments.size() > 3;  // each is a tensor of its own; those of a fused QKV are not
      for (const nn::Segment& segment : param.segments) {
        const std::int64_t begin = flat.offset(p) + segment.row * row;
        if (experts) squares = norm = 0;
        for (std::int64_t i = begin; i < begin + segment.rows * row; ++i) {
          const double there = reference.view().data<float>()[i];
          squares += std::pow(own.data<float>()[i] - there, 2);
          norm += there * there;
        }
        out[experts ? segment.name : param.name] = std::sqrt(squares / norm);
      }
    }
  }
  return out;
}

// The difference of a description's loss and gradients from the golden ones.
inline Difference difference(const std::string& name, models::ModelDescription description, Checkpointing checkpointing,
                             bool delayed) {
  const models::Model model(std::move(description));
  const nlohmann::json expected = read_json(golden(name, "expected.json"));
  const auto ids = expected.at("ids").get<std::vector<std::int32_t>>();
  plan::LayoutChoices layout;
  layout.batch_sizes = {.sequences = 1, .sequence_length = static_cast<std::int64_t>(ids.size()), .max_documents = 1};
  layout.policies.assign(static_cast<std::size_t>(model.layers()),
                         {.checkpointing = checkpointing, .delay_weight_gradients = delayed});
  const auto device = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::gradient_norms},
                          std::nullopt, {.replay = true});
  auto weights = open(model, golden(name, "model")), gradients = open(model, golden(name, "gradients"));
  session.load(weights, 0);
  step::StepInput input;
  const auto targets = static_cast<double>(ids.size() - 1);
  input.record.inverse_targets = static_cast<float>(1 / targets);
  input.batches = {std::make_shared<step::HostBatch>(document(expected))};
  const step::StepOutput output = session.enqueue(step::Purpose::gradient_norms, input);
  session.synchronize();
  Difference out{.loss = std::abs(output.result->loss_sum.value() / targets / expected.at("loss").get<double>() - 1)};
  if (const double router_loss = expected.value("router_loss", 0.0); router_loss > 0) {
    out.router_loss = std::abs(output.result->auxiliary_loss / router_loss - 1);
  }
  out.gradients = gradient_errors(session, model, gradients);
  return out;
}

inline void expect_equal(const std::string& name, const Describe& describe) {
  for (const bool delayed : {false, true}) {
    for (const auto checkpointing :
         {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up, Checkpointing::qkv,
          Checkpointing::projections, Checkpointing::full, Checkpointing::block}) {
      const Difference off = difference(name, describe(), checkpointing, delayed);
      EXPECT_LT(off.loss, 1e-6) << name;
      EXPECT_LT(off.router_loss, 1e-6) << name;
      for (const auto& [tensor, error] : off.gradients) {
        // The gradient of a key's bias is zero up to rounding where a softmax ignores it; it is part of a fused bias.
        EXPECT_LT(error, 1e-5) << name << ": " << tensor << ", checkpointing " << static_cast<int>(checkpointing);
      }
    }
  }
}

// The loss of generation: logits of passes over a prompt and then one token each.
inline double loss_of_generation(engine::OpenModel& model, const std::vector<std::int32_t>& ids) {
  const auto device = make_cpu_device();
  const auto length = static_cast<std::int64_t>(ids.size());
  generate::Decoder decoder(model, {}, {.sequences = 1, .positions = length}, 1, *device);
  double sum = 0;
  for (std::int64_t at = 0; at + 1 < length; ++at) {
    std::span<const float> logits;
    if (at < 9) {
      logits = decoder.prefill(0, 0, std::span(ids).first(static_cast<std::size_t>(at + 1)));
    } else {
      const generate::Decoder::NewToken token{0, at, ids[static_cast<std::size_t>(at)]};
      decoder.decode({&token, 1});
      logits = decoder.logits(0);
    }
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    sum += std::log(total) - logits[static_cast<std::size_t>(ids[static_cast<std::size_t>(at + 1)])];
  }
  return sum / static_cast<double>(length - 1);
}

// The KV cache has the keys that attention reads.
inline void expect_equal_generation(const std::string& name, const Describe& describe) {
  engine::OpenModel model;
  model.model = std::make_unique<models::Model>(describe());
  model.weights = open(*model.model, golden(name, "model"));
  const nlohmann::json expected = read_json(golden(name, "expected.json"));
  const double loss = loss_of_generation(model, expected.at("ids").get<std::vector<std::int32_t>>());
  EXPECT_NEAR(loss / expected.at("loss").get<double>(), 1.0, 1e-6) << name;
}

using Change = std::function<void(models::ModelDescription&)>;

inline void expect_another(const std::string& name, const Describe& describe,
                           const std::map<std::string, Change>& changes) {
  for (const auto& [text, change] : changes) {
    models::ModelDescription description = describe();
    change(description);
    EXPECT_GT(difference(name, description, Checkpointing::none, false).loss, 1e-6) << text;
  }
}

}  // namespace hawser::testing::blocks

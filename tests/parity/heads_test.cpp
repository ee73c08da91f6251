// Heads that predict masked tokens and classes: loss and gradients of packed documents in two micro-batches equal those
// of transformers in float64, which gets one document at a time (tools/golden/make_heads.py).
#include "base/testing/test_paths.h"
#include "batches/batch_loader.h"
#include "batches/labels.h"
#include "encoders.h"
#include "support/toy.h"

namespace hawser {
namespace heads_test {

using namespace testing::blocks;

constexpr Sizes kSizes{.vocabulary = 23, .width = 12, .heads = 2, .inner = 14, .positions = 16, .blocks = 1};

nlohmann::json expected_of(const std::string& name) {
  return testing::read_json(cat(testing::kSourceFolder, "/tests/golden/heads/", name, "/expected.json"));
}

// The golden documents in three sequences.
class Documents : public batches::SequenceSet {
 public:
  Documents(const std::string& name, LabelRows rows, bool types) : rows_(rows) {
    const nlohmann::json all = expected_of(name).at("documents");
    for (const auto& [begin, end] : {std::pair{0, 2}, {2, 3}, {3, 5}}) {
      batches::Sequence sequence;
      std::vector<std::int32_t> classes, of_types;
      for (int d = begin; d < end; ++d) {
        const nlohmann::json& document = all.at(static_cast<std::size_t>(d));
        const auto append = [&](const char* key, std::vector<std::int32_t>& to) {
          for (const std::int32_t value : document.at(key)) to.push_back(value);
        };
        const std::size_t before = sequence.ids.size();
        append("ids", sequence.ids);
        if (types) append(nn::kTokenTypes.name.c_str(), of_types);
        sequence.document_lengths.push_back(static_cast<std::int32_t>(sequence.ids.size() - before));
        if (rows == LabelRows::own) {
          append("labels", sequence.labels);
        } else {
          classes.push_back(document.at("labels"));
        }
      }
      if (rows != LabelRows::own) {
        sequence.labels = batches::labels_of_documents(sequence.document_lengths, classes, rows);
      }
      sequence.positions = batches::positions_of(sequence.document_lengths);
      if (types) sequence.tables.emplace(nn::kTokenTypes.name, TableValues(of_types));
      sequences_.push_back(std::move(sequence));
    }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(sequences_.size()); }
  std::int64_t max_documents() const override { return 2; }
  LabelRows label_rows() const override { return rows_; }
  batches::Sequence get(std::int64_t index) const override { return sequences_.at(static_cast<std::size_t>(index)); }

 private:
  LabelRows rows_;
  std::vector<batches::Sequence> sequences_;
};

// The number of golden labels, whichever rows have them.
std::int64_t labels_in(const nlohmann::json& expected) {
  std::int64_t count = 0;
  for (const nlohmann::json& document : expected.at("documents")) {
    for (const nlohmann::json& label :
         document.at("labels").is_array() ? document.at("labels") : nlohmann::json::array({document.at("labels")})) {
      if (label.get<int>() >= 0) ++count;
    }
  }
  return count;
}

Difference difference_of_heads(const std::string& name, models::ModelDescription description,
                               const nn::SavePolicy& policy) {
  const models::Model model(std::move(description));
  const nlohmann::json expected = expected_of(name);
  plan::LayoutChoices layout;
  layout.batch_sizes = {.sequences = 2, .sequence_length = 12, .max_documents = 2};
  const batches::BatchShape batch = plan::derive(layout, model).batch;
  layout.policies.assign(static_cast<std::size_t>(model.layers()), policy);
  const batches::BatchLoader loader(
      std::make_shared<Documents>(name, batch.labels.rows, !model.description().tables.empty()), batch, {},
      {.global_batch_size = 3, .shuffle = false});
  layout.micro_batches = static_cast<int>(loader.micro_batches());
  if (policy.delay_weight_gradients) layout.schedule.group = 2;
  EXPECT_EQ(layout.micro_batches, 2);
  EXPECT_EQ(loader.step_targets(0), labels_in(expected)) << name;
  const auto device = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::gradient_norms},
                          std::nullopt, {.replay = true});
  const std::string folder = cat(testing::kSourceFolder, "/tests/golden/heads/", name);
  auto weights = open(model, folder + "/model"), gradients = open(model, folder + "/gradients");
  session.load(weights, 0);
  const auto targets = static_cast<double>(loader.step_targets(0));
  step::StepInput input;
  input.record.inverse_targets = static_cast<float>(1 / targets);
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    input.batches.push_back(engine::to_host_batch(loader.load(0, m), batch));
  }
  const step::StepOutput output = session.enqueue(step::Purpose::gradient_norms, input);
  session.synchronize();
  return {.loss = std::abs(output.result->loss_sum.value() / targets / expected.at("loss").get<double>() - 1),
          .gradients = gradient_errors(session, model, gradients)};
}

void expect_equal_heads(const std::string& name, const models::ModelDescription& description) {
  for (const bool delayed : {false, true}) {
    for (const auto checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up,
                                     Checkpointing::qkv, Checkpointing::projections, Checkpointing::full}) {
      const Difference off =
          difference_of_heads(name, description, {.checkpointing = checkpointing, .delay_weight_gradients = delayed});
      EXPECT_LT(off.loss, 1e-6) << name;
      EXPECT_GT(off.gradients.size(), 8u) << name;
      for (const auto& [tensor, error] : off.gradients) {
        EXPECT_LT(error, 1e-5) << name << ": " << tensor << ", checkpointing " << static_cast<int>(checkpointing);
      }
    }
  }
}

models::ModelDescription bert_masked() {
  models::ModelDescription d = bert(kSizes);
  d.head = head_of_masks(kSizes);
  d.head.kind = nn::HeadKind::masked_language_model;
  return d;
}

// Of the last layer's output, without a norm of its own.
nn::HeadConfig classifier(nn::HeadKind kind, std::int64_t classes, const std::string& output) {
  return {.width = kSizes.width, .output = output, .kind = kind, .classes = classes, .bias = true};
}

models::ModelDescription bert_tokens() {
  models::ModelDescription d = bert(kSizes);
  d.head = classifier(nn::HeadKind::token_classification, 5, "classifier");
  return d;
}

models::ModelDescription bert_sequences() {
  models::ModelDescription d = bert(kSizes);
  d.head = classifier(nn::HeadKind::sequence_classification, 3, "classifier");
  d.head.transform = nn::HeadTransformConfig{.dense = "bert.pooler.dense", .activation = nn::Activation::tanh};
  return d;
}

models::ModelDescription roberta_sequences() {
  models::ModelDescription d = roberta(kSizes);
  d.head = classifier(nn::HeadKind::sequence_classification, 3, "classifier.out_proj");
  d.head.transform = nn::HeadTransformConfig{.dense = "classifier.dense", .activation = nn::Activation::tanh};
  return d;
}

// The final norm, and no pooler.
models::ModelDescription llama_sequences() {
  constexpr nn::NormConfig kNorm{.epsilon = 1e-6};
  models::ModelDescription d = testing::llama_description({.width = kSizes.width,
                                                           .heads = kSizes.heads,
                                                           .kv_heads = 1,
                                                           .head_dim = kSizes.width / kSizes.heads,
                                                           .inner = kSizes.inner,
                                                           .vocabulary = kSizes.vocabulary,
                                                           .blocks = kSizes.blocks});
  for (models::BlockDescription& block : d.blocks) block.attention.norm_config = block.mlp.norm_config = kNorm;
  d.head = classifier(nn::HeadKind::sequence_classification, 3, "score");
  d.head.norm = "model.norm";
  d.head.norm_config = kNorm;
  d.head.bias = false;
  d.head.last_row = true;
  return d;
}

TEST(Heads, PredictMaskedTokensLikeBert) {
  expect_equal_heads("bert_masked", bert_masked());
}

TEST(Heads, ClassifyTokensLikeBert) {
  expect_equal_heads("bert_tokens", bert_tokens());
}

TEST(Heads, ClassifySequencesLikeBertAndRoberta) {
  expect_equal_heads("bert_sequences", bert_sequences());
  expect_equal_heads("roberta_sequences", roberta_sequences());
}

TEST(Heads, ClassifySequencesLikeLlama) {
  expect_equal_heads("llama_sequences", llama_sequences());
}

TEST(Heads, AWrongHeadIsFound) {
  const auto expect_another_head = [](const std::string& name, models::ModelDescription d, const Change& change) {
    change(d);
    EXPECT_GT(difference_of_heads(name, d, {}).loss, 1e-3) << name;
  };
  expect_another_head("bert_sequences", bert_sequences(), [](auto& d) { d.head.last_row = true; });
  expect_another_head("bert_sequences", bert_sequences(),
                      [](auto& d) { d.head.transform->activation = nn::Activation::gelu; });
  expect_another_head("llama_sequences", llama_sequences(), [](auto& d) { d.head.last_row = false; });
  expect_another_head("llama_sequences", llama_sequences(), [](auto& d) { d.head.softcap = 1; });
}

}  // namespace heads_test
}  // namespace hawser

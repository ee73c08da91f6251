// Training steps on a data file, and a model's tensors by name, for comparisons with the steps in expected.json
// (tests/golden/README.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/test_paths.h"
#include "checkpoint/boxes.h"
#include "engine/feed.h"
#include "golden.h"
#include "optim/adamw_optimizer.h"

namespace hawser::testing {

constexpr double kStepError = 1e-4;  // of each step's loss, relative

inline std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(testing::kSourceFolder) / "tests/golden" / name;
}

inline std::unique_ptr<evaluate::OpenEvaluation> open_golden(const std::filesystem::path& folder,
                                                             std::int64_t sequence_length) {
  Problems problems;
  auto opened = evaluate::open_evaluation(
      {.model = folder.string(), .data = (folder / "data.jsonl").string(), .sequence_length = sequence_length}, 0, 1,
      problems);
  problems.throw_if_any();
  return std::make_unique<evaluate::OpenEvaluation>(std::move(*opened));
}

// The layout of the steps in expected.json.
inline plan::LayoutChoices training_layout(plan::LayoutChoices layout, const nlohmann::json& steps) {
  layout.gradient_clip = steps.at("gradient_clip").get<double>();
  layout.optimizer = optim::make_adamw({.beta1 = steps.at("beta1"),
                                        .beta2 = steps.at("beta2"),
                                        .epsilon = steps.at("epsilon"),
                                        .weight_decay = steps.at("weight_decay")});
  return layout;
}

// The whole file as the batch of a step.
inline step::StepInput whole_file(const batches::BatchLoader& loader) {
  step::StepInput step;
  step.record.inverse_targets = 1.0f / static_cast<float>(loader.step_targets(0));
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    step.batches.push_back(engine::to_host_batch(loader.load(0, m), loader.shape()));
  }
  return step;
}

// Losses before each of the steps in expected.json. The session has training_layout.
inline std::vector<double> train(engine::Session& session, const batches::BatchLoader& loader,
                                 const nlohmann::json& steps) {
  step::StepInput step = whole_file(loader);
  step.record.learning_rate = steps.at("learning_rate").get<float>();
  std::vector<double> losses;
  for (int n = 0; n < steps.at("count").get<int>(); ++n) {
    step.record.step = n;
    const step::StepOutput output = session.enqueue(step::Purpose::train, step);
    session.synchronize();
    losses.push_back(output.result->loss_sum.value() / static_cast<double>(loader.step_targets(0)) +
                     static_cast<double>(output.result->auxiliary_loss));
  }
  return losses;
}

inline void expect_losses(const std::vector<double>& losses, const std::vector<double>& reference) {
  ASSERT_EQ(losses.size(), reference.size());
  for (std::size_t n = 0; n < losses.size(); ++n) {
    EXPECT_NEAR(losses[n], reference[n], kStepError * reference[n]) << "step " << n;
  }
}

// Complete float32 tensors in the model's form, by name.
using Tensors = std::map<std::string, std::vector<float>>;

inline void add_tensors(const std::vector<NamedState>& states, Tensors& tensors) {
  for (const NamedState& state : states) {
    std::vector<float>& tensor = tensors[state.name];
    tensor.resize(static_cast<std::size_t>(state.shape.elements()));
    for (const Box& box : state.boxes) {
      const float* from = box.view.data<float>();
      checkpoint::for_each_run(state.shape, checkpoint::region_of(box), [&](std::int64_t begin, std::int64_t run) {
        std::copy_n(from, run, tensor.data() + begin);
        from += run;
      });
    }
  }
}

// `tensors` outlives the result.
inline models::StateSource source_of(const Tensors& tensors) {
  return [&tensors](const std::vector<NamedState>& wanted) {
    for (const NamedState& state : wanted) {
      for (const Box& box : state.boxes) {
        float* to = box.view.data<float>();
        checkpoint::for_each_run(state.shape, checkpoint::region_of(box), [&](std::int64_t begin, std::int64_t run) {
          to = std::copy_n(tensors.at(state.name).data() + begin, run, to);
        });
      }
    }
  };
}

// The same names, shapes and bytes.
inline void expect_same_files(const checkpoint::SafetensorsFolder& a, const checkpoint::SafetensorsFolder& b) {
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    const checkpoint::TensorInfo *of_a = a.find(name), *of_b = b.find(name);
    ASSERT_EQ(of_a->shape.text(), of_b->shape.text()) << name;
    ASSERT_EQ(of_a->bytes, of_b->bytes) << name;
    std::vector<std::byte> bytes(static_cast<std::size_t>(of_a->bytes)), other = bytes;
    a.read_bytes(name, 0, bytes.data(), of_a->bytes);
    b.read_bytes(name, 0, other.data(), of_b->bytes);
    EXPECT_EQ(bytes, other) << name;
  }
}

}  // namespace hawser::testing

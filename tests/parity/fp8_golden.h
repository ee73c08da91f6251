// Loss and gradients of the golden models with all blocks in FP8.
#pragma once

#include <cstdio>

#include "evaluate/eval_data.h"
#include "golden.h"
#include "models/model.h"
#include "plan/layout.h"
#include "plan/run_plan.h"

namespace hawser::testing {

// What FP8 may change, relative to transformers in float64: of the loss, and of all gradients together,
// ||g - g0|| / ||g0||. E4M3 has 3 bits of significand and E5M2 has 2. Weights of the golden models are larger than those
// of trained models: attention is peaked, so that a little in a score is much in a gradient, and experts are close to a
// tie, so that some tokens get others. A gradient of zero has 1, one of the wrong sign 2.
constexpr double kFp8LossError = 0.02, kFp8GradientError = 0.7, kFp8RoutedGradientError = 0.9;

inline bool has_experts(const std::filesystem::path& folder) {
  const nlohmann::json config = read_json(folder / "config.json");
  return config.contains("num_experts") || config.contains("num_local_experts");
}

inline void expect_fp8_follows_transformers(const std::filesystem::path& folder, const engine::RankDevice& place,
                                            Fp8Scaling scaling) {
  const nlohmann::json expected = read_json(folder / "expected.json");
  Problems problems;
  auto input = evaluate::open_evaluation({.model = folder.string(),
                                          .data = (folder / "data.jsonl").string(),
                                          .sequence_length = expected.at("sequence_length"),
                                          .gradient_norms = true,
                                          .device = place},
                                         0, 1, problems);
  problems.throw_if_any();
  const auto all = [](int) { return true; };
  input->open.model = std::make_unique<models::Model>(input->open.model->description(),
                                                      scaling == Fp8Scaling::block
                                                          ? nn::with_weights_quantized_on_use(nn::common_domain, all)
                                                          : nn::with_fp8_weights(nn::common_domain, all));
  plan::LayoutChoices choices = input->layout;
  plan::set_formats(choices, *input->open.model, {.scaling = scaling});
  input->layout = plan::derive(choices, *input->open.model);
  // A GPU gets rows of padding.
  auto data = evaluate::open_eval_data({.data = (folder / "data.jsonl").string(),
                                        .vocabulary = input->open.model->vocabulary(),
                                        .max_documents = plan::packing_of(input->recipe.data).max_documents},
                                       input->layout.batch, {}, problems);
  problems.throw_if_any();
  input->loader = std::move(data.loader);
  choices.batch_sizes = input->loader->shape();
  input->layout = plan::derive(choices, *input->open.model);
  std::map<std::string, std::vector<double>> projections;
  const double loss = evaluate::evaluate(*input, nullptr, [&](engine::Session& session) {
                        projections = gradient_projections(session, evaluate::gradient_purpose(session.model()));
                      }).loss;
  double distance = 0, whole = 0;
  for (const auto& [tensor, reference] : expected.at("projections").items()) {
    const auto values = reference.get<std::vector<double>>();
    const double off = projected_distance(projections.at(tensor), values), norm_of = norm(values);
    distance += off * off;
    whole += norm_of * norm_of;
  }
  const double of_loss = std::abs(loss / expected.at("loss").get<double>() - 1),
               of_gradient = std::sqrt(distance / whole);
  std::printf("%-20s FP8 %s changes the loss by %.4f, gradients by %.3f\n", folder.filename().c_str(),
              scaling == Fp8Scaling::block ? "with scales of blocks" : "with one scale", of_loss, of_gradient);
  EXPECT_LT(of_loss, kFp8LossError);
  EXPECT_LT(of_gradient, has_experts(folder) ? kFp8RoutedGradientError : kFp8GradientError);
  EXPECT_GT(of_gradient, 0.005) << "nothing is rounded to FP8";
}

inline void expect_fp8_follows_transformers(const std::filesystem::path& folder, const engine::RankDevice& place) {
  SCOPED_TRACE(folder.string());
  expect_fp8_follows_transformers(folder, place, Fp8Scaling::delayed);
  if (!has_experts(folder)) expect_fp8_follows_transformers(folder, place, Fp8Scaling::block);
}

}  // namespace hawser::testing

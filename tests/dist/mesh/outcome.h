// `Outcome`: loss and gradients of one step of a model on a mesh, for tests that compare them with one rank.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/formats/safetensors.h"
#include "engine/host_copy.h"
#include "engine/session.h"
#include "mesh_case.h"
#include "models/weights.h"
#include "one_rank.h"

namespace hawser::testing {

struct Outcome {
  double loss = 0, auxiliary_loss = 0;
  std::vector<float> statistics;                        // of the auxiliary loss
  std::map<std::string, std::vector<float>> gradients;  // full tensors; on a mesh other ranks' elements are NaN
  auto fields() { return std::tie(loss, auxiliary_loss, statistics, gradients); }
};

// The statistics of the auxiliary loss, summed over the micro-batches of `input`: a forward-only step has one.
inline std::vector<float> statistics_of(engine::Session& session, const step::StepInput& input) {
  std::vector<float> sum;
  for (const auto& batch : input.batches) {
    step::StepInput one = input;
    one.batches = {batch};
    const auto output = session.enqueue(step::Purpose::loss, one);
    session.synchronize();
    sum.resize(output.auxiliary_statistics->size());
    std::ranges::transform(sum, *output.auxiliary_statistics, sum.begin(), std::plus());
  }
  return sum;
}

// Loss and gradients of the first step, with the given weights or random ones, which `prepare` may change. With
// Purpose::gradient_norms_of_part, the statistics given are the step's.
inline Outcome run(const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh, std::int64_t batch_size,
                   double random_delay_s, checkpoint::SafetensorsFolder* weights = nullptr,
                   const std::function<void(engine::Session&)>& prepare = {},
                   step::Purpose purpose = step::Purpose::gradient_norms) {
  const ToySteps steps(model, layout, mesh.coordinate(), batch_size);
  const auto device = rank_device({.random_delay_s = random_delay_s, .delay_seed = 5});
  engine::Session session(model, plan::derive(layout, model), *device, mesh, {purpose, step::Purpose::loss});
  if (weights != nullptr) {
    session.load(*weights, 0);
  } else {
    session.initialise(3);
  }
  if (prepare) prepare(session);
  const std::int64_t tokens = steps.targets(0);
  step::StepInput input = steps.input(0);
  if (purpose == step::Purpose::gradient_norms_of_part) input.auxiliary_statistics = statistics_of(session, input);
  const auto output = session.enqueue(purpose, input);
  session.synchronize();
  Outcome out;
  if (output.auxiliary_statistics) out.statistics = *output.auxiliary_statistics;
  out.auxiliary_loss = output.result->auxiliary_loss;
  out.loss = output.result->loss_sum.value() / static_cast<double>(tokens);
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const step::FlatState& state = session.state().flat(f);
    if (!state.first_stage) continue;
    const std::vector<float> values = engine::values_of(session, session.executor(purpose).gradient_shard(f));
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        out.gradients[nn::range_name(segment)].assign(static_cast<std::size_t>(nn::segment_shape(segment).elements()),
                                                      std::nanf(""));
      }
    }
    for (const models::SegmentRange& piece : models::segment_ranges(flat, state.begin, state.count)) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
      std::copy_n(
          values.begin() + piece.at, piece.count,
          out.gradients[nn::range_name(param.segments[static_cast<std::size_t>(piece.segment)])].begin() + piece.first);
    }
  }
  return out;
}

// Expects that each gradient of `mesh`, summed over the pieces of all ranks, differs from that of `one` by less than
// `max` of its norm.
inline void expect_gradients(const comm::MeshSizes& sizes, const Outcome& mesh, const Outcome& one, double max) {
  nlohmann::json mine;
  for (const auto& [name, gradient] : mesh.gradients) {
    const std::vector<float>& reference = one.gradients.at(name);
    double difference = 0, norm = 0;
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      if (std::isnan(gradient[i])) continue;  // another rank's; a NaN of this rank's is missing in the count
      difference += std::pow(double{gradient[i]} - reference[i], 2);
      norm += std::pow(double{reference[i]}, 2);
      ++elements;
    }
    mine[name] = {difference, norm, elements};
  }
  std::map<std::string, std::array<double, 3>> sums;
  for (const std::string& text : the_world->all_gather_strings(mine.dump())) {
    const nlohmann::json part = nlohmann::json::parse(text);
    for (const auto& [name, value] : part.items()) {
      for (std::size_t i = 0; i < 3; ++i) sums[name][i] += value[i].get<double>();
    }
  }
  double full = 0;
  for (const auto& [name, sum] : sums) full += sum[1];
  const double copies = sizes.shard_context ? sizes.replicate : the_world->size();
  for (const auto& [name, sum] : sums) {
    EXPECT_EQ(sum[2], copies * static_cast<double>(one.gradients.at(name).size())) << name;
    // The lower bound: a gradient that is tiny relative to the model's is compared relative to the model's.
    const double floor = 1e-3 * std::sqrt(full);
    EXPECT_LT(std::sqrt(sum[0]) / std::max(std::sqrt(sum[1]), floor), max) << name;
  }
}

}  // namespace hawser::testing

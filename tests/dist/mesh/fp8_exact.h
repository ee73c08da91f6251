// The exact layers (exact_layers.h) in FP8: scales are powers of two, so that all sums are exact.
#pragma once

#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "exact_layers.h"
#include "nn/precision/fp8_block_scaling.h"
#include "nn/precision/fp8_scaling.h"
#include "train/saver.h"

namespace hawser::testing {

constexpr int kFp8Steps = 6;
constexpr nn::Fp8Options kExactFp8{.history = 4, .power_of_two = true};

inline std::int64_t whole_batch() {
  return 2LL * the_world->size();
}

inline models::Model fp8_model(bool frozen_up = false) {
  return exact_model(true, true, true, true, frozen_up);
}

inline plan::LayoutChoices fp8_layout(const models::Model& model, const comm::MeshSizes& mesh) {
  plan::LayoutChoices layout = exact_layout(model, mesh);
  layout.quantizer = std::make_shared<nn::Fp8Scaling>(kExactFp8);
  return layout;
}

// Scales of blocks, which a rank's micro-batch has its own of.
inline models::Model fp8_block_model(bool frozen_up = false) {
  return exact_model(false, false, true, false, frozen_up, true);
}

inline plan::LayoutChoices fp8_block_layout(const models::Model& model, const comm::MeshSizes& mesh) {
  plan::LayoutChoices layout = exact_layout(model, mesh);
  layout.quantizer = std::make_shared<nn::Fp8BlockScaling>(nn::Fp8BlockOptions{});
  set_formats(layout, {nn::Site::up_projection, nn::Site::down_projection}, LinearFormat::fp8_block);
  return layout;
}

inline Tensors without_head(Tensors all) {
  std::erase_if(all, [](const auto& entry) { return entry.first.find("lm_head") != std::string::npos; });
  return all;
}

using LayoutOf = plan::LayoutChoices (*)(const models::Model&, const comm::MeshSizes&);

inline Tensors trained(const models::Model& model, const plan::LayoutChoices& layout, comm::Mesh& mesh, bool whole) {
  ExactRun run(model, layout, mesh, whole_batch(), whole);
  write_exact(run.session());
  for (int i = 0; i < kFp8Steps; ++i) run.step(i);
  return without_head(whole ? assembled(run.session()) : states_of(run.session()));
}

inline Tensors trained_on_one_rank(const models::Model& model, const plan::LayoutChoices& layout) {
  return on_one_rank([&] { return trained(model, layout, *comm::make_self_mesh(), false); });
}

inline void expect_the_bits_of(const Tensors& one, const models::Model& model, LayoutOf layout_of, const ExactCase& c) {
  const auto mesh = rank_mesh(c.on.mesh);
  const Tensors ours = trained(model, with_options(layout_of(model, c.on.mesh), c), *mesh, true);
  EXPECT_EQ(ours.size(), one.size());
  for (const auto& [name, values] : one) EXPECT_TRUE(ours.at(name) == values) << name;
}

// A run that stops in the middle of a history and resumes on another mesh has the bits of one that did not stop.
// `frozen_up`: its checkpoint has no frozen weights, and they are loaded again.
inline void expect_the_bits_of_a_run_without_a_stop(const models::Model& model, LayoutOf layout_of, bool frozen_up) {
  const engine::StateScope scope{.frozen = !frozen_up};
  const Tensors expected = trained_on_one_rank(model, layout_of(model, {}));
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::vector<MeshCase> all = sharded_meshes();
  constexpr int kBefore = 2;
  {
    const plan::LayoutChoices layout = layout_of(model, all.front().mesh);
    const auto mesh = rank_mesh(layout.mesh);
    ExactRun run(model, layout, *mesh, whole_batch());
    write_exact(run.session());
    for (int i = 0; i < kBefore; ++i) run.step(i);
    train::save(run.session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"}, scope);
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  EXPECT_EQ(checkpoint.find("layers.0.up.weight") == nullptr, frozen_up);
  const plan::LayoutChoices layout = layout_of(model, all.back().mesh);
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(model, layout, *mesh, whole_batch());
  if (frozen_up) write_exact(run.session());
  engine::load(run.session(), checkpoint, scope);
  for (int i = kBefore; i < kFp8Steps; ++i) run.step(i);
  const Tensors after = without_head(assembled(run.session()));
  for (const auto& [name, values] : expected) EXPECT_TRUE(after.at(name) == values) << name;
}

}  // namespace hawser::testing

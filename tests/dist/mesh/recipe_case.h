// `RecipeCase`: a recipe that trains a model of one family on a mesh with some features, through train::fit, as `hawser
// fit` runs it: data preparation, training, evaluation and checkpoints. What it trains is compared with one rank.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "mesh_case.h"
#include "one_rank.h"
#include "toy_training.h"
#include "train/export.h"
#include "train/fit.h"

namespace hawser::testing {

// The family's config with sizes that two and four tensor ranks divide.
enum class RecipeModel { dense_tied, fused_qkv, windows, experts };

struct RecipeMesh {
  std::string name;
  std::vector<std::string> keys;  // "parallel.tensor_parallel_degree=2"
  int data_ranks = 1;
  int blocks = 0;  // of the model; 0: as many as its config has
};

enum class Feature { packed, lora, fp8, replay, local, clipping, full, block, router_losses };

struct RecipeCase {
  RecipeModel model = RecipeModel::dense_tied;
  RecipeMesh mesh;
  std::vector<Feature> features;

  bool has(Feature feature) const { return std::ranges::count(features, feature) > 0; }
  std::string name() const;
  friend void PrintTo(const RecipeCase& c, std::ostream* out) { *out << c.name(); }
};

inline const char* name_of(RecipeModel model) {
  constexpr const char* kNames[] = {"qwen2", "gpt_neox", "gemma3", "mixtral"};
  return kNames[static_cast<int>(model)];
}
inline const char* name_of(Feature feature) {
  constexpr const char* kNames[] = {"packed",   "lora", "fp8",   "replay",       "local",
                                    "clipping", "full", "block", "router_losses"};
  return kNames[static_cast<int>(feature)];
}

inline std::string RecipeCase::name() const {
  std::string out = joined(name_of(model), mesh.name);
  for (const Feature feature : features) out = joined(out, name_of(feature));
  return out;
}

// A folder that all ranks see; rank 0 removes it.
inline const std::string& shared_folder() {
  static const std::unique_ptr<TemporaryFolder> own =
      the_world->rank() == Rank(0) ? std::make_unique<TemporaryFolder>() : nullptr;
  static const std::string path = the_world->broadcast_bytes(own ? own->path("") : "");
  return path;
}

// Conversations of ids: training and validation data with documents of odd lengths.
inline std::string data_file(const std::string& name, std::int64_t documents) {
  const std::string path = shared_folder() + name;
  on_one_rank([&] {
    if (std::filesystem::exists(path)) return true;
    std::ofstream out(path);
    for (std::int64_t d = 0; d < documents; ++d) {
      const RandomStream random(11, static_cast<std::uint64_t>(d));
      out << "{\"input_ids\": [";
      const std::uint64_t length = 3 + random.below(40, 1000);
      for (std::uint64_t i = 0; i < length; ++i) out << (i > 0 ? ", " : "") << 3 + random.below(60, i);
      out << "]}\n";
    }
    return true;
  });
  return path;
}

// The model's name, with its number of blocks if it is not that of its config.
inline std::string name_of(RecipeModel model, int blocks) {
  return cat(name_of(model), blocks > 0 ? cat("_", blocks, "_blocks") : "");
}

// The model's config.json.
inline std::string config_of(RecipeModel model, int blocks) {
  const std::string folder = shared_folder() + name_of(model, blocks), path = folder + "/config.json";
  on_one_rank([&] {
    if (std::filesystem::exists(path)) return true;
    std::filesystem::create_directories(folder);
    std::ifstream in(cat(kSourceFolder, "/tests/golden/families/", name_of(model), "/config.json"));
    nlohmann::json config = nlohmann::json::parse(in);
    config["num_attention_heads"] = 4;
    // With four tensor ranks dense models have two copies of each head.
    if (config.contains("num_key_value_heads")) config["num_key_value_heads"] = model == RecipeModel::experts ? 4 : 2;
    if (config.contains("head_dim") || model == RecipeModel::windows) config["head_dim"] = 10;
    if (model == RecipeModel::fused_qkv) config["hidden_size"] = 32;
    if (blocks > 0) config["num_hidden_layers"] = blocks;
    if (blocks > 0 && config.contains("layer_types")) {
      nlohmann::json& types = config["layer_types"];
      const auto given = types;
      types.clear();
      for (int block = 0; block < blocks; ++block)
        types.push_back(given.at(static_cast<std::size_t>(block) % given.size()));
    }
    config["intermediate_size"] = 20;
    // What rounds differently grows from block to block.
    config["initializer_range"] = blocks > 0 ? 0.2 : 0.3;
    std::ofstream(path) << config.dump();
    return true;
  });
  return path;
}

inline Recipe base_recipe(RecipeModel model, int blocks) {
  Recipe recipe;
  const std::string config = config_of(model, blocks);
  recipe.model.config = config;
  recipe.data.train = {data_file("train.jsonl", 400)};
  recipe.data.validation = {{.name = "", .paths = {data_file("valid.jsonl", 30)}}};
  recipe.data.sequence_length = 61;
  recipe.data.max_documents = 1;
  recipe.train.steps = 3;
  recipe.train.global_batch_size = 8;
  recipe.train.log_every = 100;
  recipe.optimizer.learning_rate = 0.01;
  recipe.optimizer.warmup_steps = 0;
  recipe.optimizer.schedule = LearningRateSchedule::constant;
  recipe.optimizer.epsilon = 1e-5;  // of the size of small gradients, whose noise stays out of the weights
  recipe.checkpoint.every_steps = 1;
  recipe.checkpoint.keep_last = 5;
  recipe.report.html = false;
  recipe.run.threads = 1;
  recipe.folder = "/";
  return recipe;
}

inline std::vector<std::string> keys_of(Feature feature) {
  switch (feature) {
    case Feature::packed:
      return {"data.max_documents=5"};
    case Feature::lora:
      // Gradients of adapters are small at first.
      return {"adapter.kind=lora", "adapter.rank=3", "adapter.dropout=0.25", "optimizer.epsilon=1e-3"};
    case Feature::fp8:
      return {"precision.compute=fp8"};
    case Feature::replay:
      // With a scale of the largest value some value of another pass is beyond it.
      return {"precision.fp8.saturation_limit=1e-6"};
    case Feature::local:
      return {"parallel.gradient_accumulation=local"};
    case Feature::clipping:
      return {"optimizer.gradient_clip=0.02"};
    case Feature::full:
      return {"memory.activation_checkpointing=full"};
    case Feature::block:
      return {"memory.activation_checkpointing=block"};
    case Feature::router_losses:
      return {"moe.aux_loss_coefficient=0.3", "moe.z_loss_coefficient=0.05"};
  }
  return {};
}

// Trains on this world, or on this process alone.
inline train::FitResult fit(const Recipe& recipe, comm::World* world, bool resume = false) {
  const plan::RunPlan plan = plan::resolve(recipe);
  if (world == nullptr || world->rank() == Rank(0)) std::filesystem::create_directories(plan.files.folder);
  if (world != nullptr) world->barrier();
  return train::fit({.plan = plan, .resume = resume}, world);
}

// The folder of a model with weights, for adapters.
inline std::string weights_of(RecipeModel model, int blocks) {
  Recipe recipe = base_recipe(model, blocks);
  recipe.output = shared_folder() + name_of(model, blocks) + "_run";
  recipe.train.steps = 1;
  const std::string folder = shared_folder() + name_of(model, blocks) + "_weights";
  on_one_rank([&] {
    if (std::filesystem::exists(folder)) return true;
    fit(recipe, nullptr);
    Problems skipped;
    train::export_model({.source = recipe.output, .output = folder}, skipped);
    return true;
  });
  return folder;
}

inline Recipe recipe_of(const RecipeCase& c, const std::string& output) {
  Recipe recipe = base_recipe(c.model, c.mesh.blocks);
  std::vector<std::string> keys;
  for (const Feature feature : c.features) {
    for (std::string& key : keys_of(feature)) keys.push_back(std::move(key));
  }
  recipe = override_recipe(recipe, keys);
  if (c.has(Feature::lora)) {
    recipe.model.config.clear();
    recipe.model.path = weights_of(c.model, c.mesh.blocks);
  }
  recipe.output = shared_folder() + output;
  recipe.train.micro_batch_size = 2;
  return recipe;
}

// With the micro-batches of the mesh, whose routers have a loss of each.
inline Recipe on_one(Recipe recipe, const RecipeCase& c, const std::string& output) {
  recipe.parallel = {.gradient_accumulation = recipe.parallel.gradient_accumulation};
  recipe.train.micro_batch_size *= c.mesh.data_ranks;
  recipe.output = shared_folder() + output;
  return recipe;
}

// What a run leaves of its steps.
struct RunOutcome {
  std::vector<double> losses, norms;
  double validation = 0;
  Tensors first, last;       // states after the first step, and after the last one
  std::int64_t replays = 0;  // of the first step
  auto fields() { return std::tie(losses, norms, validation, first, last, replays); }
};

// Tensors of float32, bf16 and uint8.
inline Tensors states_of_checkpoint(const std::string& folder) {
  checkpoint::Checkpoint saved = checkpoint::Checkpoint::open(folder);
  Tensors out;
  for (const checkpoint::SavedTensor& tensor : saved.tensors()) {
    const bool codes = tensor.dtype == DType::u8;
    if (!codes && tensor.dtype != DType::f32 && tensor.dtype != DType::bf16) continue;
    const std::int64_t elements = tensor.shape.elements();
    std::vector<float>& values = out[tensor.name];
    values.resize(static_cast<std::size_t>(elements));
    std::vector<std::uint8_t> bytes(codes ? values.size() : 0);
    auto* const to = codes ? reinterpret_cast<std::byte*>(bytes.data()) : reinterpret_cast<std::byte*>(values.data());
    const DType dtype = codes ? DType::u8 : DType::f32;
    const TensorView view(to, dtype, {elements}, DeviceKind::cpu);
    saved.read({{.name = tensor.name,
                 .shape = tensor.shape,
                 .dtype = dtype,
                 .boxes = boxes_of_range(tensor.shape, 0, elements, view)}});
    if (codes) std::ranges::copy(bytes, values.begin());
  }
  return out;
}

inline RunOutcome outcome_of(const std::string& output, const train::FitResult& result) {
  RunOutcome out{.validation = result.validation_loss->all};
  std::ifstream metrics(output + "/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("loss") || !json.contains("grad_norm")) continue;
    out.losses.push_back(json["loss"]);
    out.norms.push_back(json["grad_norm"]);
    if (out.losses.size() == 1) out.replays = json.value("replays", std::int64_t{0});
  }
  const auto at = [&](std::size_t step) { return fmt::format("{}/checkpoints/step-{:08}", output, step); };
  out.first = states_of_checkpoint(at(1));
  out.last = states_of_checkpoint(at(out.losses.size()));
  return out;
}

}  // namespace hawser::testing

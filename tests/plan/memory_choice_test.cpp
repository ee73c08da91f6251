// What a run's start chooses of memory, on a device that says that it is a GPU: no work runs on it.
#include "engine/memory_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/config.h"
#include "device/forwarding_device.h"
#include "engine/does_not_fit.h"
#include "plan/forecast.h"
#include "support.h"

namespace hawser {
namespace memory_choice_test {

class SaidGpu : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override { return inner_->make_stream(name); }
};

class MemoryChoice : public ::testing::Test {
 protected:
  static Recipe recipe_of(const std::vector<std::string>& keys) {
    Recipe recipe;
    recipe.data.sequence_length = 4096;
    recipe.data.pack = Packing::chunks;
    recipe.train.global_batch_size = recipe.train.micro_batch_size = 1;
    recipe.output = "run";
    return override_recipe(recipe, keys);
  }

  std::int64_t needed(const std::vector<std::string>& keys) const {
    const Recipe recipe = recipe_of(keys);
    return plan::Forecaster(recipe, model_, 1, plan::load_target(plan::target_of(DeviceKind::cuda)),
                            plan::this_machine(), 1)
        .forecast()
        .needed();
  }

  struct Chosen {
    plan::RunPlan plan;
    std::string line;
  };
  Chosen choose(std::vector<std::string> keys, std::int64_t capacity) {
    keys.push_back(cat("memory.capacity=", capacity, "B"));
    Chosen out{.plan = plan::resolve(recipe_of(keys)), .line = ""};
    plan::lay_out(out.plan, model_, 1, 1, DeviceKind::cuda);
    out.line = engine::choose_memory(out.plan, model_, device_, nullptr, 1);
    return out;
  }
  static std::ptrdiff_t state_flats(const plan::RunPlan& plan) {
    return std::ranges::count(plan.layout.host.state, true);
  }

  models::Model model_{testing::llama_description({.width = 256,
                                                   .heads = 4,
                                                   .kv_heads = 2,
                                                   .head_dim = 64,
                                                   .inner = 1024,
                                                   .vocabulary = 4096,
                                                   .blocks = 8,
                                                   .tied = false})};
  SaidGpu device_{make_cpu_device()};
};

// The layout of the session has what the planner chose, and so has that of a session that is opened later.
TEST_F(MemoryChoice, OfTheOptimizersState) {
  const std::string full = "memory.activation_checkpointing=full", key = "memory.optimizer_offload=";
  const std::int64_t resident = needed({full}), all = needed({full, key + "true"});
  const Chosen enough = choose({full, key + "auto"}, resident + 1);
  EXPECT_TRUE(enough.line.starts_with("optimizer offload: auto chose the device: ")) << enough.line;
  EXPECT_EQ(enough.plan.recipe.memory.offloaded_flats, 0);
  EXPECT_EQ(state_flats(enough.plan), 0);
  Chosen some = choose({full, key + "auto"}, (resident + all) / 2);
  EXPECT_NE(some.line.find("% of the optimizer state: "), std::string::npos) << some.line;
  EXPECT_GT(state_flats(some.plan), 0);
  EXPECT_LT(state_flats(some.plan), plan::trainable_flats(model_, {}));
  EXPECT_EQ(some.plan.recipe.memory.offloaded_flats, state_flats(some.plan));
  const std::vector<bool> chosen = some.plan.layout.host.state;
  plan::lay_out(some.plan, model_, 1, 1, DeviceKind::cuda);
  EXPECT_EQ(some.plan.layout.host.state, chosen);
  EXPECT_EQ(engine::choose_memory(some.plan, model_, device_, nullptr, 1), "") << "chosen already";
  EXPECT_THROW(choose({full, key + "auto"}, all - 1), engine::DoesNotFit);
}

TEST_F(MemoryChoice, OfActivations) {
  const std::string automatic = "memory.activation_checkpointing=auto";
  const std::int64_t least = needed({"memory.activation_checkpointing=full"});
  Chosen chosen = choose({automatic, "memory.activation_offload=auto"}, least - (12 << 20));
  EXPECT_NE(chosen.line.find(", in host memory activations of "), std::string::npos) << chosen.line;
  const auto offloaded = [&] { return std::ranges::count_if(chosen.plan.layout.policies, &nn::SavePolicy::offload); };
  const std::ptrdiff_t layers = offloaded();
  EXPECT_GT(layers, 0);
  EXPECT_EQ(layers, 2 * std::ranges::count(chosen.plan.recipe.memory.offloaded_blocks, true));
  plan::lay_out(chosen.plan, model_, 1, 1, DeviceKind::cuda);
  EXPECT_EQ(offloaded(), layers);
}

}  // namespace memory_choice_test
}  // namespace hawser

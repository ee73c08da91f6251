// Complete runs on a GPU: determinism, chosen GEMM algorithms, recipes that do not fit, and how runs end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "engine/open_model.h"
#include "ops/gemm/gemm_key.h"
#include "plan/forecast.h"
#include "plan/run_plan.h"
#include "profile/bench_step.h"
#include "train/fit.h"
#include "train/saver.h"

namespace hawser {
namespace fit_cuda_test {

namespace fs = std::filesystem;

constexpr const char* kModel = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
  "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "vocab_size": 512, "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "hidden_act": "silu", "initializer_range": 0.05, "bos_token_id": null,
  "eos_token_id": 0})";

// A temporary folder with a tiny model and documents of token ids.
class Workplace {
 public:
  // Documents of `document` tokens, or of various lengths up to that if `odd`; enough for `sequences` sequences of
  // `length` tokens.
  Workplace(std::int64_t length, std::int64_t document, bool odd, int sequences = 12) : length_(length) {
    folder_.write("model.json", kModel);
    std::ofstream text(folder_ / "train.jsonl");
    std::mt19937 random(7);
    for (std::int64_t tokens = 0; tokens < length * sequences;) {
      const std::int64_t count = odd ? 3 + random() % static_cast<unsigned>(document - 3) : document;
      nlohmann::json ids = nlohmann::json::array();
      unsigned id = random();
      for (std::int64_t i = 0; i < count; ++i) {
        id = random() % 10 == 0 ? random() : id + 3;
        ids.push_back(id % 512);
      }
      text << nlohmann::json{{"input_ids", ids}}.dump() << '\n';
      tokens += count;
    }
  }

  fs::path out(const std::string& name) const { return folder_ / name; }

  // Checks a run as `hawser fit` does before it starts ranks, and runs it.
  train::FitResult fit(const std::string& out, std::vector<std::string> settings, bool resume = false) const {
    std::ofstream(folder_ / "recipe.yaml") << "model: {config: model.json}\ndata: {train: [train.jsonl], "
                                           << "sequence_length: " << length_ << "}\n"
                                           << "train: {steps: 4, global_batch_size: 2, seed: 7}\n"
                                           << "optimizer: {learning_rate: 1.0e-3}\n"
                                           << "output: " << out << "\n";
    train::FitRequest request{.plan = plan::resolve(read_recipe(folder_.path("recipe.yaml"), settings)),
                              .resume = resume,
                              .device = {.kind = DeviceKind::cuda}};
    Problems problems;
    train::check_fit(request.plan, {.device = DeviceKind::cuda}, problems);
    problems.throw_if_any();
    return train::fit(request, nullptr);
  }

 private:
  TemporaryFolder folder_;
  std::int64_t length_;
};

// Parameters and moments in a run's last checkpoint, byte for byte.
std::string state_of(const train::FitResult& result) {
  return read_file(fs::path(result.checkpoint) / "rank-00000.bin");
}

// The lengths named in docs/performance.md: those for which cuDNN's deterministic backward is used, and packed
// documents, which use the plain kernel.
TEST(FitCuda, TwoDeterministicRunsAreBitwiseEqual) {
  struct Case {
    std::int64_t length, documents;  // documents: maximum per sequence
  };
  for (const Case& c : {Case{512, 16}, Case{1024, 1}, Case{4096, 1}, Case{8192, 16}, Case{8192, 1}, Case{16384, 1}}) {
    SCOPED_TRACE(::testing::Message() << c.length << " tokens, up to " << c.documents << " documents");
    const Workplace place(c.length, c.documents == 1 ? c.length : c.length / 4, c.documents > 1);
    const std::vector<std::string> settings{"run.deterministic=true", "data.max_documents=" + cat(c.documents)};
    const std::string one = state_of(place.fit("one", settings)), two = state_of(place.fit("two", settings));
    ASSERT_GT(one.size(), std::size_t{1} << 20);
    EXPECT_TRUE(one == two);
    auto other = settings;
    other.push_back("train.seed=8");
    EXPECT_FALSE(one == state_of(place.fit("three", other))) << "runs with different seeds have equal states";
  }
}

TEST(FitCuda, AResumedDeterministicRunEqualsAnUninterruptedOne) {
  const Workplace place(1024, 1024, false);
  const std::vector<std::string> settings{"run.deterministic=true", "data.max_documents=1",
                                          "optimizer.schedule=constant"};
  const auto with = [&](const char* more) {
    auto out = settings;
    out.emplace_back(more);
    return out;
  };
  const std::string full = state_of(place.fit("full", with("train.steps=4")));
  place.fit("parts", with("train.steps=2"));
  EXPECT_TRUE(full == state_of(place.fit("parts", with("train.steps=4"), true)));
}

// A line for a GEMM that no step has is appended to the choices. If it reappears, the stored choices were used.
TEST(FitCuda, ChoicesOfAlgorithmsAreStoredAndReused) {
  const Workplace place(512, 512, false);
  const auto choices = [&](const train::FitResult& result) {
    return engine::run_state_of(checkpoint::Checkpoint::open(result.checkpoint).metadata()).gemm_algorithms;
  };
  const train::FitResult result = place.fit("out", {});
  const std::string first = choices(result);
  EXPECT_TRUE(std::any_of(result.notes.begin(), result.notes.end(),
                          [](const std::string& note) { return note.starts_with("attention_backward: cudnn "); }));
  const fs::path path = place.out("out") / "gemm_algorithms.txt";
  std::string stored = read_file(path);
  ASSERT_EQ(stored.substr(0, stored.find('\n')), first.substr(0, first.find('\n')));
  std::string mark;  // a stored choice for another number of rows of A and C, which the library accepts, too
  std::istringstream lines(stored);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    ops::GemmKey key;
    if (!ops::read_key(words, key)) continue;
    const std::optional<ops::GemmProblem> problem = ops::problem_of(key);
    if (problem && !problem->transpose_a) mark = "7776" + line.substr(line.find(' '));
  }
  ASSERT_FALSE(mark.empty()) << stored;
  std::ofstream(path, std::ios::app) << mark << '\n';
  // A second run in this folder.
  EXPECT_NE(choices(place.fit("out", {})).find(mark), std::string::npos);
  EXPECT_NE(read_file(path).find(mark), std::string::npos);
  // A resumed run reads the choices of its checkpoint.
  fs::remove(path);
  EXPECT_NE(choices(place.fit("out", {"train.steps=5"}, true)).find(mark), std::string::npos);
  // A deterministic run does not depend on earlier runs.
  EXPECT_EQ(choices(place.fit("out", {"run.deterministic=true", "data.max_documents=1"})).find(mark),
            std::string::npos);
  // Choices for another GPU are replaced.
  stored = read_file(path);
  stored.replace(0, stored.find('\n'), "cublasLt 1 on another GPU");
  std::ofstream(path) << stored << mark << '\n';
  EXPECT_EQ(choices(place.fit("out", {})).find(mark), std::string::npos);
  EXPECT_EQ(read_file(path).find("another GPU"), std::string::npos);
}

TEST(FitCuda, DeterminismBeyondItsLengthsIsRejected) {
  const Workplace place(32768, 32768, false, 4);
  for (const char* documents : {"data.max_documents=1", "data.max_documents=8"}) {
    try {
      // Two query heads per key-value head: 4 GiB for one of them.
      place.fit("one", {"run.deterministic=true", documents});
      FAIL() << documents;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("at run.deterministic; try run.deterministic: false"), std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(fs::exists(place.out("one") / "metrics.jsonl"));
  }
}

// A recipe that does not fit is rejected before any GPU memory is reserved.
TEST(FitCuda, ARecipeThatDoesNotFitReservesNothing) {
  const Workplace place(1024, 1024, false, 4);
  const auto device = engine::make_device({.kind = DeviceKind::cuda}, 1);
  const std::int64_t before = device->memory().used;
  try {
    place.fit("one", {"memory.capacity=64MiB"});
    FAIL() << "the recipe was not rejected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit) << error.what();
  }
  EXPECT_EQ(device->memory().used, before);
  EXPECT_FALSE(fs::exists(place.out("one") / "metrics.jsonl"));
}

// A Llama of 0.6 billion parameters with sequences of 4,096 tokens.
Recipe large_recipe(const fs::path& folder) {
  std::ofstream(folder / "large.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
  "intermediate_size": 5632, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4,
  "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": true, "hidden_act": "silu", "initializer_range": 0.02, "bos_token_id": null,
  "eos_token_id": 0})";
  Recipe recipe;
  recipe.model.config = (folder / "large.json").string();
  recipe.data.sequence_length = 4096;
  recipe.data.max_documents = 1;
  recipe.train.steps = 2;
  return recipe;
}

// Reserves GPU memory so that `left` bytes stay free.
class Hog {
 public:
  Hog(Device& device, std::int64_t left) : arena_(device, device.memory().total - device.memory().used - left) {}

 private:
  Arena arena_;
};

TEST(FitCuda, ARecipeThatFitsRunsInItsPlannedMemoryAndTwoGigabytes) {
  const Workplace place(512, 512, false, 2);
  fs::create_directories(place.out(""));
  const Recipe recipe = large_recipe(place.out(""));
  Problems problems;
  engine::OpenModel model = engine::open_model(plan::model_of(recipe), recipe.model.path.empty(), problems);
  problems.throw_if_any();
  const plan::Forecast plan =
      plan::Forecaster(recipe, *model.model, 1, plan::load_target("h200"), plan::this_machine(), 1).forecast();
  const auto device = engine::make_device({.kind = DeviceKind::cuda}, 1);
  // The plan includes the process's context, which already exists.
  const Hog hog(*device, plan.needed() - plan.largest().overhead + (std::int64_t{2} << 30));
  const profile::BenchResult result =
      profile::bench_step({.recipe = recipe, .device = {.kind = DeviceKind::cuda}}, model, nullptr);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_EQ(result.allocations, 0);
  EXPECT_EQ(result.planned_bytes, plan.largest().costs.total_bytes);
}

TEST(FitCuda, MoreThanTheFreeMemoryIsRejectedBeforeAnythingIsReserved) {
  const Workplace place(512, 512, false, 2);
  fs::create_directories(place.out(""));
  const Recipe recipe = large_recipe(place.out(""));
  Problems problems;
  const engine::OpenModel model = engine::open_model(plan::model_of(recipe), recipe.model.path.empty(), problems);
  problems.throw_if_any();
  const plan::LayoutChoices layout = plan::layout_choices(recipe, *model.model, 1, DType::bf16, 1, DeviceKind::cuda);
  const auto device = engine::make_device({.kind = DeviceKind::cuda}, 1);
  const auto mesh = comm::make_self_mesh();
  const Hog hog(*device, std::int64_t{4} << 30);
  const std::int64_t before = device->memory().used, allocations = device->allocations();
  try {
    const engine::Session session(*model.model, plan::derive(layout, *model.model), *device, *mesh,
                                  {step::Purpose::train});
    FAIL() << "the session was not rejected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit) << error.what();
  }
  EXPECT_EQ(device->memory().used, before);
  EXPECT_EQ(device->allocations(), allocations);
}

// As on the CPU (tests/faults, Diverge).
TEST(FitCuda, ARunWithNonFiniteValuesEndsWithoutSaving) {
  const Workplace place(512, 256, true);
  for (const std::string compute : {"bf16", "float32"}) {  // a resume must not change it
    const std::string precision = "precision.compute=" + compute;
    const train::FitResult sound = place.fit(compute, {precision, "train.steps=3"});
    try {
      place.fit(compute, {precision, "train.steps=50", "checkpoint.every_steps=25", "optimizer.learning_rate=1e30"},
                true);
      FAIL() << "the run did not end";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_NE(std::string(error.what()).find("not finite; the run stops without saving; last checkpoint: step 3"),
                std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(fs::exists(sound.checkpoint));
    EXPECT_FALSE(fs::exists(place.out(compute) / "checkpoints" / "step-00000025"));
  }
}

}  // namespace fit_cuda_test
}  // namespace hawser

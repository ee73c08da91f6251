// A run's folder that an earlier build wrote (tests/golden/runs/e0aa1b5): this build resumes, exports, inspects and
// reports it, and computes what that build computed. Names may change from one build to the next; the numbers and the
// earlier file do not, so no message is compared here.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iostream>
#include <regex>

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace old_run_test {

using Json = nlohmann::json;

// The value of the first key that a line of metrics.jsonl has: names of now, then of earlier builds.
double number(const Json& line, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (line.contains(key)) return line[key].get<double>();
  }
  ADD_FAILURE() << "none of the keys in " << line.dump();
  return NAN;
}

double grad_norm(const Json& line) {
  return number(line, {"grad_norm", "gradient_norm"});
}

double learning_rate(const Json& line) {
  return number(line, {"lr", "learning_rate"});
}

struct Curve {
  std::vector<double> steps, values;
};

std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> out;
  std::istringstream words(text);
  for (double value = 0; words >> value;) out.push_back(value);
  return out;
}

std::vector<Curve> curves_of(const std::string& html) {
  static const std::regex pattern("data-step=\"([^\"]*)\" data-value=\"([^\"]*)\"");
  std::vector<Curve> out;
  for (std::sregex_iterator match(html.begin(), html.end(), pattern), end; match != end; ++match) {
    out.push_back({numbers_of((*match)[1]), numbers_of((*match)[2])});
  }
  return out;
}

// Curves have five digits.
bool is_curve_of(const Curve& curve, const std::vector<double>& values) {
  if (curve.steps.size() != values.size() || curve.values.size() != values.size()) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (curve.steps[i] != static_cast<double>(i + 1)) return false;
    if (std::abs(curve.values[i] - values[i]) > 1e-4 * std::abs(values[i])) return false;
  }
  return true;
}

class OldRun : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    const testing::fs::path source = testing::fs::path(testing::kSourceFolder) / "tests/golden/runs/e0aa1b5";
    testing::fs::copy(source, folder_ / "old", testing::fs::copy_options::recursive);
    expected_ = testing::json_of(folder_ / "old/expected.json");
    saved_ = expected_["saved_step"];
    steps_ = expected_["steps"];
    // The processor (vector units, sizes of caches) and the compiler's options decide the order of sums, and with it the
    // last digits: of the loss of a checkpoint, and then of a resumed run too.
    best_ = json("eval --model old/run/best --data old/tokens/valid");
    exact_ = best_["loss"] == expected_["best_loss"];
    if (!exact_) std::cout << "other digits than that build's: numbers are compared to 1e-5\n";
    before_ = lines("old/run/metrics.jsonl");
    ASSERT_EQ(before_.size(), saved_ + 1);  // the run ended after a step that no checkpoint has
  }

  std::vector<std::string> lines(const std::string& file) { return testing::lines_of(folder_.read(file)); }

  void resume(const std::string& options) {
    const testing::Ran ran = hawser("fit old/recipe.yaml --resume " + options);
    ASSERT_EQ(ran.code, 0) << ran.err;
    for (const std::string& line : lines("old/run/metrics.jsonl")) metrics_.push_back(Json::parse(line));
    ASSERT_EQ(metrics_.size(), steps_);
  }

  void near(double value, double expected, bool exact, const std::string& what) const {
    if (exact) {
      EXPECT_EQ(value, expected) << what;
    } else {
      EXPECT_NEAR(value, expected, 1e-5 * std::max(1.0, std::abs(expected))) << what;
    }
  }

  // The steps that were resumed, against those of `layout` in expected.json.
  void expect_steps(const char* layout, bool exact) const {
    ASSERT_EQ(expected_[layout].size(), steps_ - saved_);
    for (std::size_t i = saved_; i < steps_; ++i) {
      const Json &now = metrics_[i], &then = expected_[layout][i - saved_];
      const std::string step = std::string(layout) + ", step " + then["step"].dump();
      EXPECT_EQ(now["step"], then["step"]);
      EXPECT_EQ(now["targets"], then["targets"]) << step;
      near(now["loss"], then["loss"], exact, step + ", loss");
      near(grad_norm(now), then["grad_norm"], exact, step + ", gradient norm");
      EXPECT_EQ(learning_rate(now), then["lr"].get<double>()) << step;
      ASSERT_EQ(now.contains("validation_loss"), then.contains("validation_loss")) << step;
      if (then.contains("validation_loss")) {
        near(now["validation_loss"], then["validation_loss"], exact, step + ", validation loss");
      }
    }
  }

  void expect_earlier_steps_kept() {
    const std::vector<std::string> now = lines("old/run/metrics.jsonl");
    for (std::size_t i = 0; i < saved_; ++i) EXPECT_EQ(now[i], before_[i]) << "step " << i + 1;
    EXPECT_FALSE(Json::parse(before_[0]).contains("time"));  // lines of that build have no time
    for (std::size_t i = saved_; i < steps_; ++i) EXPECT_GT(number(Json::parse(now[i]), {"time"}), 1.7e9) << i + 1;
  }

  Json expected_;
  std::size_t saved_ = 0, steps_ = 0;
  Json best_;                        // the evaluation of the best checkpoint
  bool exact_ = false;               // it has the digits of expected.json
  std::vector<std::string> before_;  // metrics.jsonl of the earlier build
  std::vector<Json> metrics_;        // after the resume
};

TEST_F(OldRun, ResumesOnItsLayoutWithItsNumbers) {
  ASSERT_NO_FATAL_FAILURE(resume("--ranks 2"));
  expect_steps("two_ranks", exact_);
  expect_earlier_steps_kept();
  EXPECT_EQ(json("inspect old/run --json")["newest"]["step"], steps_);
}

TEST_F(OldRun, ResumesOnOneRankWithItsNumbers) {
  ASSERT_NO_FATAL_FAILURE(resume("--ranks 1 --set parallel.context_parallel_degree=1"));
  expect_steps("one_rank", exact_);
  expect_steps("two_ranks", false);
  expect_earlier_steps_kept();
}

TEST_F(OldRun, ReportHasTheCurvesOfEarlierSteps) {
  ASSERT_NO_FATAL_FAILURE(resume("--ranks 1 --set parallel.context_parallel_degree=1"));
  std::vector<double> losses, norms, rates;
  for (const Json& line : metrics_) {
    losses.push_back(line["loss"]);
    norms.push_back(grad_norm(line));
    rates.push_back(learning_rate(line));
  }
  const std::vector<Curve> curves = curves_of(folder_.read("old/run/report.html"));
  const auto has = [&](const std::vector<double>& values) {
    return std::ranges::any_of(curves, [&](const Curve& curve) { return is_curve_of(curve, values); });
  };
  EXPECT_TRUE(has(losses));
  EXPECT_TRUE(has(norms));
  EXPECT_TRUE(has(rates));
}

TEST_F(OldRun, ExportsTheBytesOfThatBuild) {
  EXPECT_EQ(json("export old/run out --json")["step"], saved_);
  const testing::Ran sum = shell("sha256sum out/model.safetensors");
  ASSERT_EQ(sum.code, 0) << sum.err;
  EXPECT_EQ(sum.out.substr(0, sum.out.find(' ')), expected_["exported_sha256"].get<std::string>());
}

TEST_F(OldRun, IsInspectedAndEvaluated) {
  const Json run = json("inspect old/run --json");
  EXPECT_EQ(run["newest"]["step"], saved_);
  EXPECT_EQ(run["checkpoints"].size(), 2u);
  const Json best = json("inspect checkpoint old/run/best --verify --json");
  EXPECT_EQ(best["step"], expected_["best_step"]);
  EXPECT_EQ(best_["tokens"], expected_["best_tokens"]);
  near(best_["loss"], expected_["best_loss"], false, "loss of the best checkpoint");
  // It is the checkpoint with the lowest validation loss of the run.
  double lowest = INFINITY;
  for (std::size_t i = 0; i < saved_; ++i) {
    const Json line = Json::parse(before_[i]);
    if (line.contains("validation_loss")) lowest = std::min(lowest, line["validation_loss"].get<double>());
  }
  near(best_["loss"], lowest, false, "the lowest validation loss");
}

}  // namespace old_run_test
}  // namespace hawser

// FP8 runs in which a Linear saturates again and again, and falls back to the compute dtype. With a low limit and a
// history of one amax, many steps are replayed.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "harness.h"

namespace hawser::faults {
namespace fallback_test {

constexpr std::int64_t kSteps = 24;

using Words = std::vector<std::string>;

Words words(const Words& more) {
  Words all = {"precision.compute=fp8",
               "precision.fp8.amax_history=1",
               "precision.fp8.saturation_limit=0.0005",
               "precision.fp8.fallback_after=3",
               "train.steps=" + std::to_string(kSteps),
               "checkpoint.every_steps=1",
               "checkpoint.keep_last=100"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// By step: the modules that metrics.jsonl says left FP8 with it.
std::map<std::int64_t, Words> fallbacks(const fs::path& out) {
  std::map<std::int64_t, Words> all;
  std::ifstream file(out / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("fp8_fallback")) all[json["step"]] = json["fp8_fallback"];
  }
  return all;
}

// Lines about fallbacks, without "hawser: step N: ".
Words lines_of(const Ended& ended) {
  Words out;
  for (const std::string& line : ended.lines()) {
    if (line.find("falls back to float32") != std::string::npos) out.push_back(line.substr(line.find(": ", 8) + 2));
  }
  return out;
}

fs::path checkpoint_of(const fs::path& out, std::int64_t step) {
  return out / "checkpoints" / checkpoint::step_name(step);
}

// The same checkpoint in another run, which knows nothing of steps that saturated.
void copy_checkpoint(const fs::path& from, const fs::path& to, std::int64_t step) {
  auto source = checkpoint::Checkpoint::open(checkpoint_of(from, step).string());
  std::vector<NamedState> states;
  std::vector<std::vector<std::byte>> memory;
  for (const checkpoint::SavedTensor& tensor : source.tensors()) {
    memory.emplace_back(static_cast<std::size_t>(tensor.shape.elements() * size_of(tensor.dtype)));
    const TensorView view(memory.back().data(), tensor.dtype, tensor.shape, DeviceKind::cpu);
    Shape origin = tensor.shape;
    for (int dim = 0; dim < origin.rank(); ++dim) origin[dim] = 0;
    states.push_back({tensor.name, tensor.shape, tensor.dtype, {{origin, tensor.shape, view}}});
  }
  source.read(states);
  auto metadata = nlohmann::ordered_json::parse(source.metadata());
  EXPECT_EQ(metadata.erase("saturated_steps"), 1u);
  auto saving = checkpoint::SaveSession::begin({.root = (to / "checkpoints").string(), .step = step});
  saving.commit({saving.write(states)}, metadata.dump());
}

std::string joined(const Words& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ",") + word;
  return "[" + out + "]";
}

// After a fallback the run has the bits of one that was resumed there with the Linear excluded.
TEST(Fallback, ARunContinuesAsIfTheLinearWereExcluded) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Ended whole = run(place, words({"--ranks", ranks, "output=whole"}));
    ASSERT_EQ(whole.code, 0) << whole.err;
    const auto fell = fallbacks(place.out("whole"));
    ASSERT_GE(fell.size(), 2u) << whole.err;
    const Words lines = lines_of(whole);
    EXPECT_EQ(lines.size(), fell.size()) << whole.err;
    EXPECT_EQ(std::set(lines.begin(), lines.end()).size(), lines.size()) << "each once\n" << whole.err;
    for (const std::string& line : lines) {
      EXPECT_NE(line.find("falls back to float32: its inputs or gradients saturated FP8 in 3 of "), line.npos) << line;
    }
    const auto& [step, modules] = *fell.begin();
    const std::int64_t last = std::next(fell.begin())->first - 1;  // before the next fallback
    ASSERT_GT(last, step + 1);
    copy_checkpoint(place.out("whole"), place.out("excluded"), step - 1);
    const Ended excluded =
        run(place, words({"--ranks", ranks, "output=excluded", "--resume", "precision.fp8.fallback_after=0",
                          "precision.fp8.exclude=" + joined(modules)}));
    ASSERT_EQ(excluded.code, 0) << excluded.err;
    EXPECT_TRUE(fallbacks(place.out("excluded")).empty());
    const std::vector<Step> of_whole = metrics(place.out("whole")), of_excluded = metrics(place.out("excluded"));
    for (std::int64_t i = step; i <= last; ++i) {
      EXPECT_EQ(of_whole[static_cast<std::size_t>(i - 1)], of_excluded[static_cast<std::size_t>(i - step)]);
    }
    EXPECT_EQ(tensors(checkpoint_of(place.out("whole"), last - 1)),
              tensors(checkpoint_of(place.out("excluded"), last - 1)));
  }
}

// By step: how often metrics.jsonl says it was replayed.
std::map<std::int64_t, std::int64_t> replays(const fs::path& out) {
  std::map<std::int64_t, std::int64_t> all;
  std::ifstream file(out / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("replays")) all[json["step"]] = json["replays"];
  }
  return all;
}

// The checkpoint before the fallback is still being written when the step after it saturates.
TEST(Fallback, WaitsForTheSaveOfTheSameStep) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Ended between = run(place, words({"--ranks", ranks, "output=between", "checkpoint.asynchronous=false"}));
    ASSERT_EQ(between.code, 0) << between.err;
    const auto fell = fallbacks(place.out("between"));
    ASSERT_FALSE(fell.empty());
    const std::int64_t before = fell.begin()->first - 1;
    ASSERT_GT(before, 3) << "steps that are due one after the other wait for each other's saves";
    const Ended beside =
        run(place, words({"--ranks", ranks, "output=beside", "checkpoint.every_steps=" + std::to_string(before)}));
    ASSERT_EQ(beside.code, 0) << beside.err;
    EXPECT_EQ(fallbacks(place.out("beside")), fell);
    EXPECT_EQ(replays(place.out("beside")), replays(place.out("between")));
    expect_equal_runs(place.out("beside"), place.out("between"), kSteps);
  }
}

// Stopped or killed anywhere, also between the decision and the end of the checkpoint, or of the plan, that follows.
TEST(Fallback, ResumesInTheMiddle) {
  const Workplace place;
  const Ended whole = run(place, words({"--ranks", "2", "output=whole"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const auto fell = fallbacks(place.out("whole"));
  ASSERT_GE(fell.size(), 2u) << whole.err;
  const auto stop = [&](const Words& more, int signal, const std::function<bool(const Fit&)>& when) {
    Words all = {"--ranks", "2", "--resume"};
    all.insert(all.end(), more.begin(), more.end());
    Fit going(place, words(all));
    // Each condition stays true once it is.
    ASSERT_TRUE(eventually([&] { return when(going) || !going.going(); })) << going.err();
    ASSERT_TRUE(when(going)) << "the run ended before\n" << going.err();
    if (signal == SIGKILL) {
      going.kill_all();
    } else {
      kill(going.pid(), signal);
    }
    const Ended ended = going.wait();
    EXPECT_NE(ended.code, 0) << "not stopped\n" << ended.err;
  };
  // Nothing else is saved: the checkpoint is that of the first fallback.
  stop({"checkpoint.every_steps=0"}, SIGKILL,
       [&](const Fit&) { return saving(place.out()) || newest_step(place.out()) > 0; });
  const auto says = [](const char* text) {
    return [text](const Fit& fit) { return fit.err().find(text) != std::string::npos; };
  };
  stop({}, SIGKILL, says("planning step"));
  stop({}, SIGKILL, says("falls back"));
  stop({}, SIGINT, [&](const Fit&) { return newest_step(place.out()) > std::next(fell.begin())->first; });
  const Ended resumed = run(place, words({"--ranks", "2", "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_equal_runs(place.out("whole"), place.out(), kSteps);
  EXPECT_EQ(fallbacks(place.out()), fell);
}

// Another mesh continues without the Linears, and does not say it again.
TEST(Fallback, AnotherMeshContinues) {
  const Workplace place;
  const Ended before = run(place, words({"--ranks", "2", "train.steps=16"}));
  ASSERT_EQ(before.code, 0) << before.err;
  const auto fell = fallbacks(place.out());
  ASSERT_FALSE(fell.empty());
  const Ended after = run(place, words({"--ranks", "1", "--resume"}));
  ASSERT_EQ(after.code, 0) << after.err;
  for (const std::string& line : lines_of(after)) {
    for (const std::string& earlier : lines_of(before)) EXPECT_NE(line, earlier);
  }
  const auto all = fallbacks(place.out());
  for (const auto& [step, modules] : fell) EXPECT_EQ(all.at(step), modules);
  const auto saved = checkpoint::Checkpoint::open(checkpoint_of(place.out(), kSteps).string());
  const auto metadata = nlohmann::json::parse(saved.metadata());
  ASSERT_EQ(metadata["fp8_fallbacks"].size(), all.size());
  EXPECT_EQ(metadata["fp8_fallbacks"][0]["modules"], fell.begin()->second);
}

// The only Linear in FP8, which saturates in almost every step.
Words one_linear(const char* ranks, const Words& more) {
  Words all = {"--ranks",
               ranks,
               "memory.activation_checkpointing=auto",
               "train.steps=12",
               "train.global_batch_size=32",
               "train.micro_batch_size=16",
               "precision.fp8.layers=[1]",
               "precision.fp8.exclude=[o_proj, up_proj, down_proj]",
               "precision.fp8.saturation_limit=0"};
  all.insert(all.end(), more.begin(), more.end());
  return words(all);
}

// A Linear that would need more memory than there is stays in FP8, and the run has the bits of one without fallbacks.
TEST(Fallback, ALinearThatDoesNotFitStaysInFp8) {
  const Workplace place;
  const auto fits = [&](std::int64_t bytes) {
    Words plan = {"plan", "recipe.yaml", "--memory", std::to_string(bytes)};
    for (const std::string& word : one_linear("2", {})) {
      if (word.find('=') != std::string::npos) plan.push_back("--set");
      plan.push_back(word);
    }
    return Fit(place, Fit::Command{plan}).wait().code == 0;
  };
  std::int64_t below = 28 << 20, enough = 40 << 20;
  ASSERT_TRUE(fits(enough));
  while (enough - below > 8192) (fits((below + enough) / 2) ? enough : below) = (below + enough) / 2;
  const Ended tight = run(place, one_linear("2", {"output=tight", "memory.capacity=" + std::to_string(enough)}));
  ASSERT_EQ(tight.code, 0) << tight.err;
  const std::string stays =
      "block 1's q_proj, k_proj, v_proj stays in FP8 although its inputs or gradients saturated FP8 in 3 ";
  const std::size_t first = tight.err.find(stays);
  EXPECT_NE(first, std::string::npos) << tight.err;
  EXPECT_EQ(tight.err.find(stays, first + 1), std::string::npos) << tight.err;
  EXPECT_TRUE(fallbacks(place.out("tight")).empty());
  // The only one: its scales and histories are no parameters.
  EXPECT_NE(tight.err.find("computes in float32, 3 of 14 Linears of the blocks in FP8"), std::string::npos)
      << tight.err;
  const Ended inspected = Fit(place, Fit::Command{{"inspect", place.out("tight").string(), "--json"}}).wait();
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  const auto newest = nlohmann::json::parse(inspected.out)["newest"];
  EXPECT_EQ(newest["tensors"]["optimizer"], 2 * newest["tensors"]["parameters"].get<int>());
  EXPECT_GT(newest["tensors"]["fp8"], 0);
  EXPECT_EQ(newest["precision"]["scaling"], "delayed");
  const Ended never = run(place, one_linear("2", {"output=never", "precision.fp8.fallback_after=0"}));
  ASSERT_EQ(never.code, 0) << never.err;
  expect_equal_runs(place.out("tight"), place.out("never"), 12);
  // Nor does it fall back in a run that is resumed after the decision, with more memory.
  const std::size_t step_at = tight.err.rfind("step ", first);
  ASSERT_NE(step_at, std::string::npos);
  const std::int64_t decided = std::stoll(tight.err.substr(step_at + 5));
  ASSERT_LT(decided, 12);
  for (std::int64_t step = decided; step <= 12; ++step) fs::remove_all(checkpoint_of(place.out("tight"), step));
  const Ended resumed = run(place, one_linear("2", {"output=tight", "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("(step " + std::to_string(decided - 1) + ")"), std::string::npos) << resumed.err;
  EXPECT_TRUE(fallbacks(place.out("tight")).empty()) << resumed.err;
  EXPECT_EQ(resumed.err.find(stays), std::string::npos) << resumed.err;
  expect_equal_runs(place.out("tight"), place.out("never"), 12);
}

// The page's peak memory by purpose.
std::string memory_of_report(const fs::path& out) {
  std::ifstream file(out / "report.html");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const std::size_t begin = page.find("Peak memory of a rank");
  EXPECT_NE(begin, page.npos);
  return begin == page.npos ? "" : page.substr(begin, page.find("Time of this process") - begin);
}

// A run that has fallen back is planned so when it is resumed, before its ranks start.
TEST(Fallback, AResumedRunIsForecastWithItsFallbacks) {
  const Workplace place;
  // Without evaluations, whose pinned buffers are larger in FP8: in a model this small that is more than the fallback.
  const Words none = {"memory.activation_checkpointing=none", "data.validation=[]"};
  const auto with = [&](const Words& more) {
    Words all = none;
    all.insert(all.end(), more.begin(), more.end());
    return one_linear("2", all);
  };
  const auto needed = [&](const Words& more) -> std::int64_t {
    Words plan = {"plan", "recipe.yaml", "--json"};
    for (const std::string& word : with(more)) {
      if (word.find('=') != std::string::npos) plan.push_back("--set");
      plan.push_back(word);
    }
    const Ended planned = Fit(place, Fit::Command{plan}).wait();
    EXPECT_EQ(planned.code, 0) << planned.err;
    return nlohmann::json::parse(planned.out)["memory"][0]["needed"];
  };
  const std::int64_t in_fp8 = needed({});
  const std::int64_t fallen = needed({"precision.fp8.layers=[1]", "precision.compute=auto"});
  ASSERT_GT(fallen, in_fp8);
  const auto of_bytes = [](std::int64_t capacity) { return "memory.capacity=" + std::to_string(capacity) + "B"; };
  const Ended before = run(place, with({of_bytes(fallen)}));
  ASSERT_EQ(before.code, 0) << before.err;
  ASSERT_EQ(fallbacks(place.out()).size(), 1u);
  EXPECT_NE(before.err.find("falls back to float32: its inputs or gradients saturated FP8 in 3 of " +
                            std::to_string(fallbacks(place.out()).begin()->first) + " steps"),
            std::string::npos)
      << before.err;
  const std::size_t snapshot = before.err.find("too small for a snapshot");
  EXPECT_NE(snapshot, std::string::npos) << before.err;
  EXPECT_EQ(before.err.find("too small for a snapshot", snapshot + 1), std::string::npos) << "once\n" << before.err;
  const std::string memory = memory_of_report(place.out());
  const auto resumed = [&](std::int64_t capacity) {
    return run(place, with({"--resume", "train.steps=14", of_bytes(capacity)}));
  };
  const Ended tight = resumed(fallen - 1);
  EXPECT_EQ(tight.code, 4) << tight.err;
  EXPECT_NE(tight.err.find("does not fit"), std::string::npos) << tight.err;
  EXPECT_NE(tight.err.find(std::to_string(fallen) + " bytes"), std::string::npos) << tight.err;
  EXPECT_EQ(resumed(fallen).code, 0);
  EXPECT_EQ(memory, memory_of_report(place.out())) << "of the plan without the Linear";
  // A Linear falls back only if a run that is resumed after it starts. A byte less keeps it in FP8, although its session
  // leaves 28 MiB of the limit free, for what the process needs besides it.
  const Ended kept = run(place, with({"output=kept", of_bytes(fallen - 1)}));
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_NE(kept.err.find("stays in FP8"), std::string::npos) << kept.err;
  EXPECT_TRUE(fallbacks(place.out("kept")).empty());
}

// With the last Linear all scales are gone, and nothing can be replayed any more.
TEST(Fallback, NoLinearMayBeLeftInFp8) {
  const Workplace place;
  const Ended loose = run(place, one_linear("1", {"output=loose"}));
  ASSERT_EQ(loose.code, 0) << loose.err;
  const auto fell = fallbacks(place.out("loose"));
  ASSERT_EQ(fell.size(), 1u) << loose.err;
  EXPECT_EQ(fell.begin()->second.size(), 3u);
  const std::int64_t step = fell.begin()->first;
  ASSERT_LT(step, 10);
  ASSERT_EQ(metrics(place.out("loose")).size(), 12u);
  std::ifstream file(place.out("loose") / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["step"] > step) EXPECT_FALSE(json.contains("replays")) << line;
    if (json["step"] == step) EXPECT_GE(json["replays"], 1) << line;
  }
  for (const auto& [name, bytes] : tensors(checkpoint_of(place.out("loose"), 12))) {
    EXPECT_FALSE(name.starts_with("quantization/") || name.starts_with("scale/")) << name;
  }
}

}  // namespace fallback_test
}  // namespace hawser::faults

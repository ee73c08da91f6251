#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/without_privileges.h"
#include "io/files.h"
#include "report/html_report.h"
#include "report/metrics_file.h"
#include "report/progress.h"
#include "report/run_history.h"
#include "report/testing/sample_metrics.h"

namespace hawser::report {
namespace report_test {

// --- metrics.jsonl ---

// A resumed run that could not read the earlier steps would write its own over them.
TEST(MetricsFile, ThatCannotBeReadIsAnErrorAndStays) {
  const TemporaryFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  { MetricsFile(path).step(metrics_of(1)); }
  const std::string before = folder.read("metrics.jsonl");
  chmod(path.c_str(), 0222);
  const auto outcome = without_privileges([&]() -> std::string {
    MetricsFile(path, 1);
    return "resumed";
  });
  EXPECT_EQ(outcome, path + ": cannot read: Permission denied");
  EXPECT_EQ(folder.read("metrics.jsonl"), before);
}

TEST(Metrics, ALineHoldsAllNumbers) {
  StepMetrics metrics = metrics_of(3);
  EXPECT_EQ(
      to_json(metrics),
      R"({"step":3,"time":1750000001.5,"loss":3.5,"grad_norm":1.25,"lr":2e-05,"tokens_per_second":12345.0,)"
      R"("model_flops_per_second":1000000000000.0,"step_seconds":0.5,"targets":4000,"peak_arena_bytes":1342177280,)"
      R"("attention_imbalance":1.25,"data_position":{"sequences":24,"epoch":0.5}})");
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.validation_loss = 4.5;
  metrics.initial_validation_loss = 5.5;
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["validation_loss"], 4.5);
  EXPECT_EQ(json["initial_validation_loss"], 5.5);
  StepMetrics skipped = metrics_of(4);
  skipped.targets = 0;
  skipped.loss = skipped.grad_norm = 0;
  const auto line = nlohmann::json::parse(to_json(skipped));
  EXPECT_TRUE(line["loss"].is_null() && line["grad_norm"].is_null());
  EXPECT_EQ(from_json(to_json(skipped))->targets, 0);
}

TEST(Metrics, ALineHoldsTheLossOfEachValidationSet) {
  StepMetrics metrics = metrics_of(1);
  metrics.initial_validation_loss = ValidationLosses(5, {{"novels", 5.5}, {"support", 4.5}});
  metrics.validation_loss = ValidationLosses(4, {{"novels", 4.5}, {"support", 3.5}});
  const std::string line = to_json(metrics);
  EXPECT_NE(line.find(R"("initial_validation_loss":5.0,"initial_validation_losses":{"novels":5.5,"support":4.5},)"
                      R"("validation_loss":4.0,"validation_losses":{"novels":4.5,"support":3.5}})"),
            std::string::npos)
      << line;
  const auto read = from_json(line);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->validation_loss, metrics.validation_loss);
  EXPECT_EQ(read->initial_validation_loss, metrics.initial_validation_loss);
  std::map<std::string, double> before, after;
  for (const Scalar& point : scalars(metrics)) {
    if (point.name.starts_with("loss/v")) (point.step == 0 ? before : after)[point.name] = point.value;
  }
  EXPECT_EQ(before, (std::map<std::string, double>{
                        {"loss/validation", 5}, {"loss/validation_novels", 5.5}, {"loss/validation_support", 4.5}}));
  EXPECT_EQ(after, (std::map<std::string, double>{
                       {"loss/validation", 4}, {"loss/validation_novels", 4.5}, {"loss/validation_support", 3.5}}));
}

TEST(Metrics, AReplayedStepSaysHowOften) {
  StepMetrics metrics = metrics_of(4);
  EXPECT_FALSE(nlohmann::json::parse(to_json(metrics)).contains("replays"));
  metrics.replays = 2;
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["replays"], 2);
  EXPECT_EQ(from_json(to_json(metrics))->replays, 2);
  RunHistory history;
  for (int i = 0; i < 2; ++i) history.add(metrics);
  EXPECT_EQ(history.replays, 4);
  EXPECT_TRUE(std::ranges::any_of(
      scalars(metrics), [](const Scalar& scalar) { return scalar.name == "precision/replays" && scalar.value == 2; }));
}

TEST(Metrics, AFallbackNamesItsModules) {
  StepMetrics metrics = metrics_of(4);
  EXPECT_FALSE(nlohmann::json::parse(to_json(metrics)).contains("fp8_fallback"));
  metrics.fp8_fallback = {"layers.0.q_proj", "layers.0.k_proj"};
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["fp8_fallback"], metrics.fp8_fallback);
  EXPECT_EQ(from_json(to_json(metrics))->fp8_fallback, metrics.fp8_fallback);
  RunHistory history;
  history.add(metrics);
  history.add(metrics_of(5));
  EXPECT_EQ(history.fp8_fallbacks, (std::vector<std::string>{"layers.0.q_proj (step 4)", "layers.0.k_proj (step 4)"}));
  const RunFacts facts;
  const std::string page = html_report({.facts = facts, .history = history, .ending = Ending::done});
  EXPECT_NE(page.find("layers.0.k_proj (step 4)"), std::string::npos);
}

TEST(Metrics, AVerifiedStepHasTheErrorOfFp8) {
  StepMetrics metrics = metrics_of(4);
  EXPECT_FALSE(nlohmann::json::parse(to_json(metrics)).contains("fp8_error"));
  metrics.fp8_error = {.loss = 0.001, .gradient = 0.05, .worst = 0.2, .parameter = "layers.1.down"};
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(json["fp8_error"]["worst"], 0.2);
  const auto read = from_json(to_json(metrics));
  ASSERT_TRUE(read->fp8_error.has_value());
  EXPECT_EQ(read->fp8_error->loss, 0.001);
  EXPECT_EQ(read->fp8_error->gradient, 0.05);
  EXPECT_EQ(read->fp8_error->worst, 0.2);
  EXPECT_EQ(read->fp8_error->parameter, "layers.1.down");
  EXPECT_TRUE(std::ranges::any_of(scalars(metrics), [](const Scalar& scalar) {
    return scalar.name == "precision/worst_gradient_error" && scalar.value == 0.2;
  }));
}

TEST(Metrics, AStepWithAnOverflowHasALossAndNoNorm) {
  StepMetrics metrics = metrics_of(4);
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.loss_scale = 1024;
  metrics.overflow = true;
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["loss"], metrics.loss);
  EXPECT_EQ(json["loss_scale"], 1024);
  EXPECT_EQ(json["overflow"], true);
  const auto read = from_json(to_json(metrics));
  EXPECT_TRUE(read->overflow);
  EXPECT_EQ(read->loss_scale, 1024);
  EXPECT_NE(plain_line(metrics, 10, 1).find("grad_norm overflow  lr"), std::string::npos);
  bool scale = false;
  for (const Scalar& scalar : scalars(metrics)) {
    EXPECT_NE(scalar.name, "optimizer/grad_norm");
    scale = scale || (scalar.name == "optimizer/loss_scale" && scalar.value == 1024);
  }
  EXPECT_TRUE(scale);
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics_of(4))).contains("loss_scale"), false);
}

TEST(Metrics, ALineIsReadAsItWasWritten) {
  StepMetrics metrics = metrics_of(3);
  metrics.model_flops_utilization = 0.25;
  metrics.gpu_watts = 698.5;
  metrics.joules_per_token = 0.07;
  metrics.sm_clock_mhz = 1545;
  metrics.validation_loss = 4.5;
  metrics.router_loss = 0.02;
  metrics.expert_imbalance = 1.5;
  metrics.expert_tokens = {{3, 0, 5}, {4, 4, 0}};
  metrics.findings = {{2, "stall", "no \"step\""}, {3, "overfitting", "\xff is no UTF-8"}};
  const std::string line = to_json(metrics);
  const auto read = from_json(line);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), line);
  EXPECT_NE(line.find(R"("router_loss":0.02,"expert_imbalance":1.5,"expert_tokens":[[3,0,5],[4,4,0]])"),
            std::string::npos)
      << line;
  EXPECT_NE(line.find(R"("gpu_watts":698.5,"joules_per_token":0.07,"sm_clock_mhz":1545.0)"), std::string::npos) << line;
  EXPECT_EQ(to_json(metrics_of(3)).find("watts"), std::string::npos);  // absent is not zero
  EXPECT_EQ(read->findings.at(0).text, "no \"step\"");
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(from_json(to_json(metrics))->loss));
  for (const char* other : {"", "[]", "{\"step\": 0}", "{\"loss\": 1}", "{\"step\": 1"}) EXPECT_FALSE(from_json(other));
  EXPECT_EQ(from_json("{\"step\": 1, \"loss\": 2}")->targets, -1);  // as earlier versions wrote it
  const auto old = from_json(R"({"step":1,"loss":2,"gradient_norm":1.5,"learning_rate":3e-4})");  // version 0.1
  EXPECT_EQ(old->grad_norm, 1.5);
  EXPECT_EQ(old->lr, 3e-4);
  EXPECT_EQ(old->time, 0);
  EXPECT_EQ(to_json(*old).find("time"), std::string::npos);
  for (const char* wrong : {"null", "-5", "\"noon\""}) {
    EXPECT_EQ(from_json(cat("{\"step\": 1, \"time\": ", wrong, "}"))->time, 0) << wrong;
  }
  EXPECT_TRUE(from_json("{\"step\": 1, \"data_position\": 7, \"findings\": [1]}"));
}

TEST(Metrics, NumbersSurviveToTheLastBit) {
  StepMetrics metrics = metrics_of(1);
  metrics.loss = 0.1 + 0.2;
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["loss"].get<double>(), 0.1 + 0.2);
}

std::vector<std::int64_t> steps_in(const std::string& path) {
  std::vector<std::int64_t> steps;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) steps.push_back(nlohmann::json::parse(line)["step"]);
  return steps;
}

TEST(Metrics, ResumeCutsOffLaterAndTornLines) {
  const TemporaryFolder folder;
  const std::string path = folder.path("deep/run/metrics.jsonl");
  {
    MetricsFile writer(path);
    for (int step = 1; step <= 9; ++step) writer.step(metrics_of(step));
    EXPECT_THROW(writer.step(metrics_of(9)), InternalError);
  }
  const std::string whole = read_file(path);
  { const MetricsFile writer(path, 20); }
  EXPECT_EQ(read_file(path), whole);
  {
    MetricsFile writer(path, 6);
    EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
    EXPECT_THROW(writer.step(metrics_of(6)), InternalError);
    writer.step(metrics_of(7));
  }
  std::ofstream(path, std::ios::app) << R"({"step": 8, "loss": 3.)";  // a partial line
  { const MetricsFile writer(path, 8); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  std::ofstream(path, std::ios::app) << R"({"step": 8})";  // complete except for its newline
  { const MetricsFile writer(path, 8); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  std::ofstream(path, std::ios::app) << "no json\n" << to_json(metrics_of(8)) << "\nno json\n";
  {
    const MetricsFile writer(path, 8);
    EXPECT_NE(writer.note(), "");
  }
  EXPECT_EQ(read_file(path).find("no json"), std::string::npos);
  EXPECT_NE(read_file(folder.path("deep/run/metrics.edited-1.jsonl")).find("no json"), std::string::npos);
  std::vector<std::int64_t> steps;  // a line that cannot be read loses no other
  read_metrics(path, [&](const StepMetrics& metrics) { steps.push_back(metrics.step); });
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  { const MetricsFile writer(path); }
  EXPECT_EQ(read_file(path), "");
}

// Nothing of a kept step is lost, whoever edited the file.
TEST(Metrics, ResumeKeepsTheLinesOfAnEditedFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  const auto resumed = [&](const std::vector<std::int64_t>& steps, std::int64_t at) {
    {
      std::ofstream out(path, std::ios::trunc);
      for (const std::int64_t step : steps) out << to_json(metrics_of(step)) << "\n";
    }
    const MetricsFile writer(path, at);
    return writer.note();
  };
  const std::vector<std::int64_t> twice{1, 2, 3, 4, 4, 5, 6}, exchanged{1, 2, 4, 3, 5};
  EXPECT_EQ(resumed(twice, 6), "");
  EXPECT_EQ(steps_in(path), twice);
  std::vector<std::int64_t> read;
  read_metrics(path, [&](const StepMetrics& metrics) { read.push_back(metrics.step); });
  EXPECT_EQ(read, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(resumed(exchanged, 5), "");
  EXPECT_EQ(steps_in(path), exchanged);
  const std::vector<std::int64_t> merged{1, 2, 5, 3, 4};
  const std::string note = resumed(merged, 4);
  EXPECT_NE(note.find("is only in " + folder.path("metrics.edited-1.jsonl")), std::string::npos) << note;
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(steps_in(folder.path("metrics.edited-1.jsonl")), merged);
  std::ofstream(path, std::ios::trunc) << "[\n" << to_json(metrics_of(1)) << ",\n" << to_json(metrics_of(2)) << "\n]\n";
  EXPECT_NE(MetricsFile(path, 2).note(), "");
  EXPECT_TRUE(io::exists(folder.path("metrics.edited-2.jsonl")));
  {
    std::ofstream out(path, std::ios::trunc);
    out << to_json(metrics_of(1)) << "\n" << to_json(metrics_of(2));  // an editor removed the last line feed
  }
  { MetricsFile(path, 2).step(metrics_of(3)); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3}));
}

// A run's folder that was copied by hard links (cp -al).
TEST(Metrics, AFileWithALinkIsNotChangedThroughIt) {
  const TemporaryFolder folder;
  const std::string path = folder.path("metrics.jsonl"), copy = folder.path("copy.jsonl");
  {
    MetricsFile writer(path);
    for (int step = 1; step <= 4; ++step) writer.step(metrics_of(step));
  }
  std::filesystem::create_hard_link(path, copy);
  { MetricsFile(path, 2).step(metrics_of(3)); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(steps_in(copy), (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST(Metrics, AFileThatCannotBeWrittenIsTheUsersError) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("metrics.jsonl"));
  EXPECT_THROW(MetricsFile(folder.path("metrics.jsonl")), UserError);
  std::ofstream(folder.path("file")) << "x";
  EXPECT_THROW(MetricsFile(folder.path("file/metrics.jsonl")), UserError);
}

TEST(Metrics, NothingOfALineStaysWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  MetricsFile writer(path);
  writer.step(metrics_of(1));
  const std::string before = read_file(path);
  // A file-size limit in the middle of the next line, as on a full disk.
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{before.size() + 10, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  EXPECT_THROW(writer.step(metrics_of(2)), UserError);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(path), before);
  writer.step(metrics_of(2));
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2}));
}

// --- progress ---

BarState bar_state() {
  return {.step = 120,
          .total = 1000,
          .measured = true,
          .loss = 3.21454,
          .tokens_per_second = 12345,
          .seconds_left = 185,
          .memory_bytes = std::int64_t{5} << 28};
}

TEST(Bar, ShrinksWithTheTerminal) {
  const BarState state = bar_state();
  EXPECT_EQ(
      bar_line(state, 120),
      "step  120/1000  [#...............]   12%  loss 3.2145  lr 0.00e+00  grad_norm 0       12.3K tok/s  1.25 GiB  "
      "ETA 3m 05s");
  EXPECT_EQ(bar_line(state, 79), "step  120/1000  [#...........]  loss 3.2145  12.3K tok/s  1.25 GiB  ETA 3m 05s");
  for (int columns = 0; columns < 140; ++columns) EXPECT_LE(cells(bar_line(state, columns)), columns);
  EXPECT_EQ(bar_line(state, 16), "step  120/1000");
  EXPECT_EQ(bar_line(state, 6), "step  ");
}

TEST(Bar, ShowsLearningRateGradientNormAndEpochOnAWideTerminal) {
  BarState state = bar_state();
  state.lr = 2e-5;
  state.grad_norm = 1.25;
  state.epoch = 0.36;
  EXPECT_EQ(bar_line(state, 160),
            "step  120/1000  [###...........................]   12%  loss 3.2145  lr 2.00e-05  grad_norm 1.25    "
            "epoch 0.4/3  12.3K tok/s  1.25 GiB  ETA 3m 05s");
  EXPECT_EQ(bar_line(state, 79), "step  120/1000  loss 3.2145  epoch 0.4/3  12.3K tok/s  1.25 GiB  ETA 3m 05s");
  for (int columns = 0; columns < 180; ++columns) EXPECT_LE(cells(bar_line(state, columns)), columns);
}

TEST(Bar, EpochText) {
  EXPECT_EQ(epoch_text(0, 3, 10), "");
  EXPECT_EQ(epoch_text(0.001, 3, 10), "") << "a part of an epoch that rounds to 0";
  EXPECT_EQ(epoch_text(1.5, 5, 10), "1.5/3");
  EXPECT_EQ(epoch_text(0.5, 5, 7), "0.5/0.7");
  EXPECT_EQ(epoch_text(3.03, 28, 28), "3.0/3");
}

TEST(Bar, ColourAndUnicodeTakeNoMoreSpace) {
  BarState state = bar_state();
  const std::string plain = bar_line(state, 90);
  state.colour = true;
  EXPECT_EQ(cells(bar_line(state, 90)), cells(plain));
  EXPECT_NE(bar_line(state, 90).find("\x1b["), std::string::npos);
  state.unicode = true;
  for (int columns = 0; columns < 140; ++columns) EXPECT_LE(cells(bar_line(state, columns)), columns);
}

TEST(Bar, PrintsNanAndOmitsMissingNumbers) {
  BarState state = bar_state();
  state.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(bar_line(state, 120).find("loss nan"), std::string::npos);
  state.phase = "evaluating 3/20";
  EXPECT_NE(bar_line(state, 120).find("evaluating 3/20"), std::string::npos);
  EXPECT_EQ(bar_line({.step = 0, .total = 10}, 40), "step  0/10  [....................]    0%");
  EXPECT_EQ(bar_line({.step = 10, .total = 10}, 40), "step 10/10  [####################]  100%");
}

TEST(Bar, PlainLine) {
  EXPECT_EQ(
      plain_line(metrics_of(120), 1000, 185),
      "step 120/1000  epoch 0.5/4.2  loss 3.5000  grad_norm 1.25  lr 2.00e-05  12.3K tokens/s  1.25 GiB  ETA 3m 05s");
  EXPECT_EQ(plain_line(metrics_of(1000), 1000, 0),
            "step 1000/1000  epoch 0.5/0.5  loss 3.5000  grad_norm 1.25  lr 2.00e-05  12.3K tokens/s  1.25 GiB");
}

// What Progress writes to a pipe.
std::string written(ProgressOptions options, const std::function<void(Progress&)>& use) {
  std::array<int, 2> ends{};
  HAWSER_CHECK(pipe(ends.data()) == 0, "pipe");
  options.file = ends[1];
  std::string text;
  std::thread reader([&] {
    std::array<char, 4096> bytes{};
    for (ssize_t size; (size = ::read(ends[0], bytes.data(), bytes.size())) > 0;) {
      text.append(bytes.data(), static_cast<std::size_t>(size));
    }
  });
  {
    Progress progress(options);
    use(progress);
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  return text;
}

std::vector<std::int64_t> plain_steps(const std::string& text) {
  std::vector<std::int64_t> steps;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    EXPECT_EQ(line.find('\r'), std::string::npos);
    if (line.starts_with("step ")) steps.push_back(std::stoll(line.substr(5)));
  }
  return steps;
}

TEST(Progress, PlainLinesKeepToLogEvery) {
  const auto steps = [](Progress& progress) {
    for (int step = 1; step <= 10; ++step) progress.step(metrics_of(step));
  };
  EXPECT_EQ(plain_steps(written({.total = 10, .log_every = 4, .plain_seconds = 0}, steps)),
            (std::vector<std::int64_t>{1, 4, 8, 10}));
  // All within a second: only the first and the last.
  EXPECT_EQ(plain_steps(written({.total = 10}, steps)), (std::vector<std::int64_t>{1, 10}));
  // Stopped before its end: the last step is printed all the same, once.
  EXPECT_EQ(plain_steps(written({.total = 20}, steps)), (std::vector<std::int64_t>{1, 10}));
}

// The first step takes long; from the second on the time left is that of later steps.
TEST(Progress, TheTimeLeftForgetsTheFirstStep) {
  const std::string text = written({.total = 101, .plain_seconds = 0}, [](Progress& progress) {
    for (int step = 1; step <= 2; ++step) {
      StepMetrics metrics = metrics_of(step);
      metrics.step_seconds = step == 1 ? 100 : 1;
      progress.step(metrics);
    }
  });
  EXPECT_NE(text.find("ETA 1m 39s"), std::string::npos) << text;
}

TEST(Progress, PlainLinesOfALongRunAreFew) {
  double at = 0;
  int lines = 0;
  for (; at < 24 * 3600; ++lines) at += plain_interval(at, 1);
  EXPECT_EQ(plain_interval(0, 1), 1);
  EXPECT_EQ(plain_interval(600, 1), 30);
  EXPECT_EQ(plain_interval(7200, 1), 60);
  EXPECT_EQ(plain_interval(7200, 90), 90);
  EXPECT_LT(lines, 1600);
}

TEST(Progress, MessagesAreWholeLines) {
  const std::string text = written({.total = 2}, [](Progress& progress) {
    progress.message("before");
    progress.step(metrics_of(1));
    progress.phase("evaluating", 0, 3);
    progress.message("two\nlines\n");
    progress.finish();
    progress.message("after");
  });
  EXPECT_EQ(text, "before\n" + plain_line(metrics_of(1), 2, 0.5) + "\ntwo\nlines\nafter\n");
}

class TerminalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
  }
};

TEST_F(TerminalTest, UpdatesInPlaceAtALimitedRate) {
  const auto use = [](Progress& progress) {
    for (int step = 1; step <= 1000; ++step) progress.step(metrics_of(step));
    progress.message("saved");
  };
  const std::string text = written({.total = 1000, .terminal = true, .columns = 100}, use);
  EXPECT_NE(text.find("\r\x1b[1mstep    1/1000\x1b[0m"), std::string::npos);
  EXPECT_NE(text.find("\rsaved\x1b[K\n"), std::string::npos);
  EXPECT_NE(text.find("1000/1000"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 30);  // ten a second
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(TerminalTest, HonoursNoColorDumbTerminalsAndTheLocale) {
  const auto use = [](Progress& progress) { progress.step(metrics_of(1)); };
  const ProgressOptions options{.total = 2, .terminal = true, .columns = 100};
  setenv("NO_COLOR", "1", 1);
  std::string text = written(options, use);
  EXPECT_EQ(text.find("\x1b[1m"), std::string::npos);
  EXPECT_NE(text.find("━"), std::string::npos);
  setenv("LC_ALL", "C", 1);
  text = written(options, use);
  EXPECT_NE(text.find("[####"), std::string::npos);
  setenv("TERM", "dumb", 1);
  EXPECT_EQ(written(options, use), plain_line(metrics_of(1), 2, 0.5) + "\n");
}

// A paused terminal, or a supervisor that does not read its pipe.
TEST(Progress, AReaderThatStandsStillDoesNotHoldUpTheRun) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  constexpr int kMessages = 2000;
  const std::string message(1000, 'm');
  std::string text;
  std::thread reader;
  {
    Progress progress({.total = kMessages, .file = ends[1]});
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kMessages; ++i) progress.message(message);  // 2 MB; a pipe holds 64 KiB
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    reader = std::thread([&] {
      std::array<char, 4096> bytes{};
      for (ssize_t size = 0; (size = read(ends[0], bytes.data(), bytes.size())) > 0;) {
        text.append(bytes.data(), static_cast<std::size_t>(size));
      }
    });
    for (int i = 0; i < 2000 && text.size() < 1000000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    progress.message("last");
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 1000);
  EXPECT_NE(text.find(" messages were not shown: nothing read them\nlast\n"), std::string::npos)
      << text.substr(text.size() - std::min<std::size_t>(text.size(), 200));
}

TEST(Progress, AStopEndsTheWaitForAReader) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const auto begin = std::chrono::steady_clock::now();
  {
    Progress progress({.total = 2, .file = ends[1], .stop_requested = [] { return true; }});
    progress.message(std::string(200000, 'm'));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ::close(ends[0]);  // ends the blocked write
  ::close(ends[1]);
}

TEST(Progress, AClosedPipeIsNoError) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  ::close(ends[0]);
  {
    Progress progress({.total = 2, .file = ends[1]});
    progress.step(metrics_of(1));
    progress.message("no reader");
  }
  ::close(ends[1]);
  std::signal(SIGPIPE, handler);
}

}  // namespace report_test
}  // namespace hawser::report

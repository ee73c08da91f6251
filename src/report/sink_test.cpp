#include "report/sink.h"

#include <gtest/gtest.h>

#include "report/testing/sample_metrics.h"

namespace hawser::report {
namespace sink_test {

struct Log {
  std::vector<std::string> calls, lines;
  Sinks::Log log() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
};

// Fails at given steps, or in its background work.
class Fragile : public Sink {
 public:
  explicit Fragile(Log& log, std::int64_t from = 0, std::int64_t to = -1) : log_(log), from_(from), to_(to) {}
  void step(const StepMetrics& metrics) override {
    if (metrics.step >= from_ && metrics.step <= to_)
      throw UserError(cat("no space for step ", metrics.step, "\nmore"));
    log_.calls.push_back(cat("step ", metrics.step));
  }
  void finding(const Finding& finding) override { log_.calls.push_back(finding.rule); }
  void sync() override { throw UserError("cannot sync"); }
  void finish(Ending) override { log_.calls.push_back("finish"); }
  std::string trouble() override { return std::exchange(trouble_, ""); }
  std::int64_t lost() const override { return lost_; }

  std::string trouble_;
  std::int64_t lost_ = 0;

 private:
  Log& log_;
  std::int64_t from_, to_;
};

TEST(Sinks, AFailingSinkIsReportedOnceAndOthersContinue) {
  Log log;
  Sinks sinks(log.log());
  sinks.add("first", std::make_unique<Fragile>(log, 2, 4));
  sinks.add("second", std::make_unique<Fragile>(log));
  for (int step = 1; step <= 5; ++step) sinks.step(metrics_of(step));
  EXPECT_EQ(log.lines, (std::vector<std::string>{"hawser: warning: first: no space for step 2; the run continues"}));
  sinks.finding({.step = 5, .rule = "stall"});
  sinks.finish(Ending::done);
  EXPECT_EQ(log.lines.back(), "hawser: warning: first: 3 of 5 steps were not written");
  EXPECT_EQ(log.lines.size(), 2u);
  EXPECT_EQ(log.calls, (std::vector<std::string>{"step 1", "step 1", "step 2", "step 3", "step 4", "step 5", "step 5",
                                                 "stall", "stall", "finish", "finish"}));
  sinks.step(metrics_of(6));
  sinks.finish(Ending::done);
  EXPECT_EQ(log.lines.size(), 2u);
}

TEST(Sinks, ReportsBackgroundFailures) {
  Log log;
  Sinks sinks(log.log());
  auto sink = std::make_unique<Fragile>(log);
  Fragile& inner = *sink;
  sinks.add("far away", std::move(sink));
  sinks.step(metrics_of(1));
  EXPECT_TRUE(log.lines.empty());
  inner.trouble_ = "no answer";
  inner.lost_ = 1;
  sinks.step(metrics_of(2));
  sinks.sync();  // fails, but this sink was already reported
  sinks.finish(Ending::done);
  EXPECT_EQ(log.lines, (std::vector<std::string>{"hawser: warning: far away: no answer; the run continues",
                                                 "hawser: warning: far away: 1 of 2 steps were not written"}));
}

TEST(Sinks, ASinkThatCannotBeOpenedIsDisabled) {
  Log log;
  Sinks sinks(log.log());
  sinks.open("port", []() -> std::unique_ptr<Sink> { throw UserError("127.0.0.1:1: taken"); });
  sinks.step(metrics_of(1));
  sinks.finish(Ending::failed);
  EXPECT_EQ(log.lines, (std::vector<std::string>{
                           "hawser: warning: port: 127.0.0.1:1: taken; disabled for this run; the run continues"}));
}

}  // namespace sink_test
}  // namespace hawser::report

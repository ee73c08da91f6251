#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/units.h"
#include "report/html_chart.h"
#include "report/html_file.h"
#include "report/html_report.h"
#include "report/html_style.h"
#include "report/testing/sample_metrics.h"

namespace hawser::report {
namespace html_test {

TEST(HtmlEscape, EscapesMarkup) {
  EXPECT_EQ(html_escape("<a href=\"x\" b='y'>&\x01\n"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;?\n");
}

TEST(Curve, KeepsMeansAndRangesInBoundedMemory) {
  Curve few("few");
  for (int step = 1; step <= 600; ++step) few.add(step, step);
  ASSERT_EQ(few.points().size(), 600u);
  EXPECT_EQ(few.points()[9].mean, 10);

  Curve many("many");
  double sum = 0;
  for (int step = 1; step <= 100000; ++step) many.add(step, step % 7), sum += step % 7;
  const auto points = many.points();
  EXPECT_LE(points.size(), 600u);
  EXPECT_GT(points.size(), 300u);
  EXPECT_EQ(points.back().step, 100000);
  const double width = points[0].step;  // 256 steps
  double weighted = 0, before = 0;
  for (const Curve::Point& p : points) {
    weighted += p.mean * (p.step - before);
    before = p.step;
    if (p.step < 100000) {
      EXPECT_EQ(std::fmod(p.step, width), 0);
      EXPECT_EQ(p.min, 0);
      EXPECT_EQ(p.max, 6);
    }
  }
  EXPECT_NEAR(weighted, sum, 1e-6);
  many.add(100001, std::nan(""));
  EXPECT_EQ(many.left_out(), 1);
  EXPECT_EQ(many.points().size(), points.size());
}

// Steps far apart, as for evaluations.
TEST(Curve, SparseStepsStayApart) {
  Curve curve("validation");
  for (int i = 1; i <= 10; ++i) curve.add(i * 100000, i);
  EXPECT_EQ(curve.points().size(), 10u);
}

TEST(Chart, DrawsWhatThereIs) {
  const Curve empty("none");
  EXPECT_EQ(chart("nothing", {&empty}), "");
  Curve one("one"), wide("wide");
  one.add(5, 2);
  EXPECT_NE(chart("one", {&one, &empty}).find("<circle"), std::string::npos);
  for (int step = 1; step <= 100; ++step) wide.add(step, std::pow(10, step % 5));
  EXPECT_NE(chart("a <wide> one", {&wide}).find("logarithmic"), std::string::npos);
  EXPECT_EQ(chart("a <wide> one", {&wide}).find("<wide>"), std::string::npos);
  // A legend key and its name are one element, so that no line break splits them.
  const std::string both = chart("both", {&one, &wide});
  for (const char* entry : {R"(<span class="entry"><span class="key c0"></span>one</span> )",
                            R"(<span class="entry"><span class="key c1"></span>wide</span> )"}) {
    EXPECT_NE(both.find(entry), std::string::npos) << both;
  }
  EXPECT_NE(std::string(kHtmlStyle).find(".entry { display: inline-block; }"), std::string::npos);
  for (const char* bad : {"nan", "inf"}) EXPECT_EQ(chart("x", {&wide}).find(bad), std::string::npos);
}

TEST(Chart, HasTheTitleOfItsAxisAndIntegerSteps) {
  Curve curve("c");
  for (int step = 1; step <= 3; ++step) curve.add(step, 10 * step);
  const std::string text = chart("c", {&curve});
  EXPECT_NE(text.find(">step</text>"), std::string::npos);
  for (const char* tick : {">1</text>", ">2</text>", ">3</text>"})
    EXPECT_NE(text.find(tick), std::string::npos) << tick;
  EXPECT_EQ(text.find(">1.5</text>"), std::string::npos);
}

TEST(Chart, MarksResumes) {
  Curve curve("c");
  for (int step = 11; step <= 50; ++step) curve.add(step, step);
  const auto count = [&](const std::string& text) {
    std::size_t n = 0;
    for (std::size_t at = text.find("class=\"resume\""); at != std::string::npos; ++n) {
      at = text.find("class=\"resume\"", at + 1);
    }
    return n;
  };
  EXPECT_EQ(count(chart("c", {&curve})), 0u);
  const std::string two = chart("c", {&curve}, {5, 20, 50, 60});  // two are outside
  EXPECT_EQ(count(two), 2u);
  EXPECT_NE(two.find("<title>resumed after step 20</title>"), std::string::npos);
  EXPECT_NE(two.find("dotted: resumed after step 20, 50<"), std::string::npos) << two;
  EXPECT_NE(chart("c", {&curve}, {20, 30, 40, 50}).find("dotted lines: 4 resumes<"), std::string::npos);
}

TEST(RunHistory, FindsResumes) {
  RunHistory history;
  for (int step = 1; step <= 30; ++step) {
    StepMetrics metrics = metrics_of(step);
    if (step == 1 || step == 11 || step == 21) metrics.checkpointing = "none";
    history.add(metrics);
  }
  EXPECT_EQ(history.resumes, (std::vector<std::int64_t>{10, 20}));
}

// All coordinates are inside the chart.
TEST(Chart, StaysInItsFrame) {
  for (const double scale : {1e-8, 1.0, 1e12}) {
    for (const double shift : {0.0, -5.0, 3.0}) {
      Curve curve("c");
      for (int step = 1; step <= 50; ++step) curve.add(step, scale * (shift + std::sin(step)));
      const std::string text = chart("c", {&curve});
      const std::size_t from = text.find("<polyline"), begin = text.find("points=\"", from) + 8;
      std::istringstream in(text.substr(begin, text.find('"', begin) - begin));
      char comma = 0;
      int count = 0;
      for (double x = 0, y = 0; in >> x >> comma >> y; ++count) {
        EXPECT_TRUE(x >= 0 && x <= 440 && y >= 0 && y <= 216) << x << " " << y;
      }
      EXPECT_EQ(count, 50);
    }
  }
}

std::string page(const RunFacts& facts, int steps, std::optional<Ending> ending = Ending::done, bool rules = true) {
  RunHistory history;
  for (int step = 1; step <= steps; ++step) {
    StepMetrics metrics = metrics_of(step);
    metrics.loss = 9.0 - step * 0.01;
    if (step % 10 == 0) metrics.validation_loss = 9.5 - step * 0.01;
    if (step == 7) metrics.findings = {{7, "exploding gradients", "<script>alert(1)</script>; try less"}};
    history.add(metrics);
  }
  return html_report({.facts = facts,
                      .history = history,
                      .ending = ending,
                      .rules = rules ? std::optional(RulesOptions{.steps = 1000}) : std::nullopt,
                      .phases = {{"starting", 1.5}, {"training", 65}},
                      .time = 1767225600});
}

RunFacts facts() {
  return {.name = "</title><script>evil()</script>",
          .version = "1.2",
          .folder = "/runs/\"x\"",
          .steps = 20,
          .recipe = {{"name", "a&b", true}, {"train.steps", "20", true}, {"train.seed", "1234", false}},
          .environment = {{"host", "<b>here</b>"}},
          .data = {{"training tokens", "918K", "917955"}},
          .memory = {{"parameters", 1 << 20}, {"saved", 3 << 20}, {"nothing", 0}}};
}

TEST(Html, ContainsTheRunAndLoadsNothing) {
  const std::string text = page(facts(), 20);
  for (const std::string& part : std::vector<std::string>{"Loss, nats per target",
                                                          "Gradient norm",
                                                          "Learning rate",
                                                          "Tokens per second",
                                                          "data-name=\"validation\"",
                                                          "20 / 20",
                                                          "8.8000",
                                                          "9.3000",
                                                          "saved</td>",
                                                          format_bytes(Bytes(3 << 20)),
                                                          "75.0 %",
                                                          format_bytes(Bytes(4 << 20)),
                                                          "1m 05s",
                                                          "<td>training tokens</td><td title=\"917955\">918K</td>",
                                                          "&lt;b&gt;here&lt;/b&gt;",
                                                          "<tr class=\"default\"><td>seed</td><td>1234</td></tr>",
                                                          "<tr><td>steps</td><td>20</td></tr>",
                                                          "@media screen and (prefers-color-scheme: dark)",
                                                          "@media print",
                                                          "h2, h2 + p { break-after: avoid; }",
                                                          ">done<",
                                                          "<b>exploding gradients</b>, step 7: &lt;script&gt;"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  for (const char* never : {"evil()</", "<script>alert", "http://", "https://", "//cdn", "@import", "url(",
                            " src=", "nothing</td>", ">nan<", "inf<"}) {
    EXPECT_EQ(text.find(never), std::string::npos) << never;
  }
}

TEST(Html, ShowsTheFirstAndTheLowestValidationLoss) {
  RunHistory history;
  for (int step = 1; step <= 3; ++step) {
    StepMetrics metrics = metrics_of(step);
    if (step == 1) metrics.initial_validation_loss = 5.25;
    metrics.validation_loss = step == 2 ? 3.5 : 4.5;
    history.add(metrics);
  }
  const auto text = [&] { return html_report({.facts = facts(), .history = history, .ending = Ending::done}); };
  EXPECT_NE(text().find("<b>4.5000</b><span>validation loss, last (5.2500 at first)</span>"), std::string::npos);
  EXPECT_NE(text().find("<b>3.5000</b><span>lowest validation loss, step 2</span>"), std::string::npos);
  StepMetrics lowest = metrics_of(4);
  lowest.validation_loss = 3.25;
  history.add(lowest);
  EXPECT_EQ(text().find("lowest validation loss"), std::string::npos) << "it is the last one";
}

TEST(Html, DrawsACurveOfEachValidationSet) {
  RunHistory history;
  std::map<std::string, double> sets;
  for (char name = 'a'; name <= 'j'; ++name) sets[std::string(1, name)] = name - 'a' + 1;
  for (int step = 1; step <= 3; ++step) {
    StepMetrics metrics = metrics_of(step);
    metrics.validation_loss = ValidationLosses(4, sets);
    history.add(metrics);
  }
  const std::string text = html_report({.facts = facts(), .history = history, .ending = Ending::done});
  EXPECT_NE(text.find("<b>Loss of each validation set, nats per target</b> <span class=\"entry\"><span class=\"key "
                      "c0\"></span>validation</span> <span class=\"entry\"><span class=\"key c1\"></span>a</span>"),
            std::string::npos);
  EXPECT_NE(text.find("<span class=\"key c2\"></span>j</span>"), std::string::npos) << "colours repeat";
  EXPECT_NE(text.find("data-name=\"j\" data-unit=\"nats\" data-step=\"1 2 3\" data-value=\"10 10 10\""),
            std::string::npos);
  RunHistory one;
  StepMetrics metrics = metrics_of(1);
  metrics.validation_loss = 4;
  one.add(metrics);
  EXPECT_EQ(html_report({.facts = facts(), .history = one, .ending = Ending::done}).find("Loss of each"),
            std::string::npos);
}

TEST(Html, ShowsPowerAndClockWhereTheyAreKnown) {
  RunHistory history;
  for (int step = 1; step <= 4; ++step) {
    StepMetrics metrics = metrics_of(step);
    if (step > 1) {  // of the mean, the first step is no part
      metrics.gpu_watts = 650 + step;
      metrics.sm_clock_mhz = 1545;
      metrics.joules_per_token = step == 2 ? 0.05 : 0.08;
    }
    history.add(metrics);
  }
  const std::string text = html_report({.facts = facts(), .history = history, .ending = Ending::done});
  for (const char* part : {"Power, watts", "SM clock, MHz", "<b>0.07 J</b><span>energy per token, mean</span>"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  for (const char* never : {"Power, watts", "SM clock", "energy per token"})
    EXPECT_EQ(page(facts(), 20).find(never), std::string::npos) << never;
}

TEST(Html, ReportsEndingAndDisabledRules) {
  EXPECT_NE(page(facts(), 5, Ending::interrupted).find("stopped after step 5"), std::string::npos);
  EXPECT_NE(page(facts(), 5, Ending::diverged).find("diverged; done after step 5"), std::string::npos);
  RunHistory broken;
  StepMetrics last = metrics_of(5);
  last.loss = std::nan("");
  broken.add(last);
  const std::string page_of_broken = html_report({.facts = facts(), .history = broken, .ending = Ending::diverged});
  EXPECT_NE(page_of_broken.find("diverged in step 5"), std::string::npos);
  EXPECT_NE(page(facts(), 5).find("No rule fired. Too few steps so far for: exploding gradients (21 steps), "),
            std::string::npos);
  EXPECT_NE(page(facts(), 5, Ending::done, false).find("rules are off"), std::string::npos);
  EXPECT_NE(page({.name = "empty"}, 0).find("0 / 0"), std::string::npos);
}

// Relative luminance of "#rrggbb" and contrast of two colours (WCAG 2).
double luminance(const std::string& colour) {
  const auto part = [&](std::size_t at) {
    const double value = std::stoi(colour.substr(at, 2), nullptr, 16) / 255.0;
    return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}

double contrast(const std::string& a, const std::string& b) {
  const double one = luminance(a), other = luminance(b);
  return (std::max(one, other) + 0.05) / (std::min(one, other) + 0.05);
}

// tools/check_pages.py measures the contrast of every text in a browser.
TEST(Html, TextAndCurvesHaveContrast) {
  const std::string style = kHtmlStyle;
  const std::size_t dark = style.find("prefers-color-scheme: dark");
  for (const std::string& colours : {style.substr(0, dark), style.substr(dark)}) {
    const auto value = [&](const std::string& name) {
      const std::size_t at = colours.find("--" + name + ": #");
      return at == std::string::npos ? "#000000" : colours.substr(at + name.size() + 4, 7);
    };
    for (const char* ground : {"page", "card"}) {
      for (const char* text : {"text", "quiet", "good", "warn", "bad"}) {
        EXPECT_GE(contrast(value(text), value(ground)), 4.5) << text << " on " << ground;
      }
      for (const char* curve : {"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"}) {
        EXPECT_GE(contrast(value(curve), value(ground)), 3) << curve << " on " << ground;
      }
    }
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Html, ReloadsUntilTheRunEnds) {
  const std::string running = page(facts(), 5, std::nullopt), done = page(facts(), 20);
  EXPECT_TRUE(has(running, R"(<meta http-equiv="refresh" content="30">)"));
  EXPECT_TRUE(has(running, R"(running</span>, step 5 of 20, <span class="quiet">as of 2026-01-01 00:00:00 UTC<)"));
  EXPECT_TRUE(has(running, R"(id="stale" class="warn" data-time="1767225600")"));
  EXPECT_TRUE(has(done, R"(done</span> <span class="quiet">2026-01-01 00:00:00 UTC<)"));
  for (const char* part : {"http-equiv=\"refresh\"", "id=\"stale\"", "running"}) EXPECT_FALSE(has(done, part)) << part;
}

class HtmlFileTest : public ::testing::Test {
 protected:
  HtmlFileOptions options() {
    return {.path = path_,
            .rules = RulesOptions{.steps = 1000},
            .phases = [] { return std::vector<std::pair<std::string, double>>{}; },
            .in_place = [this] { return in_place_.load(); },
            .log = [this](const std::string& line) { log_ += line; },
            .every = std::chrono::milliseconds(1)};
  }
  // Waits until the background thread has written a page with `part`.
  bool appears(const std::string& part) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      if (std::filesystem::exists(path_) && has(read_file(path_), part)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  TemporaryFolder folder_;
  std::string path_ = folder_.path("report.html"), log_;
  std::atomic<bool> in_place_{true};
};

TEST_F(HtmlFileTest, IsRewrittenUntilTheRunEnds) {
  RunHistory earlier;
  for (int step = 1; step <= 3; ++step) earlier.add(metrics_of(step));
  HtmlFile file(options(), facts(), earlier);
  EXPECT_FALSE(std::filesystem::exists(path_));  // no step was taken
  file.step(metrics_of(4));
  EXPECT_TRUE(appears("running</span>, step 4 of 20"));
  EXPECT_TRUE(appears("data-step=\"1 2 3 4\""));
  file.step(metrics_of(5));
  file.finding({6, "stall", "no step ended"});
  EXPECT_TRUE(appears("running</span>, step 5 of 20"));
  EXPECT_TRUE(appears("<b>stall</b>, step 6: no step ended"));
  EXPECT_EQ(log_, "");
  file.finish(Ending::interrupted);
  EXPECT_TRUE(appears("stopped after step 5"));
  EXPECT_EQ(log_, "wrote " + path_);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) EXPECT_EQ(entry.path(), path_);
}

TEST_F(HtmlFileTest, AFailedRunIsNotLeftRunning) {
  { HtmlFile(options(), facts(), {}); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  {
    HtmlFile file(options(), facts(), {});
    file.step(metrics_of(1));
    EXPECT_TRUE(appears("running"));
  }
  EXPECT_TRUE(appears("ended by an error after step 1"));
  EXPECT_EQ(log_, "");
}

// The run's folder was moved, and another run may write the file of this name.
TEST_F(HtmlFileTest, LeavesTheFolderOfAnotherRunAlone) {
  in_place_ = false;
  std::ofstream(path_) << "another run's";
  {
    HtmlFile file(options(), facts(), {});
    for (int step = 1; step <= 20; ++step) file.step(metrics_of(step));
  }
  EXPECT_EQ(read_file(path_), "another run's");
}

TEST_F(HtmlFileTest, AnErrorIsReportedAtTheEnd) {
  HtmlFileOptions nowhere = options();
  nowhere.path = folder_.path("none/report.html");
  HtmlFile file(nowhere, facts(), {});
  for (int step = 1; step <= 20; ++step) file.step(metrics_of(step));
  EXPECT_THROW(file.finish(Ending::done), UserError);
}

TEST(Html, TagsAreClosed) {
  const std::string text = page(facts(), 20);
  for (const char* tag : {"html", "head", "body", "div", "figure", "figcaption", "svg",   "table", "tr", "td",   "p",
                          "ul",   "li",   "h1",   "h2",  "h3",     "script",     "style", "span",  "b",  "title"}) {
    const auto count = [&](const std::string& what) {
      std::size_t n = 0;
      for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
      return n;
    };
    const std::string open = std::string("<") + tag;
    EXPECT_EQ(count(open + ">") + count(open + " "), count(std::string("</") + tag + ">")) << tag;
  }
}

}  // namespace html_test
}  // namespace hawser::report

#include "report/html_report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>

#include "base/cat.h"
#include "base/text.h"
#include "base/units.h"
#include "report/html_chart.h"
#include "report/html_style.h"

namespace hawser::report {
namespace {

// How often a browser reloads the page of an unfinished run, and after how long without news the page says so.
constexpr int kReloadSeconds = 30, kStaleSeconds = 300;

std::string tile(const std::string& value, const std::string& what) {
  return "<div class=\"tile\"><b>" + html_escape(value) + "</b><span>" + html_escape(what) + "</span></div>\n";
}

std::string tiles(const RunHistory& run, const RunFacts& facts) {
  const std::int64_t done = run.last ? run.last->step : 0;
  std::string out = tile(fmt::format("{} / {}", done, facts.steps), "steps");
  if (run.last && run.last->targets != 0)
    out += tile(fmt::format("{:.4f}", run.last->loss), "training loss, last step");
  if (run.last_validation) {
    out += tile(fmt::format("{:.4f}", *run.last_validation),
                run.initial_validation ? fmt::format("validation loss, last ({:.4f} at first)", *run.initial_validation)
                                       : "validation loss, last");
  }
  if (run.lowest_validation && *run.lowest_validation < *run.last_validation) {
    out += tile(fmt::format("{:.4f}", *run.lowest_validation),
                fmt::format("lowest validation loss, step {}", run.lowest_step));
  }
  if (run.seconds > 0) out += tile(format_count(run.all_tokens / run.seconds), "tokens per second, mean");
  if (run.last && run.last->model_flops_utilization) {
    out +=
        tile(fmt::format("{:.1f} %", 100 * *run.last->model_flops_utilization), "model FLOPs utilization, last step");
  }
  if (run.joules_tokens > 0)
    out += tile(fmt::format("{:.3g} J", run.joules / run.joules_tokens), "energy per token, mean");
  if (run.last) {
    out += tile(format_bytes(Bytes(run.last->peak_arena_bytes)), "memory per rank");
    out += tile(format_seconds(run.seconds), "time in training steps");
    out += tile(fmt::format("{:.2f}", run.last->data_position.epoch), "epochs");
  }
  return "<div class=\"tiles\">\n" + out + "</div>\n";
}

std::string time_text(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts{};
  std::array<char, 64> text{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "";
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

std::string state(const RunHistory& run, const HtmlInput& input) {
  const std::string when = time_text(input.time);
  const auto chip = [](const char* kind, const std::string& text) {
    return fmt::format("<span class=\"state {}\">{}</span>", kind, text);
  };
  const std::int64_t done = run.last ? run.last->step : 0;
  if (!input.ending) {
    return chip("good", "running") +
           fmt::format(
               ", step {} of {}, <span class=\"quiet\">as of {}</span><span id=\"stale\" class=\"warn\" "
               "data-time=\"{:.0f}\" data-limit=\"{}\"></span>",
               done, input.facts.steps, when, input.time, kStaleSeconds);
  }
  const std::string at = " <span class=\"quiet\">" + when + "</span>";
  if (input.ending == Ending::failed) return chip("bad", fmt::format("ended by an error after step {}", done)) + at;
  if (input.ending == Ending::diverged) {
    const bool finite = run.last && std::isfinite(run.last->loss) && std::isfinite(run.last->grad_norm);
    return chip("bad",
                finite ? fmt::format("diverged; done after step {}", done) : fmt::format("diverged in step {}", done)) +
           at;
  }
  if (input.ending == Ending::interrupted) return chip("warn", fmt::format("stopped after step {}", done)) + at;
  return chip("good", "done") + at;
}

// What the rules found, and what they could not test.
std::string findings(const RunHistory& run, const std::optional<RulesOptions>& rules) {
  std::string out = "<h2>Warnings</h2>\n";
  if (!rules) return out + "<p class=\"quiet\">The rules are off (report.rules).</p>\n";
  const std::int64_t steps = run.last ? run.last->step - run.skipped : 0;
  const std::vector<std::string> untested = untested_rules(*rules, steps, run.evaluations);
  std::string note = run.findings.empty() ? "No rule fired." : "";
  if (!untested.empty())
    note += cat(note.empty() ? "" : " ", "Too few steps so far for: ", joined(untested, ", "), ".");
  if (!note.empty()) note = "<p class=\"quiet\">" + html_escape(note) + "</p>\n";
  if (run.findings.empty()) return out + note;
  out += "<ul class=\"findings\">\n";
  for (const Finding& finding : run.findings) {
    out += fmt::format("<li><b>{}</b>, step {}: {}</li>\n", html_escape(finding.rule), finding.step,
                       html_escape(finding.text));
  }
  out += "</ul>\n";
  if (run.more_findings > 0) out += fmt::format("<p class=\"quiet\">and {} more</p>\n", run.more_findings);
  return out + note;
}

std::string table(const std::string& title, const Table& rows) {
  if (rows.empty()) return "";
  std::string out = "<div class=\"card\"><h3>" + html_escape(title) + "</h3><table>";
  for (const Fact& fact : rows) {
    const std::string tooltip = fact.exact.empty() ? "" : " title=\"" + html_escape(fact.exact) + "\"";
    out += "<tr><td>" + html_escape(fact.name) + "</td><td" + tooltip + ">" + html_escape(fact.value) + "</td></tr>";
  }
  return out + "</table></div>\n";
}

std::string recipe(const std::vector<RecipeEntry>& entries) {
  std::string out =
      "<h2>Recipe</h2>\n<p class=\"quiet\">Values that are defaults are grey.</p>\n<div class=\"grid2\">\n";
  std::string section, rows;
  const auto flush = [&] {
    if (!rows.empty()) {
      out += "<div class=\"card\"><h3>" + html_escape(section) + "</h3><table>" + rows + "</table></div>\n";
    }
    rows.clear();
  };
  for (const bool top : {true, false}) {
    for (const RecipeEntry& entry : entries) {
      const std::size_t dot = entry.key.find('.');
      if ((dot == std::string::npos) != top) continue;
      const std::string of = top ? "run" : entry.key.substr(0, dot);
      if (of != section) {
        flush();
        section = of;
      }
      rows += fmt::format("<tr{}><td>{}</td><td>{}</td></tr>", entry.given ? "" : " class=\"default\"",
                          html_escape(top ? entry.key : entry.key.substr(dot + 1)), html_escape(entry.value));
    }
    flush();
    section.clear();
  }
  return out + "</div>\n";
}

std::string seconds_text(double seconds) {
  return format_seconds(seconds);
}

std::string bytes_text(double bytes) {
  return format_bytes(Bytes(static_cast<std::int64_t>(bytes)));
}

}  // namespace

std::string html_report(const HtmlInput& input) {
  const RunHistory& run = input.history;
  const RunFacts& facts = input.facts;
  const std::string name = html_escape(facts.name);
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src "
      "'unsafe-inline'\">\n" +
      (input.ending ? "" : fmt::format("{} content=\"{}\">\n", kReloadTag, kReloadSeconds)) + "<title>" + name +
      " - Hawser</title>\n<style>" + kHtmlStyle + "</style>\n</head>\n<body>\n<h1>" + name + "</h1>\n<p>" +
      state(run, input) + "</p>\n";
  out += tiles(run, facts);
  out += findings(run, input.rules);
  out += "<h2>Curves</h2>\n<div class=\"grid2\">\n";
  const auto add_chart = [&](const std::string& title, const std::vector<const Curve*>& curves) {
    out += chart(title, curves, run.resumes);
  };
  add_chart("Loss, nats per target", {&run.loss, &run.validation});
  if (!run.validation_sets.empty()) {
    std::vector<const Curve*> sets{&run.validation};
    for (const auto& [set, curve] : run.validation_sets) sets.push_back(&curve);
    add_chart("Loss of each validation set, nats per target", sets);
  }
  add_chart("Gradient norm, before clipping", {&run.norm});
  add_chart("Learning rate", {&run.rate});
  add_chart("Tokens per second", {&run.tokens});
  add_chart("Model FLOPs utilization, percent", {&run.use});
  add_chart("Power, watts", {&run.watts});
  add_chart("SM clock, MHz", {&run.clock});
  add_chart("Load of experts", {&run.experts});
  add_chart("Relative error of FP8, percent", {&run.gradient_error, &run.worst_error, &run.loss_error});
  out += "</div>\n<h2>Memory and time</h2>\n<div class=\"grid2\">\n";
  std::vector<std::pair<std::string, double>> memory;
  for (const auto& [category, bytes] : facts.memory) memory.emplace_back(category, static_cast<double>(bytes));
  out += part_bar("Peak memory of a rank, by purpose", std::move(memory), bytes_text);
  out += part_bar("Time of this process", input.phases, seconds_text);
  out += "</div>\n" + recipe(facts.recipe);
  Table data = facts.data;
  if (run.last) {
    data.push_back(count_fact("sequences read", run.last->data_position.sequences));
    if (run.targets > 0) data.push_back(count_fact("tokens predicted", run.targets));
    if (run.skipped > 0) data.push_back(count_fact("steps without targets", run.skipped));
    if (run.replays > 0) data.push_back(count_fact("replays of steps that saturated FP8", run.replays));
    for (const std::string& module : run.fp8_fallbacks) data.push_back({"not in FP8 any more", module});
  }
  out += "<h2>Environment and data</h2>\n<div class=\"grid2\">\n" + table("Environment", facts.environment) +
         table("Data", data) + "</div>\n";
  out += "<footer>" + html_escape(facts.folder) + ", hawser " + html_escape(facts.version) + "</footer>\n<script>" +
         kHtmlScript + "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace hawser::report

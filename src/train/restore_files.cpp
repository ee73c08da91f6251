#include "train/restore_files.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "io/files.h"
#include "io/json.h"
#include "report/html_file.h"
#include "report/html_report.h"
#include "report/metrics_file.h"
#include "report/sink.h"
#include "train/run_watch.h"

namespace hawser::train {
namespace {

// Of two recipe_json: whether their runs train alike, wherever they run and whatever they write.
bool trains_alike(const std::string& a, const std::string& b) {
  const auto training = [](const std::string& recipe) {
    nlohmann::json json = io::json_or_null(recipe);
    for (const char* section : {"checkpoint", "memory", "output", "parallel", "report", "run"}) {
      if (json.is_object()) json.erase(section);
    }
    return json;
  };
  return training(a) == training(b);
}

// The manifest of a checkpoint has keys in alphabetical order.
io::OrderedJson in_order_of(const io::OrderedJson& order, const io::OrderedJson& json) {
  io::OrderedJson out = io::OrderedJson::object();
  for (const auto& [key, value] : order.items()) {
    if (!json.contains(key)) continue;
    out[key] = value.is_object() && json.at(key).is_object() ? in_order_of(value, json.at(key)) : json.at(key);
  }
  for (const auto& [key, value] : json.items()) {
    if (!order.contains(key)) out[key] = value;
  }
  return out;
}

bool is_finished_page(const std::string& path) {
  std::ifstream page(path, std::ios::binary);
  std::string begin(1024, '\0');
  page.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(page.gcount()));
  return !begin.empty() && begin.find(report::kReloadTag) == std::string::npos;
}

}  // namespace

void restore_files(const RunPlace& place, const engine::RunState& state, const report::PhaseClock& phases,
                   const std::function<void(const std::string&)>& log) {
  const plan::RunPlan& plan = place.plan;
  if (!io::exists(plan.files.recipe)) {
    const auto order = io::parse_own_json<io::OrderedJson>(recipe_json(plan.recipe));
    const auto stored = io::parse_own_json<io::OrderedJson>(state.recipe);
    io::write_text_atomically(plan.files.recipe, in_order_of(order, stored).dump(2) + "\n\n");
  }
  if (!plan.report.html || is_finished_page(plan.files.html) || !trains_alike(state.recipe, recipe_json(plan.recipe)))
    return;
  report::Divergence divergence(divergence_options(plan, place.session.model().vocabulary()));
  report::Sinks sinks(log);
  sinks.open("report.html", [&] {
    report::RunHistory history;
    report::read_metrics(plan.files.metrics, [&](report::StepMetrics metrics) {
      history.add(metrics);
      if (!state.initial_validation_loss) {
        metrics.initial_validation_loss.reset();
        metrics.validation_loss.reset();
      }
      divergence.replay(metrics);
    });
    const report::HtmlFileOptions options{.path = plan.files.html,
                                          .rules = rules_options(plan),
                                          .phases = [&phases] { return phases.totals(); },
                                          .log = log};
    return std::make_unique<report::HtmlFile>(options, run_facts(place), std::move(history));
  });
  sinks.finish(divergence.now() ? report::Ending::diverged : report::Ending::done);
}

}  // namespace hawser::train

#include "train/run_watch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/cat.h"
#include "base/environment.h"
#include "report/metrics_file.h"
#include "report/mlflow.h"
#include "report/prometheus.h"
#include "report/tensorboard.h"
#include "report/wandb.h"

namespace hawser::train {
namespace {

constexpr std::chrono::seconds kLookForStalls{1};

}  // namespace

std::optional<report::RulesOptions> rules_options(const plan::RunPlan& plan) {
  if (!plan.report.rules) return std::nullopt;
  return report::RulesOptions{.steps = plan.steps,
                              .warmup_steps = plan.learning_rate.warmup_steps,
                              .peak_learning_rate = plan.learning_rate.learning_rate,
                              .gradient_clip = plan.gradient_clip};
}

report::DivergenceOptions divergence_options(const plan::RunPlan& plan, std::int64_t vocabulary) {
  return {.steps = plan.steps, .uniform_loss = std::log(static_cast<double>(vocabulary))};
}

RunWatch::RunWatch(const plan::RunPlan& plan, const report::RunFacts& facts, const Resumed& resumed,
                   std::int64_t vocabulary, const report::PhaseClock& phases, Log log)
    : plan_(plan),
      phases_(phases),
      log_(std::move(log)),
      sinks_(log_),
      divergence_(divergence_options(plan, vocabulary)),
      early_stopping_(plan.recipe.train.early_stopping_patience, plan.recipe.train.early_stopping_metric) {
  const ReportRecipe& report = plan_.report;
  auto metrics = std::make_unique<report::MetricsFile>(plan_.files.metrics, resumed.step);
  metrics_ = metrics.get();
  if (!metrics->note().empty()) log_("hawser: " + metrics->note());
  sinks_.add("metrics.jsonl", std::move(metrics));
  if (report.tensorboard) {
    sinks_.open("TensorBoard",
                [&] { return std::make_unique<report::TensorBoard>(plan_.files.tensorboard, facts, resumed.step); });
  }
  if (report.prometheus_port > 0) {
    sinks_.open("Prometheus", [&] {
      return std::make_unique<report::Prometheus>(report.prometheus_address, report.prometheus_port, facts,
                                                  resumed.step);
    });
  }
  if (!report.mlflow.empty()) {
    sinks_.open("MLflow", [&] {
      report::MlflowOptions options{.server = report.mlflow,
                                    .experiment = report.mlflow_experiment,
                                    .state_file = plan_.files.mlflow,
                                    .resumed = resumed.step > 0};
      // Credentials come from the environment variables of MLflow's own client, since the recipe is stored with the
      // run.
      options.http.token = environment_variable("MLFLOW_TRACKING_TOKEN");
      options.http.user = environment_variable("MLFLOW_TRACKING_USERNAME");
      options.http.password = environment_variable("MLFLOW_TRACKING_PASSWORD");
      return std::make_unique<report::Mlflow>(std::move(options), facts);
    });
  }
  if (report.wandb) {
    sinks_.open("Weights & Biases", [&] {
      auto wandb = std::make_unique<report::Wandb>(
          report::WandbOptions{.folder = plan_.files.wandb,
                               .project = report.wandb_project.empty() ? "hawser" : report.wandb_project,
                               .resumed_step = resumed.step,
                               .metrics_file = plan_.files.metrics},
          facts);
      wandb_path_ = wandb->path();
      return wandb;
    });
  }
  if (report.html) {
    sinks_.open("report.html", [&] {
      report::RunHistory earlier;
      const std::string metrics_file = plan_.files.metrics;
      if (resumed.step > 0) report::read_metrics(metrics_file, [&](const auto& m) { earlier.add(m); });
      auto html = std::make_unique<report::HtmlFile>(
          report::HtmlFileOptions{.path = plan_.files.html,
                                  .rules = rules_options(plan_),
                                  .phases = [this] { return phases_.totals(); },
                                  .in_place = [file = metrics_] { return file->in_place(); },
                                  .log = log_},
          facts, std::move(earlier));
      html_ = html.get();
      return html;
    });
  }
  step_ = resumed.step;
  if (report.rules) rules_.emplace(*rules_options(plan_));
  // What began before the interruption is not reported again.
  if (resumed.step > 0) {
    report::read_metrics(plan_.files.metrics, [&](report::StepMetrics m) {
      if (!resumed.same_validation) {
        m.initial_validation_loss.reset();
        m.validation_loss.reset();
      }
      divergence_.replay(m);
      early_stopping_.replay(m);
      if (rules_) rules_->step(m);
    });
  }
  if (!rules_) return;
  thread_ = std::thread([this] { watch_for_stalls(); });
}

RunWatch::~RunWatch() {
  finish(report::Ending::failed);
}

void RunWatch::print_finding(const report::Finding& finding) {
  log_(cat("hawser: watch: step ", finding.step, ": ", finding.rule, ": ", finding.text));
}

void RunWatch::step(report::StepMetrics metrics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_ = metrics.step;
  std::optional<std::string> diverged = std::exchange(validation_finding_, std::nullopt);
  if (metrics.has_norm() && std::isfinite(metrics.loss)) {
    if (auto text = divergence_.step(metrics.loss, metrics.targets); text && !diverged) diverged = std::move(text);
  }
  if (rules_) {
    stall_.step(metrics.step_seconds);
    std::ranges::move(rules_->step(metrics), std::back_inserter(metrics.findings));
    if (divergence_.now()) {  // which says more
      std::erase_if(metrics.findings, [](const report::Finding& f) { return f.rule == report::kNotFalling; });
    }
    if (diverged) metrics.findings.push_back({metrics.step, report::kDiverged, *diverged});
    for (const report::Finding& finding : metrics.findings) {
      if (finding.rule != report::kNotANumber) print_finding(finding);  // the run's error message covers it
    }
  }
  // FitRun prints it.
  if (early_stopping_.now() && metrics.step < plan_.steps)
    metrics.findings.push_back({metrics.step, report::kEarlyStopping, early_stopping_.text()});
  sinks_.step(metrics);
}

void RunWatch::validated(std::int64_t step, const ValidationLosses& losses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  validation_finding_ = divergence_.validated(step, losses.all);
  early_stopping_.validated(step, losses);
}

void RunWatch::set_memory(std::vector<std::pair<std::string, std::int64_t>> memory) {
  if (html_ != nullptr) html_->set_memory(std::move(memory));
}

void RunWatch::watch_for_stalls() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kLookForStalls, [this] { return ended_; })) {
    const report::PhaseClock::Now now = phases_.now();
    if (now.kind != kTraining) continue;
    if (const auto finding = stall_.waiting(step_ + 1, now.seconds)) {
      print_finding(*finding);
      sinks_.finding(*finding);
    }
  }
}

void RunWatch::sync() {
  const std::lock_guard<std::mutex> lock(mutex_);
  sinks_.sync();
}

void RunWatch::copy_metrics(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  metrics_->copy_to(path);
}

void RunWatch::finish(report::Ending ending) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  sinks_.finish(ending);
  if (!wandb_path_.empty()) log_("to upload the run: wandb sync " + wandb_path_);
}

}  // namespace hawser::train

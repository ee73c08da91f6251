#include "train/run_watch.h"

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

RunWatch::RunWatch(const plan::RunPlan& plan, const report::RunFacts& facts, std::int64_t resumed_step,
                   const report::PhaseClock& phases, Log log)
    : plan_(plan), phases_(phases), log_(std::move(log)), sinks_(log_) {
  const ReportRecipe& report = plan_.report;
  auto metrics = std::make_unique<report::MetricsFile>(plan_.files.metrics, resumed_step);
  metrics_ = metrics.get();
  if (!metrics->note().empty()) log_("hawser: " + metrics->note());
  sinks_.add("metrics.jsonl", std::move(metrics));
  if (report.tensorboard) {
    sinks_.open("TensorBoard",
                [&] { return std::make_unique<report::TensorBoard>(plan_.files.tensorboard, facts, resumed_step); });
  }
  if (report.prometheus_port > 0) {
    sinks_.open("Prometheus", [&] {
      return std::make_unique<report::Prometheus>(report.prometheus_address, report.prometheus_port, facts,
                                                  resumed_step);
    });
  }
  if (!report.mlflow.empty()) {
    sinks_.open("MLflow", [&] {
      report::MlflowOptions options{.server = report.mlflow,
                                    .experiment = report.mlflow_experiment,
                                    .state_file = plan_.files.mlflow,
                                    .resumed = resumed_step > 0};
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
                               .resumed_step = resumed_step,
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
      if (resumed_step > 0) report::read_metrics(metrics_file, [&](const auto& m) { earlier.add(m); });
      auto html = std::make_unique<report::HtmlFile>(
          report::HtmlFileOptions{.path = plan_.files.html,
                                  .rules = report.rules,
                                  .phases = [this] { return phases_.totals(); },
                                  .in_place = [file = metrics_] { return file->in_place(); },
                                  .log = log_},
          facts, std::move(earlier));
      html_ = html.get();
      return html;
    });
  }
  step_ = resumed_step;
  if (!report.rules) return;
  rules_.emplace(report::RulesOptions{.steps = plan_.steps,
                                      .warmup_steps = plan_.learning_rate.warmup_steps,
                                      .peak_learning_rate = plan_.learning_rate.learning_rate,
                                      .gradient_clip = plan_.gradient_clip});
  // What began before the interruption is not reported again.
  if (resumed_step > 0) report::read_metrics(plan_.files.metrics, [this](const auto& m) { rules_->step(m); });
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
  if (rules_) {
    stall_.step(metrics.step_seconds);
    metrics.findings = rules_->step(metrics);
    for (const report::Finding& finding : metrics.findings) {
      if (finding.rule != report::kNotANumber) print_finding(finding);  // the run's error message covers it
    }
  }
  sinks_.step(metrics);
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

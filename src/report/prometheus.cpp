#include "report/prometheus.h"

#include <cmath>
#include <sstream>

#include "base/cat.h"

namespace hawser::report {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(17);
  out << value;
  return out.str();
}

// A label's value, with backslash, quote and newline escaped.
std::string label(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

class Page {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += cat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void sample(double value, const std::string& labels = "") {
    text_ += name_ + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
  }
  void gauge(const char* name, const char* help, double value) { family(name, "gauge", help), sample(value); }
  void counter(const char* name, const char* help, double value) { family(name, "counter", help), sample(value); }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

}  // namespace

Prometheus::Prometheus(const std::string& address, int port, const RunFacts& facts, std::int64_t resumed_step)
    : name_(facts.name),
      version_(facts.version),
      planned_(facts.steps),
      done_(resumed_step),
      server_(address, port, {.path = "/metrics", .type = "text/plain; version=0.0.4; charset=utf-8", .body = [this] {
                                return text();
                              }}) {}

void Prometheus::step(const StepMetrics& metrics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  last_ = metrics;
  done_ = metrics.step;
  if (metrics.validation_loss) validation_ = metrics.validation_loss;
  train_seconds_ += metrics.step_seconds;
  tokens_ += metrics.tokens_per_second * metrics.step_seconds;
  targets_ += metrics.targets;
  updated_ = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const Finding& finding : metrics.findings) ++findings_[finding.rule];
}

void Prometheus::finding(const Finding& finding) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++findings_[finding.rule];
}

std::string Prometheus::text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Page page;
  page.family("hawser_info", "gauge", "Name and version of the run as labels; always 1.");
  page.sample(1, cat("run=\"", label(name_), "\",version=\"", label(version_), "\""));
  page.gauge("hawser_planned_steps", "Optimizer steps planned for the run.", static_cast<double>(planned_));
  page.counter("hawser_steps_total", "Optimizer steps done, including those before a resume.",
               static_cast<double>(done_));
  page.counter("hawser_train_seconds_total", "Time in training steps since the process started.", train_seconds_);
  page.counter("hawser_tokens_total", "Tokens trained on since the process started, including padding.",
               std::round(tokens_));
  page.counter("hawser_targets_total", "Tokens predicted since the process started.", static_cast<double>(targets_));
  page.family("hawser_findings_total", "counter", "Findings of the rules that watch training, by rule.");
  for (const auto& [rule, count] : findings_)
    page.sample(static_cast<double>(count), cat("rule=\"", label(rule), "\""));
  if (updated_ == 0) return page.text();  // no step yet
  page.gauge("hawser_last_step_timestamp_seconds", "Unix time at which the last step ended.", updated_);
  if (last_.targets > 0) {
    page.gauge("hawser_train_loss_nats", "Training loss of the last step, per target.", last_.loss);
    if (last_.has_norm())
      page.gauge("hawser_grad_norm", "Gradient norm of the last step, before clipping.", last_.grad_norm);
  }
  if (validation_) {
    page.gauge("hawser_validation_loss_nats", "Validation loss of the last evaluation, per target.", validation_->all);
    if (!validation_->sets.empty()) {
      page.family("hawser_validation_set_loss_nats", "gauge", "The same of each set of data.validation.");
    }
    for (const auto& [set, loss] : validation_->sets) page.sample(loss, cat("set=\"", label(set), "\""));
  }
  page.gauge("hawser_lr", "Learning rate of the last step.", last_.lr);
  page.gauge("hawser_step_duration_seconds", "Duration of the last step.", last_.step_seconds);
  page.gauge("hawser_tokens_per_second", "Tokens per second of all ranks in the last step.", last_.tokens_per_second);
  page.gauge("hawser_model_flops_per_second", "Model FLOPs per second of all ranks, without recompute.",
             last_.model_flops_per_second);
  if (last_.model_flops_utilization) {
    page.gauge("hawser_model_flops_utilization_ratio", "Model FLOPs per second over the devices' peak.",
               *last_.model_flops_utilization);
  }
  if (last_.gpu_watts) page.gauge("hawser_gpu_watts", "Mean power of a GPU in the last step.", *last_.gpu_watts);
  if (last_.joules_per_token) {
    page.gauge("hawser_joules_per_token", "Energy of all GPUs per token in the last step.", *last_.joules_per_token);
  }
  if (last_.sm_clock_mhz)
    page.gauge("hawser_gpu_sm_clock_hertz", "Mean SM clock of a GPU in the last step.", 1e6 * *last_.sm_clock_mhz);
  page.gauge("hawser_memory_reserved_bytes", "Device memory that a rank reserves, maximum over ranks.",
             static_cast<double>(last_.peak_arena_bytes));
  page.gauge("hawser_epochs", "Passes over the training data.", last_.data_position.epoch);
  return page.text();
}

}  // namespace hawser::report

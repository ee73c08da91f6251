#include "report/run_history.h"

#include <algorithm>

#include "base/cat.h"

namespace hawser::report {
namespace {

constexpr std::size_t kMaxFindings = 200;

}  // namespace

void RunHistory::add(const StepMetrics& m) {
  // Only the first step of a process has it.
  if (!m.checkpointing.empty() && last) resumes.push_back(last->step);
  if (m.targets != 0) {
    loss.add(m.step, m.loss);
    if (m.has_norm()) norm.add(m.step, m.grad_norm);
  } else {
    ++skipped;
  }
  const auto add_validation = [&](std::int64_t step, const ValidationLosses& losses) {
    validation.add(step, losses.all);
    for (const auto& [set, of_set] : losses.sets) {
      validation_sets.try_emplace(set, Curve(set, "nats")).first->second.add(step, of_set);
    }
  };
  if (m.initial_validation_loss) {
    add_validation(0, *m.initial_validation_loss);
    initial_validation = m.initial_validation_loss->all;
  }
  if (m.validation_loss) {
    add_validation(m.step, *m.validation_loss);
    ++evaluations;
    last_validation = m.validation_loss->all;
    if (!lowest_validation || *last_validation < *lowest_validation) {
      lowest_validation = last_validation;
      lowest_step = m.step;
    }
  }
  rate.add(m.step, m.lr);
  tokens.add(m.step, m.tokens_per_second);
  if (m.model_flops_utilization) use.add(m.step, 100 * *m.model_flops_utilization);
  if (m.expert_imbalance) experts.add(m.step, *m.expert_imbalance);
  if (m.gpu_watts) watts.add(m.step, *m.gpu_watts);
  if (m.sm_clock_mhz) clock.add(m.step, *m.sm_clock_mhz);
  if (m.joules_per_token) {
    joules += *m.joules_per_token * m.tokens_per_second * m.step_seconds;
    joules_tokens += m.tokens_per_second * m.step_seconds;
  }
  if (m.fp8_error) {
    gradient_error.add(m.step, 100 * m.fp8_error->gradient);
    worst_error.add(m.step, 100 * m.fp8_error->worst);
    loss_error.add(m.step, 100 * m.fp8_error->loss);
  }
  for (const std::string& module : m.fp8_fallback) fp8_fallbacks.push_back(cat(module, " (step ", m.step, ")"));
  for (const Finding& finding : m.findings) add(finding);
  seconds += m.step_seconds;
  all_tokens += m.step_seconds * m.tokens_per_second;
  replays += m.replays;
  targets += std::max<std::int64_t>(m.targets, 0);
  last = m;
}

void RunHistory::add(const Finding& finding) {
  if (findings.size() < kMaxFindings) {
    findings.push_back(finding);
  } else {
    ++more_findings;
  }
}

}  // namespace hawser::report

#include "report/metrics.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "io/json.h"

namespace hawser::report {
namespace {

using Json = nlohmann::ordered_json;

Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// `old_key`: the key in lines written before `key` existed.
double number(const Json& json, const char* key, const char* old_key = nullptr) {
  auto found = json.find(key);
  if (found == json.end() && old_key != nullptr) found = json.find(old_key);
  if (found == json.end()) return 0;
  return found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t whole(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

std::optional<double> perhaps(const Json& json, const char* key) {
  return json.contains(key) ? std::optional(number(json, key)) : std::nullopt;
}

std::optional<ValidationLosses> validation(const Json& json, const char* all, const char* sets) {
  if (!json.contains(all)) return std::nullopt;
  ValidationLosses losses(number(json, all));
  if (const auto found = json.find(sets); found != json.end() && found->is_object()) {
    for (const auto& [set, loss] : found->items()) losses.sets[set] = number(*found, set.c_str());
  }
  return losses;
}

std::string words(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::vector<Scalar> scalars(const StepMetrics& m) {
  std::vector<Scalar> out;
  const auto add_validation = [&](const std::optional<ValidationLosses>& losses, std::int64_t step) {
    if (!losses) return;
    out.push_back({"loss/validation", losses->all, step});
    // Without a slash after `validation`: MLflow's file store cannot have a metric with others below it.
    for (const auto& [set, loss] : losses->sets) out.push_back({cat("loss/validation_", set), loss, step});
  };
  add_validation(m.initial_validation_loss, 0);
  const auto add = [&](const std::string& name, double value) { out.push_back({name, value, m.step}); };
  if (m.targets > 0) {
    add("loss/train", m.loss);
    if (m.has_norm()) add("optimizer/grad_norm", m.grad_norm);
    if (m.router_loss) add("loss/router", *m.router_loss);
    if (m.expert_imbalance) add("experts/imbalance", *m.expert_imbalance);
  }
  if (m.loss_scale) add("optimizer/loss_scale", *m.loss_scale);
  if (m.fp8_error) {
    add("precision/loss_error", m.fp8_error->loss);
    add("precision/gradient_error", m.fp8_error->gradient);
    add("precision/worst_gradient_error", m.fp8_error->worst);
  }
  if (m.replays > 0) add("precision/replays", static_cast<double>(m.replays));
  add_validation(m.validation_loss, m.step);
  add("optimizer/lr", m.lr);
  add("speed/tokens_per_second", m.tokens_per_second);
  add("speed/step_seconds", m.step_seconds);
  add("speed/model_flops_per_second", m.model_flops_per_second);
  if (m.model_flops_utilization) add("speed/model_flops_utilization", *m.model_flops_utilization);
  if (m.gpu_watts) add("gpu/watts", *m.gpu_watts);
  if (m.joules_per_token) add("gpu/joules_per_token", *m.joules_per_token);
  if (m.sm_clock_mhz) add("gpu/sm_clock_mhz", *m.sm_clock_mhz);
  add("memory/reserved_bytes", static_cast<double>(m.peak_arena_bytes));
  add("data/epoch", m.data_position.epoch);
  add("data/targets", static_cast<double>(m.targets));
  return out;
}

std::string to_json(const StepMetrics& m) {
  const bool skipped = m.targets == 0;
  Json json = {{"step", m.step}};
  if (m.time > 0) json["time"] = m.time;
  json.update(
      {{"loss", skipped ? Json(nullptr) : finite(m.loss)},
       {"grad_norm", m.has_norm() ? finite(m.grad_norm) : Json(nullptr)},
       {"lr", finite(m.lr)},
       {"tokens_per_second", finite(m.tokens_per_second)},
       {"model_flops_per_second", finite(m.model_flops_per_second)},
       {"step_seconds", finite(m.step_seconds)},
       {"targets", m.targets},
       {"peak_arena_bytes", m.peak_arena_bytes},
       {"attention_imbalance", finite(m.attention_imbalance)},
       {"data_position", {{"sequences", m.data_position.sequences}, {"epoch", finite(m.data_position.epoch)}}}});
  if (m.loss_scale) json["loss_scale"] = finite(*m.loss_scale);
  if (m.overflow) json["overflow"] = true;
  if (m.replays > 0) json["replays"] = m.replays;
  if (!m.fp8_fallback.empty()) json["fp8_fallback"] = m.fp8_fallback;
  if (m.fp8_error) {
    json["fp8_error"] = {{"loss", finite(m.fp8_error->loss)},
                         {"gradient", finite(m.fp8_error->gradient)},
                         {"worst", finite(m.fp8_error->worst)},
                         {"parameter", m.fp8_error->parameter}};
  }
  if (!m.checkpointing.empty()) json["activation_checkpointing"] = m.checkpointing;
  if (m.model_flops_utilization) json["model_flops_utilization"] = finite(*m.model_flops_utilization);
  if (m.gpu_watts) json["gpu_watts"] = finite(*m.gpu_watts);
  if (m.joules_per_token) json["joules_per_token"] = finite(*m.joules_per_token);
  if (m.sm_clock_mhz) json["sm_clock_mhz"] = finite(*m.sm_clock_mhz);
  if (m.router_loss) json["router_loss"] = finite(*m.router_loss);
  if (m.expert_imbalance) json["expert_imbalance"] = finite(*m.expert_imbalance);
  for (const std::vector<double>& layer : m.expert_tokens) {
    Json& counts = json["expert_tokens"].emplace_back(Json::array());
    for (const double count : layer) counts.push_back(std::llround(count));
  }
  const auto add_validation = [&](const std::optional<ValidationLosses>& losses, const char* all, const char* sets) {
    if (!losses) return;
    json[all] = finite(losses->all);
    for (const auto& [set, loss] : losses->sets) json[sets][set] = finite(loss);
  };
  add_validation(m.initial_validation_loss, "initial_validation_loss", "initial_validation_losses");
  add_validation(m.validation_loss, "validation_loss", "validation_losses");
  for (const Finding& f : m.findings)
    json["findings"].push_back({{"step", f.step}, {"rule", f.rule}, {"text", f.text}});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<StepMetrics> from_json(const std::string& line) {
  const Json json = io::read_json<Json>(line).json;
  if (!json.is_object() || whole(json, "step") <= 0) return std::nullopt;
  const double time = number(json, "time");
  StepMetrics m{.step = whole(json, "step"),
                .time = time > 0 ? time : 0,
                .loss = number(json, "loss"),
                .grad_norm = number(json, "grad_norm", "gradient_norm"),
                .lr = number(json, "lr", "learning_rate"),
                .tokens_per_second = number(json, "tokens_per_second"),
                .model_flops_per_second = number(json, "model_flops_per_second"),
                .step_seconds = number(json, "step_seconds"),
                // Lines of earlier versions lack it: unknown, but not 0.
                .targets = json.contains("targets") ? whole(json, "targets") : -1,
                .peak_arena_bytes = whole(json, "peak_arena_bytes"),
                .attention_imbalance = perhaps(json, "attention_imbalance").value_or(1.0),
                .router_loss = perhaps(json, "router_loss"),
                .expert_imbalance = perhaps(json, "expert_imbalance"),
                .loss_scale = perhaps(json, "loss_scale"),
                .overflow = json.value("overflow", Json(false)) == true,
                .replays = whole(json, "replays"),
                .checkpointing = words(json, "activation_checkpointing"),
                .model_flops_utilization = perhaps(json, "model_flops_utilization"),
                .gpu_watts = perhaps(json, "gpu_watts"),
                .joules_per_token = perhaps(json, "joules_per_token"),
                .sm_clock_mhz = perhaps(json, "sm_clock_mhz"),
                .validation_loss = validation(json, "validation_loss", "validation_losses"),
                .initial_validation_loss = validation(json, "initial_validation_loss", "initial_validation_losses")};
  if (const auto found = json.find("expert_tokens"); found != json.end() && found->is_array()) {
    for (const Json& layer : *found) {
      std::vector<double>& counts = m.expert_tokens.emplace_back();
      for (const Json& count : layer) counts.push_back(count.is_number() ? count.get<double>() : 0);
    }
  }
  if (const auto found = json.find("fp8_fallback"); found != json.end() && found->is_array()) {
    for (const Json& module : *found) {
      if (module.is_string()) m.fp8_fallback.push_back(module.get<std::string>());
    }
  }
  if (const auto found = json.find("data_position"); found != json.end() && found->is_object()) {
    m.data_position = {whole(*found, "sequences"), number(*found, "epoch")};
  }
  if (const auto found = json.find("fp8_error"); found != json.end() && found->is_object()) {
    m.fp8_error = {number(*found, "loss"), number(*found, "gradient"), number(*found, "worst"),
                   words(*found, "parameter")};
  }
  if (const auto found = json.find("findings"); found != json.end() && found->is_array()) {
    for (const Json& f : *found) {
      if (f.is_object()) m.findings.push_back({whole(f, "step"), words(f, "rule"), words(f, "text")});
    }
  }
  return m;
}

}  // namespace hawser::report

#include "report/mlflow.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "io/files.h"
#include "io/json.h"

namespace hawser::report {
namespace {

using nlohmann::json;

// Limits of the server for one request and for one value.
constexpr std::size_t kMetrics = 1000, kParameters = 100;
constexpr std::size_t kLongestParameter = 500, kLongestTag = 5000, kLongestName = 250;

// The server rejected the request: a retry gets the same response.
class Rejected : public std::runtime_error {
 public:
  Rejected(long of, const std::string& what) : std::runtime_error(what), status(of) {}
  long status;
};

std::int64_t milliseconds(double seconds) {
  return std::llround(1000 * seconds);
}

std::int64_t now_milliseconds() {
  return milliseconds(unix_time());
}

std::string cut(const std::string& text, std::size_t max) {
  return text.substr(0, max);
}

// A name may contain letters, digits, `_-./` and space.
std::string name_of(const std::string& text) {
  std::string out = cut(text, kLongestName);
  for (char& c : out) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && std::string("_-./ ").find(c) == std::string::npos) c = '_';
  }
  return out;
}

json pair_of(const std::string& key, const std::string& value, std::size_t max) {
  return {{"key", name_of(key)}, {"value", cut(value, max)}};
}

std::string text_of(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The string at a path of keys in a response.
std::string field(const std::string& answer, std::initializer_list<const char*> path) {
  const json whole = io::json_or_null(answer);
  const json* at = &whole;
  for (const char* key : path) {
    const auto found = at->is_object() ? at->find(key) : at->end();
    if (!at->is_object() || found == at->end())
      throw net::NoAnswer(cat("a response without ", key, ": is it an MLflow server?"));
    at = &*found;
  }
  if (!at->is_string()) throw net::NoAnswer("an unexpected response: is it an MLflow server?");
  return at->get<std::string>();
}

const char* status_of(Ending ending) {
  return ending == Ending::done ? "FINISHED" : ending == Ending::interrupted ? "KILLED" : "FAILED";
}

}  // namespace

Mlflow::Mlflow(MlflowOptions options, RunFacts facts)
    : options_(std::move(options)), facts_(std::move(facts)), http_(options_.http) {
  while (options_.server.ends_with('/')) options_.server.pop_back();
  if (options_.experiment.empty()) options_.experiment = "hawser";
  thread_ = std::thread([this] { work(); });
}

Mlflow::~Mlflow() {
  Mlflow::finish(Ending::failed);
}

void Mlflow::step(const StepMetrics& metrics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (given_up_ || over_) {
    ++lost_;
    return;
  }
  if (waiting_.size() >= options_.max_steps) {
    waiting_.pop_front();
    ++lost_;
  }
  waiting_.push_back(metrics);
  findings_.insert(findings_.end(), metrics.findings.begin(), metrics.findings.end());
}

void Mlflow::finding(const Finding& finding) {
  const std::lock_guard<std::mutex> lock(mutex_);
  findings_.push_back(finding);
}

void Mlflow::finish(Ending ending) {
  if (!thread_.joinable()) return;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ending_ = ending;
    ending_asked_ = true;
    changed_.notify_all();
    const auto rest = failures_ > 0 ? options_.rest_without_answer : options_.rest;
    changed_.wait_for(lock, rest, [this] { return over_; });
  }
  http_.cancel();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    given_up_ = true;
  }
  changed_.notify_all();
  thread_.join();
  lost_ += static_cast<std::int64_t>(waiting_.size());
  waiting_.clear();
}

std::string Mlflow::trouble() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(trouble_, "");
}

std::int64_t Mlflow::lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lost_;
}

void Mlflow::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!given_up_) {
    const bool last = ending_asked_;
    lock.unlock();
    bool more = false;
    std::string why;
    bool for_good = false;
    try {
      if (run_.empty()) open_run();
      more = send_some();
      if (last && !more) close_run();
    } catch (const Rejected& error) {
      why = error.what();
      for_good = true;
    } catch (const std::exception& error) {
      why = error.what();
    }
    lock.lock();
    if (!why.empty()) {
      failed(why, for_good);
      auto pause = options_.first_pause;
      for (int i = 1; i < failures_ && pause < options_.longest_pause; ++i) pause *= 2;
      pause = std::min(pause, ending_asked_ ? options_.first_pause : options_.longest_pause);
      const bool before = ending_asked_;
      changed_.wait_for(lock, pause, [&] { return given_up_ || ending_asked_ != before; });
      continue;
    }
    failures_ = 0;
    if (last && !more) break;
    if (!more) changed_.wait_for(lock, options_.every, [this] { return given_up_ || ending_asked_; });
  }
  over_ = true;
  changed_.notify_all();
}

// The caller holds the mutex.
void Mlflow::failed(const std::string& why, bool for_good) {
  if (given_up_) return;  // cancelled: the end of the run waits no longer
  const bool first = failures_++ == 0;
  if (first) first_failure_ = Clock::now();
  if ((first || for_good) && trouble_.empty()) trouble_ = cat(options_.server, ": ", why);
  if (for_good || Clock::now() - first_failure_ >= options_.give_up) {
    given_up_ = true;
    lost_ += static_cast<std::int64_t>(waiting_.size());
    waiting_.clear();
  }
}

std::string Mlflow::call(const std::string& path, const std::string& body) {
  const net::HttpAnswer answer = http_.send(options_.server + "/api/2.0/mlflow/" + path, body);
  if (answer.status >= 200 && answer.status < 300) return answer.body;
  const json response = io::json_or_null(answer.body);
  std::string why = cat("status ", answer.status);
  if (response.is_object() && response.contains("message") && response["message"].is_string()) {
    why += ": " + cut(response["message"].get<std::string>(), 200);
  }
  const bool again = answer.status >= 500 || answer.status == 408 || answer.status == 429;
  if (again) throw net::NoAnswer(why);
  throw Rejected(answer.status, why);
}

// Steps that are done are not repeated after a later request fails.
void Mlflow::open_run() {
  if (options_.resumed && continue_earlier()) return;
  if (experiment_.empty()) find_experiment();
  if (made_.empty()) make_run();
  send_parameters();
  run_ = made_;
}

// Whether a run's folder still has the state file with this id.
bool Mlflow::is_state_of(const std::string& folder, const std::string& id) const {
  const std::string file = folder + options_.state_file.substr(options_.state_file.rfind('/'));
  if (!io::is_file(file)) return false;
  const json state = io::json_or_null(io::read_text(file, 1 << 16));
  return state.is_object() && state.value("run_id", json()) == id;
}

bool Mlflow::continue_earlier() {
  std::string id;
  try {
    const json state = io::json_or_null(io::read_text(options_.state_file, 1 << 16));
    if (state.at("server") != options_.server) return false;
    id = state.at("run_id").get<std::string>();
    const std::string folder = state.value("folder", facts_.folder);
    if (folder != facts_.folder && is_state_of(folder, id)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      trouble_ = cat("this run's folder is a copy of ", folder, "; it gets an MLflow run of its own");
      return false;
    }
  } catch (const std::exception&) {
    return false;  // the run was not sent to this server before
  }
  try {
    call("runs/update", text_of({{"run_id", id}, {"status", "RUNNING"}}));
  } catch (const Rejected&) {
    return false;  // removed from the server
  }
  run_ = id;
  return true;
}

void Mlflow::find_experiment() {
  if (!experiment_missing_) {
    try {
      const std::string answer =
          call("experiments/get-by-name?experiment_name=" + net::url_encoded(options_.experiment), "");
      experiment_ = field(answer, {"experiment", "experiment_id"});
      return;
    } catch (const Rejected& rejected) {
      if (rejected.status != 404) throw;
      experiment_missing_ = true;
    }
  }
  experiment_ = field(call("experiments/create", text_of({{"name", options_.experiment}})), {"experiment_id"});
}

void Mlflow::make_run() {
  json tags = json::array();
  const auto tag = [&](const std::string& key, const std::string& value) {
    tags.push_back(pair_of(key, value, kLongestTag));
  };
  tag("mlflow.source.name", "hawser");
  tag("hawser.version", facts_.version);
  tag("hawser.folder", facts_.folder);
  for (const Fact& fact : facts_.environment) tag("environment." + fact.name, exact_value(fact));
  for (const Fact& fact : facts_.data) tag("data." + fact.name, exact_value(fact));
  const std::string answer = call("runs/create", text_of({{"experiment_id", experiment_},
                                                          {"run_name", facts_.name},
                                                          {"start_time", now_milliseconds()},
                                                          {"tags", tags}}));
  made_ = field(answer, {"run", "info", "run_id"});
  try {
    io::write_text_atomically(
        options_.state_file,
        text_of({{"server", options_.server}, {"run_id", made_}, {"folder", facts_.folder}}) + "\n");
  } catch (const UserError& error) {
    // The metrics are sent all the same; a resume starts another run on the server.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (trouble_.empty()) trouble_ = error.what();
  }
}

void Mlflow::send_parameters() {
  std::vector<json> parameters;
  for (const RecipeEntry& entry : facts_.recipe) {
    if (!entry.value.empty()) parameters.push_back(pair_of(entry.key, entry.value, kLongestParameter));
  }
  while (parameters_sent_ < parameters.size()) {
    const std::size_t count = std::min(kParameters, parameters.size() - parameters_sent_);
    const auto from = parameters.begin() + static_cast<std::ptrdiff_t>(parameters_sent_);
    const std::vector<json> some(from, from + static_cast<std::ptrdiff_t>(count));
    call("runs/log-batch", text_of({{"run_id", made_}, {"params", some}}));
    parameters_sent_ += count;
  }
}

bool Mlflow::send_some() {
  std::vector<StepMetrics> steps;
  std::vector<Finding> findings;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t metrics = 0;
    for (const StepMetrics& step : waiting_) {
      metrics += scalars(step).size();
      if (metrics > kMetrics) break;
      steps.push_back(step);
    }
    findings = {findings_.begin(),
                findings_.begin() + static_cast<std::ptrdiff_t>(std::min(findings_.size(), kParameters))};
  }
  if (steps.empty() && findings.empty()) return false;
  send(steps, findings);
  const std::lock_guard<std::mutex> lock(mutex_);
  // More may have been queued meanwhile, and the oldest may have been dropped.
  while (!waiting_.empty() && !steps.empty() && waiting_.front().step <= steps.back().step) {
    waiting_.pop_front();
  }
  findings_.erase(findings_.begin(), findings_.begin() + static_cast<std::ptrdiff_t>(findings.size()));
  return !waiting_.empty() || !findings_.empty();
}

void Mlflow::send(const std::vector<StepMetrics>& steps, const std::vector<Finding>& findings) {
  json metrics = json::array(), tags = json::array();
  for (const StepMetrics& step : steps) {
    for (const Scalar& point : scalars(step)) {
      if (!std::isfinite(point.value)) continue;
      metrics.push_back(
          {{"key", point.name}, {"value", point.value}, {"timestamp", milliseconds(step.time)}, {"step", point.step}});
    }
  }
  for (const Finding& finding : findings) {
    tags.push_back(pair_of("finding." + finding.rule, cat("step ", finding.step, ": ", finding.text), kLongestTag));
  }
  call("runs/log-batch", text_of({{"run_id", run_}, {"metrics", metrics}, {"tags", tags}}));
}

void Mlflow::close_run() {
  Ending ending = Ending::done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending = ending_;
  }
  call("runs/update", text_of({{"run_id", run_}, {"status", status_of(ending)}, {"end_time", now_milliseconds()}}));
}

}  // namespace hawser::report

// `Mlflow`: sends a run to an MLflow server over its REST API (2.0): parameters, metrics of each step, findings,
// status.
//
// A background thread sends queued data about once a second, in batches. The run never waits for it, except a few
// seconds at the end for the rest. If the server does not respond, it is asked again after 1, 2, 4, ... 60 s. After ten
// minutes without success, or when the server rejects a request (status 400 to 499, except 408 and 429), nothing more
// is sent. At most 10,000 steps are queued; beyond that the oldest are dropped. Numbers that are not finite are left
// out.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "net/http_client.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

struct MlflowOptions {
  std::string server;      // "http://127.0.0.1:5000"
  std::string experiment;  // created if missing
  // Stores the run's id, so that a resumed run continues it: {"server":...,"run_id":...,"folder":...}. A copy of a
  // run's folder, beside its original, gets a run of its own, and trouble() says so.
  std::string state_file;
  bool resumed = false;
  net::HttpClient::Options http;

  std::chrono::milliseconds every{1000}, first_pause{1000}, longest_pause{60000}, give_up{600000};
  std::chrono::milliseconds rest{10000}, rest_without_answer{2000};  // time limits for sending the rest at the end
  std::size_t max_steps = 10000;
};

class Mlflow : public Sink {
 public:
  // UserError if libcurl is not installed. The constructor sends no request.
  Mlflow(MlflowOptions options, RunFacts facts);
  ~Mlflow() override;

  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override;
  void finish(Ending ending) override;
  std::string trouble() override;
  std::int64_t lost() const override;

 private:
  using Clock = std::chrono::steady_clock;
  void work();
  bool send_some();  // false: nothing is left
  void open_run();
  bool continue_earlier();
  bool is_state_of(const std::string& folder, const std::string& id) const;
  void find_experiment();
  void make_run();
  void send_parameters();
  void send(const std::vector<StepMetrics>& steps, const std::vector<Finding>& findings);
  void close_run();
  std::string call(const std::string& path, const std::string& body);
  void failed(const std::string& why, bool for_good);

  MlflowOptions options_;
  const RunFacts facts_;
  net::HttpClient http_;
  // Progress of creating the run on the server: its experiment, its id, its parameters. `run_` is set once all are
  // done.
  bool experiment_missing_ = false;
  std::string experiment_, made_, run_;
  std::size_t parameters_sent_ = 0;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<StepMetrics> waiting_;
  std::vector<Finding> findings_;
  std::string trouble_;
  std::int64_t lost_ = 0;
  int failures_ = 0;  // consecutive
  Clock::time_point first_failure_;
  Ending ending_ = Ending::done;
  bool ending_asked_ = false, given_up_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace hawser::report

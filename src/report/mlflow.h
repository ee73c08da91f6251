// Sends a run to an MLflow server over its REST API (2.0): parameters, metrics of each step, what rules found, status.
//
// A thread of its own sends what has come, every second or so, in batches; the run never waits for it, but at its end a
// few seconds for the rest. A server that does not answer is asked again after 1, 2, 4, ... 60 s; after ten minutes
// without success, or when it rejects (a status of 400 to 499, but 408 and 429), nothing more is sent. 10,000 steps
// wait at most, then the oldest are lost. Numbers that are not finite are left out.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "report/http_client.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

struct MlflowOptions {
  std::string server;      // "http://127.0.0.1:5000"
  std::string experiment;  // made when missing
  // Remembers the run, so that it goes on there after a resume: {"server":...,"run_id":...}.
  std::string state_file;
  bool resumed = false;
  HttpClient::Options http;

  std::chrono::milliseconds every{1000}, first_pause{1000}, longest_pause{60000}, give_up{600000};
  std::chrono::milliseconds rest{10000}, rest_without_answer{2000};  // for what is left at the end
  std::size_t max_steps = 10000;
};

class Mlflow : public Sink {
 public:
  // UserError where there is no libcurl. No request is sent yet by the caller's thread.
  Mlflow(MlflowOptions options, RunFacts facts);
  ~Mlflow() override;

  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override;
  void finish(Ending ending) override;
  std::string trouble() override;
  std::int64_t lost() const override;

 private:
  struct Item {
    StepMetrics metrics;
    std::int64_t milliseconds = 0;  // since the epoch
  };
  using Clock = std::chrono::steady_clock;
  void work();
  bool send_some();  // false: nothing is left
  void open_run();
  bool continue_earlier();
  void find_experiment();
  void make_run();
  void send_parameters();
  void send(const std::vector<Item>& items, const std::vector<Finding>& findings);
  void close_run();
  std::string call(const std::string& path, const std::string& body);
  void failed(const std::string& why, bool for_good);

  MlflowOptions options_;
  const RunFacts facts_;
  HttpClient http_;
  // How far the run has been made there: its experiment, its id, its parameters; `run_` has the id once all is done.
  bool experiment_missing_ = false;
  std::string experiment_, made_, run_;
  std::size_t parameters_sent_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Item> waiting_;
  std::vector<Finding> findings_;
  std::string trouble_;
  std::int64_t lost_ = 0;
  int failures_ = 0;  // in a row
  Clock::time_point first_failure_;
  Ending ending_ = Ending::done;
  bool ending_asked_ = false, given_up_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace hawser::report

// Requests to MLflow, and failures of the server; tools/check_reports.py sends a run to a real server.
#include "report/mlflow.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "report/testing/sample_metrics.h"
#include "report/testing/test_socket.h"

namespace hawser::report {
namespace mlflow_test {

using nlohmann::json;
using namespace std::chrono_literals;

RunFacts facts() {
  return {
      .name = "run \xff",
      .version = "1.2",
      .recipe = {{"train.steps", "9", true}, {"data.tokenizer", "", false}, {"output", std::string(600, 'x'), true}},
      .environment = {{"host", "here"}},
      .data = {{"training tokens", "918K", "917955"}}};
}

MlflowOptions options(const std::string& server, const TemporaryFolder& folder) {
  MlflowOptions out{.server = server, .experiment = "an experiment", .state_file = folder.path("mlflow.json")};
  out.every = 1ms, out.first_pause = 5ms, out.longest_pause = 20ms, out.give_up = 200ms;
  out.rest = 5000ms, out.rest_without_answer = 200ms;
  out.http = {.connect = 300ms, .whole = 300ms};
  return out;
}

// Responses as MLflow's; the experiment is missing at first.
std::string answer_well(const FakeServer::Request& request) {
  const auto asks = [&](const char* path) { return request.line.find(path) != std::string::npos; };
  if (asks("get-by-name")) return http_answer(404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})");
  if (asks("experiments/create")) return http_answer(200, R"({"experiment_id": "7"})");
  if (asks("runs/create")) return http_answer(200, R"({"run": {"info": {"run_id": "abc"}}})");
  return http_answer(200, "{}");
}

struct Sent {
  std::vector<std::string> troubles;
  std::int64_t lost = 0;
  double seconds = 0;
};

Sent send_run(MlflowOptions options, std::int64_t steps = 250, Ending ending = Ending::done) {
  const auto began = std::chrono::steady_clock::now();
  Sent sent;
  Mlflow mlflow(std::move(options), facts());
  const auto listen = [&] {
    if (std::string trouble = mlflow.trouble(); !trouble.empty()) sent.troubles.push_back(trouble);
  };
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepMetrics metrics = metrics_of(step);
    if (step == 2) metrics.loss = std::numeric_limits<double>::quiet_NaN();
    if (step == 3) metrics.findings = {{3, "stall!", "try"}};
    mlflow.step(metrics);
    listen();
  }
  mlflow.finish(ending);
  listen();
  sent.lost = mlflow.lost();
  sent.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return sent;
}

TEST(Mlflow, EveryNumberArrivesOnceInOrder) {
  const TemporaryFolder folder;
  FakeServer server(answer_well);
  const Sent sent = send_run(options(server.url() + "/", folder), 250, Ending::interrupted);
  EXPECT_TRUE(sent.troubles.empty()) << sent.troubles.front();
  EXPECT_EQ(sent.lost, 0);
  const auto requests = server.requests();
  ASSERT_GE(requests.size(), 6u);
  EXPECT_EQ(requests[0].line, "GET /api/2.0/mlflow/experiments/get-by-name?experiment_name=an%20experiment HTTP/1.1");
  EXPECT_EQ(json::parse(requests[1].body), (json{{"name", "an experiment"}}));
  const json made = json::parse(requests[2].body);
  EXPECT_EQ(made["experiment_id"], "7");
  EXPECT_EQ(made["run_name"], "run \xEF\xBF\xBD");
  const auto has_tag = [&](const json& tag) { return std::ranges::count(made["tags"], tag) == 1; };
  EXPECT_TRUE(has_tag({{"key", "data.training tokens"}, {"value", "917955"}})) << made["tags"];
  const json parameters = json::parse(requests[3].body);
  EXPECT_EQ(parameters["params"][0], (json{{"key", "train.steps"}, {"value", "9"}}));
  EXPECT_EQ(parameters["params"].size(), 2u);
  EXPECT_EQ(parameters["params"][1]["value"].get<std::string>().size(), 500u);

  std::vector<std::int64_t> losses, norms;
  bool found = false;
  for (const auto& request : requests) {
    if (request.line.find("log-batch") == std::string::npos) continue;
    const json body = json::parse(request.body);
    EXPECT_EQ(body["run_id"], "abc");
    EXPECT_LE(body.value("metrics", json::array()).size(), 1000u);
    for (const json& metric : body.value("metrics", json::array())) {
      EXPECT_EQ(metric["timestamp"], 1750000000000 + 500 * metric["step"].get<std::int64_t>());
      if (metric["key"] == "loss/train") losses.push_back(metric["step"]);
      if (metric["key"] == "optimizer/grad_norm") norms.push_back(metric["step"]);
    }
    for (const json& tag : body.value("tags", json::array())) {
      found = found || tag == json{{"key", "finding.stall_"}, {"value", "step 3: try"}};
    }
  }
  EXPECT_EQ(losses.size(), 249u);  // one is not finite
  ASSERT_EQ(norms.size(), 250u);
  for (std::size_t i = 0; i < norms.size(); ++i) EXPECT_EQ(norms[i], static_cast<std::int64_t>(i) + 1);
  EXPECT_TRUE(found);
  EXPECT_EQ(json::parse(requests.back().body)["status"], "KILLED");
  EXPECT_EQ(json::parse(read_file(folder.path("mlflow.json")))["run_id"], "abc");
}

TEST(Mlflow, AResumedRunContinuesWhereItWas) {
  const TemporaryFolder folder;
  FakeServer server(answer_well);
  send_run(options(server.url(), folder), 3);
  MlflowOptions again = options(server.url(), folder);
  again.resumed = true;
  const std::size_t before = server.requests().size();
  send_run(again, 3);
  const auto requests = server.requests();
  EXPECT_EQ(json::parse(requests.at(before).body), (json{{"run_id", "abc"}, {"status", "RUNNING"}}));
  for (std::size_t i = before; i < requests.size(); ++i) EXPECT_EQ(requests[i].line.find("/create"), std::string::npos);
}

// Two runs would mix their steps.
TEST(Mlflow, ACopyOfARunGetsARunOfItsOwn) {
  const TemporaryFolder folder;
  const auto state = [&](const std::string& run) { return json::parse(read_file(folder.path(run + "/mlflow.json"))); };
  FakeServer server(answer_well);
  const auto send = [&](const std::string& run, bool resumed) {
    std::filesystem::create_directories(folder.path(run));
    MlflowOptions options{.server = server.url(), .state_file = folder.path(run + "/mlflow.json"), .resumed = resumed};
    RunFacts facts{.folder = folder.path(run)};
    Mlflow sink(options, facts);
    sink.finish(Ending::done);
    return sink.trouble();
  };
  EXPECT_EQ(send("run", false), "");
  std::filesystem::create_directories(folder.path("copy"));
  std::filesystem::copy(folder.path("run/mlflow.json"), folder.path("copy/mlflow.json"));
  EXPECT_EQ(send("copy", true),
            "this run's folder is a copy of " + folder.path("run") + "; it gets an MLflow run of its own");
  EXPECT_EQ(state("copy")["folder"], folder.path("copy"));
  std::filesystem::rename(folder.path("run"), folder.path("moved"));
  EXPECT_EQ(send("moved", true), "") << "a moved run continues";
  EXPECT_EQ(state("moved")["folder"], folder.path("run"));
}

TEST(Mlflow, AnUnreachableServerIsReportedOnce) {
  const TemporaryFolder folder;
  std::string gone;
  { gone = FakeServer(answer_well).url(); }
  const Sent sent = send_run(options(gone, folder));
  ASSERT_EQ(sent.troubles.size(), 1u);
  EXPECT_TRUE(sent.troubles.front().starts_with(gone + ": ")) << sent.troubles.front();
  EXPECT_EQ(sent.lost, 250);
  EXPECT_LT(sent.seconds, 5);
}

TEST(Mlflow, SurvivesErrorsGarbageAndTimeouts) {
  const TemporaryFolder folder;
  for (const std::string& answer :
       {http_answer(500, "oops"), std::string("garbage\r\n\r\n"), http_answer(200, "<html>"), http_answer(200, "{}"),
        http_answer(200, R"({"experiment": 7})"), http_answer(200, std::string(2 << 20, 'x')), std::string()}) {
    SCOPED_TRACE(answer.substr(0, 60));
    FakeServer server([&](const FakeServer::Request&) { return answer; });
    const Sent sent = send_run(options(server.url(), folder));
    EXPECT_FALSE(sent.troubles.empty());
    EXPECT_EQ(sent.lost, 250);
    EXPECT_LT(sent.seconds, 8);
  }
}

TEST(Mlflow, StopsAfterARejection) {
  const TemporaryFolder folder;
  FakeServer server([](const FakeServer::Request&) { return http_answer(403, R"({"message": "not yours"})"); });
  const Sent sent = send_run(options(server.url(), folder));
  ASSERT_EQ(sent.troubles.size(), 1u);
  EXPECT_EQ(sent.troubles.front(), server.url() + ": status 403: not yours");
  EXPECT_EQ(sent.lost, 250);
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(Mlflow, RetriesAfterFailures) {
  const TemporaryFolder folder;
  std::atomic<int> calls{0};
  FakeServer server([&](const FakeServer::Request& request) {
    return ++calls % 3 != 0 ? http_answer(503, "busy") : answer_well(request);
  });
  MlflowOptions patient = options(server.url(), folder);
  patient.give_up = 60s, patient.rest_without_answer = 5s;
  const Sent sent = send_run(patient, 20);
  EXPECT_EQ(sent.lost, 0);
  EXPECT_FALSE(sent.troubles.empty());
}

TEST(Mlflow, DropsTheOldestStepsOfAFullQueue) {
  const TemporaryFolder folder;
  FakeServer server([](const FakeServer::Request&) { return std::string(); });
  MlflowOptions small = options(server.url(), folder);
  small.max_steps = 10;
  EXPECT_EQ(send_run(small, 100).lost, 100);
}

}  // namespace mlflow_test
}  // namespace hawser::report

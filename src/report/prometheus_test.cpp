// The endpoint as clients see it; tools/check_reports.py parses it with Prometheus' own parser.
#include "report/prometheus.h"

#include <gtest/gtest.h>

#include <limits>

#include "report/testing/sample_metrics.h"
#include "report/testing/test_socket.h"

namespace hawser::report {
namespace prometheus_test {

const std::string kGet = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

TEST(HttpServer, AnswersOnePathAndRejectsTheRest) {
  HttpServer server("127.0.0.1", 0, {.path = "/metrics", .type = "text/x", .body = [] { return "numbers\n"; }});
  EXPECT_EQ(ask(server.port(), kGet),
            "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 8\r\nConnection: close\r\n\r\nnumbers\n");
  EXPECT_EQ(ask(server.port(), "HEAD /metrics HTTP/1.0\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 8\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(ask(server.port(), "GET /metrics?name[]=x HTTP/1.1\r\n\r\n").ends_with("numbers\n"));
  const auto status = [&](const std::string& request) { return ask(server.port(), request).substr(9, 3); };
  EXPECT_EQ(status("GET / HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(status("GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(status("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), "405");
  EXPECT_EQ(status("hello\r\n\r\n"), "400");
  EXPECT_EQ(status("GET /metrics\r\n\r\n"), "400");
  EXPECT_EQ(status("\r\n\r\n"), "400");
  EXPECT_EQ(status("GET /metrics HTTP/1.1\r\nX: " + std::string(8170, 'x')), "431");
}

TEST(HttpServer, SlowClientsDelayNoOther) {
  HttpServer server("127.0.0.1", 0, {.path = "/metrics", .type = "t", .body = [] { return std::string(100, 'x'); }});
  std::vector<int> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(connect_to(server.port()));
    EXPECT_EQ(::send(slow.back(), "GET ", 4, MSG_NOSIGNAL), 4);
  }
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(ask(server.port(), kGet).ends_with("xxx"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
  EXPECT_EQ(receive_all(slow.front()), "");  // closed for a newer connection
  for (const int socket : slow) ::close(socket);
}

TEST(HttpServer, StopsDuringARequest) {
  int half = -1;
  const auto began = std::chrono::steady_clock::now();
  {
    HttpServer server("127.0.0.1", 0, {.path = "/metrics", .type = "t", .body = [] { return "x"; }});
    half = connect_to(server.port());
    ASSERT_GE(half, 0);
    EXPECT_EQ(::send(half, "GET", 3, MSG_NOSIGNAL), 3);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
  ::close(half);
}

TEST(HttpServer, ReportsAPortInUse) {
  const HttpServer first("127.0.0.1", 0, {.path = "/", .type = "t", .body = [] { return ""; }});
  try {
    const HttpServer second("127.0.0.1", first.port(), {.path = "/", .type = "t", .body = [] { return ""; }});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              cat("127.0.0.1:", first.port(), ": address already in use; try another report.prometheus_port"));
  }
  EXPECT_THROW(HttpServer("example", 0, {}), UserError);
}

TEST(Prometheus, TheTextHoldsTheLastStepAndTheSums) {
  Prometheus prometheus("127.0.0.1", 0, {.name = "a \"b\"\\\n", .version = "1.2", .steps = 100}, 7);
  const std::string before = prometheus.text();
  EXPECT_NE(before.find("\nhawser_info{run=\"a \\\"b\\\"\\\\\\n\",version=\"1.2\"} 1\n"), std::string::npos) << before;
  EXPECT_NE(before.find("\nhawser_steps_total 7\n"), std::string::npos);
  EXPECT_EQ(before.find("hawser_train_loss"), std::string::npos);

  StepMetrics metrics = metrics_of(8);
  metrics.validation_loss = ValidationLosses(2.25, {{"novels", 2.5}, {"support", 2}});
  metrics.findings = {{8, "overfitting", ""}};
  prometheus.step(metrics);
  metrics = metrics_of(9);
  metrics.gpu_watts = 698.5;
  metrics.joules_per_token = 0.0625;
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  prometheus.step(metrics);
  prometheus.finding({9, "stall", ""});
  const std::string reply = ask(prometheus.port(), kGet);
  EXPECT_NE(reply.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), std::string::npos);
  for (const char* line :
       {"# TYPE hawser_steps_total counter\nhawser_steps_total 9\n", "hawser_planned_steps 100\n",
        "hawser_train_seconds_total 1\n", "hawser_tokens_total 12345\n", "hawser_targets_total 8000\n",
        "hawser_findings_total{rule=\"overfitting\"} 1\nhawser_findings_total{rule=\"stall\"} 1\n",
        "hawser_train_loss_nats NaN\n", "hawser_validation_loss_nats 2.25\n",
        "# TYPE hawser_validation_set_loss_nats gauge\nhawser_validation_set_loss_nats{set=\"novels\"} 2.5\n"
        "hawser_validation_set_loss_nats{set=\"support\"} 2\n",
        "hawser_memory_reserved_bytes 1342177280\n", "# TYPE hawser_grad_norm gauge\nhawser_grad_norm 1.25\n",
        "hawser_step_duration_seconds 0.5\n", "hawser_gpu_watts 698.5\n", "hawser_joules_per_token 0.0625\n"}) {
    EXPECT_NE(reply.find(line), std::string::npos) << line << "\n" << reply;
  }
  EXPECT_EQ(reply.find("utilization"), std::string::npos);
  EXPECT_EQ(reply.find("sm_clock"), std::string::npos);  // not reported
}

}  // namespace prometheus_test
}  // namespace hawser::report

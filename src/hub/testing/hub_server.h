// `HubServer`: for tests, a server that speaks the Hub's API (hub_server.py), and the requests that it got.
//
//   HubServer server;
//   server.add("models/org/tiny/config.json", "{}");
//   server.rules({{"gated", {"org/tiny"}}});
//   pull({.settings = {.endpoint = server.url(), ...}, ...});
//   server.requests();   // {"server": "hub", "method": "GET", "path": "/api/models/org/tiny/...", ...}
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"

namespace hawser::hub {

class HubServer {
 public:
  HubServer() {
    ::setenv("no_proxy", "127.0.0.1", 1);
    const std::string program = cat(hawser::testing::kSourceFolder, "/src/hub/testing/hub_server.py");
    // It ends when this pipe is closed, also if the test crashes.
    pipe_ = ::popen(cat("exec python3 ", program, " ", folder_.path()).c_str(), "we");
    for (int tries = 0; tries < 1000 && !std::filesystem::exists(folder_ / "ports"); ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::istringstream(folder_.read("ports")) >> hub_ >> other_;
    EXPECT_NE(other_, 0) << "the server has not started";
  }
  ~HubServer() { ::pclose(pipe_); }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  std::string url() const { return cat("http://127.0.0.1:", hub_); }
  const TemporaryFolder& folder() const { return folder_; }

  void add(const std::string& file, const std::string& content) { folder_.write(file, content); }
  void rules(const nlohmann::json& rules) { folder_.write("rules.json", rules.dump()); }

  // All of them, or those whose path has the text.
  std::vector<nlohmann::json> requests(const std::string& part = "") const {
    std::vector<nlohmann::json> out;
    std::istringstream lines(folder_.read("requests"));
    for (std::string line; std::getline(lines, line);) {
      auto request = nlohmann::json::parse(line);
      if (request["path"].get<std::string>().find(part) != std::string::npos) out.push_back(std::move(request));
    }
    return out;
  }
  void forget() { folder_.write("requests", ""); }

 private:
  TemporaryFolder folder_;
  FILE* pipe_ = nullptr;
  int hub_ = 0, other_ = 0;
};

}  // namespace hawser::hub

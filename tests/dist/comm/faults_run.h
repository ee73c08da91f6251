// Runs comm_ranks_test with a fault (faults.cpp), and checks of the outcome.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "base/testing/test_paths.h"

namespace hawser::faults {

inline std::string ranks_binary;

struct Outcome {
  std::string output;
  int code = -1;
  double seconds = 0;
  std::vector<int> pids;
};

inline Outcome run(const std::string& fault, int ranks) {
  const auto start = std::chrono::steady_clock::now();
  const std::string command =
      cat("timeout -k 1 120 ", testing::kMpirun, " -q -np ", ranks, " ", ranks_binary, " --fault ", fault, " 2>&1");
  Outcome out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) out.output += buffer.data();
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::istringstream words(out.output);
  for (std::string word; words >> word;) {
    int pid = 0;
    if (word == "pid" && words >> pid) out.pids.push_back(pid);
  }
  return out;
}

// A zombie that is not reaped counts as ended.
inline bool alive(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const char state = text[text.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

inline void expect_all_ended(const Outcome& out, int ranks) {
  EXPECT_EQ(static_cast<int>(out.pids.size()), ranks) << out.output;
  for (const int pid : out.pids) {
    for (int i = 0; i < 20 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(alive(pid)) << pid << '\n' << out.output;
  }
}

inline int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace hawser::faults

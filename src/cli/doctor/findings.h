// What `hawser doctor` found, each with its meaning and what to do about it; and the checks that find it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace hawser::cli::checks {

enum class State { ok, warning, problem };
const char* to_string(State state);

struct Finding {
  State state = State::ok;
  std::string check;    // what was looked at: "memory"
  std::string value;    // what was seen: "23.5 GiB, 20.1 GiB free"
  std::string meaning;  // what that means for a run
  std::string advice;   // what to do; "" where nothing needs to be done
};

class Findings {
 public:
  void ok(const std::string& check, const std::string& value, const std::string& meaning) {
    all_.push_back({State::ok, check, value, meaning, ""});
  }
  void warn(const std::string& check, const std::string& value, const std::string& meaning, const std::string& advice) {
    all_.push_back({State::warning, check, value, meaning, advice});
  }
  void problem(const std::string& check, const std::string& value, const std::string& meaning,
               const std::string& advice) {
    all_.push_back({State::problem, check, value, meaning, advice});
  }
  const std::vector<Finding>& all() const { return all_; }
  int count(State state) const;

 private:
  std::vector<Finding> all_;
};

// "ok       memory          23.5 GiB, 20.1 GiB free: what ranks share", and where there is something to do a second
// line.
std::string text_of(const Finding& finding);
nlohmann::ordered_json json_of(const Finding& finding);

// The checks. None throws for what it finds, and none takes longer than some seconds.
void check_build(Findings& out);                                // devices, vector units, cores
void check_memory(Findings& out);                               // RAM, swap, control group
void check_limits(Findings& out);                               // descriptors, locked memory, address space, /dev/shm
void check_clock(Findings& out);                                // is it set, is it kept
void check_disk(const std::string& folder, Findings& out);      // writes, syncs and reads a file that has no name
void check_network(Findings& out);                              // interfaces that lead nowhere
void check_gpus(bool wanted, Findings& out);                    // driver, memory, links; `wanted`: none is a problem
void check_ranks(const DoctorOptions& options, Findings& out);  // starts ranks and has them sum

// The body of a rank that check_ranks has started.
int measure_as_rank();

// What a command of the shell writes to its standard output; "" where it cannot be run, fails, or takes longer than
// `seconds`.
std::string output_of(const std::string& command, int seconds);

}  // namespace hawser::cli::checks

// Findings of `hawser doctor`, each with its meaning and advice, and the checks that produce them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace hawser::cli::checks {

inline constexpr std::int64_t kMiB = std::int64_t{1} << 20, kGiB = std::int64_t{1} << 30;

enum class State { ok, warning, problem };
const char* to_string(State state);

struct Finding {
  State state = State::ok;
  std::string check;    // "memory"
  std::string value;    // "23.5 GiB, 20.1 GiB free"
  std::string meaning;  // what that means for a run
  std::string advice;   // what to do; "" if nothing
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

// "ok       memory          23.5 GiB, 20.1 GiB free: shared by the ranks of a CPU run", and the advice, if any, on a
// second line.
std::string text_of(const Finding& finding);
nlohmann::ordered_json json_of(const Finding& finding);

// The checks. None throws because of a finding; each takes a few seconds at most.
void check_build(Findings& out);                                // devices, vector units, cores
void check_memory(Findings& out);                               // RAM, swap, cgroup
void check_limits(Findings& out);                               // descriptors, locked memory, address space, /dev/shm
void check_clock(Findings& out);                                // set correctly, synchronized
void check_disk(const std::string& folder, Findings& out);      // writes, syncs and reads an unnamed file
void check_network(Findings& out);                              // virtual interfaces
void check_hub(Findings& out);                                  // server, token and cache of pulls
void check_gpus(bool wanted, Findings& out);                    // driver, memory, links; `wanted`: none is a problem
void check_ranks(const DoctorOptions& options, Findings& out);  // starts ranks and measures all-reduces

// The body of a rank started by check_ranks.
int measure_as_rank();

}  // namespace hawser::cli::checks

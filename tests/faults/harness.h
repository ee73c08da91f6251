// A tiny model on a little text, runs of the real binary on it, and what those leave behind.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/testing/temporary_folder.h"

namespace hawser::faults {

namespace fs = std::filesystem;

// A folder with model.json, train.jsonl, valid.jsonl (documents of odd lengths, as ids) and recipe.yaml, whose output
// is out/. Gone with the object.
class Workplace {
 public:
  Workplace();

  fs::path folder() const { return folder_.path(); }
  fs::path out(const std::string& name = "out") const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

// How a run ended.
struct Ended {
  int code = -1;       // 1000 + signal where it was killed
  double seconds = 0;  // from wait() on
  std::string out, err;
  std::vector<std::string> lines() const;  // of err, those that begin with "hawser: "
};

// `hawser fit recipe.yaml ...` in a workplace, as a process of its own. What is left of it at the end is killed.
class Fit {
 public:
  // `words`: more arguments; "key=value" becomes `--set key=value`.
  Fit(const Workplace& place, const std::vector<std::string>& words, rlim_t largest_file = RLIM_INFINITY);
  // Another command of hawser, word for word; on a terminal of its own where that is asked for, which then takes all
  // it says (err() and Ended::err).
  struct Command {
    std::vector<std::string> words;
    bool terminal = false;
  };
  Fit(const Workplace& place, const Command& command);
  ~Fit();
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  pid_t pid() const { return pid_; }
  std::map<int, pid_t> ranks() const;  // those that run now; this process itself where it started none
  std::vector<pid_t> all() const;      // launcher, mpirun, ranks
  void kill_all() const;               // as they are now
  std::vector<pid_t> left() const;     // whatever it started and still runs, whoever its parent is now; any time
  void type(const std::string& keys);  // at its terminal
  bool going() const;
  Ended wait(double seconds = 120);  // killed when it takes longer: code 1009
  std::string err() const;

 private:
  void start(const Workplace& place, std::vector<std::string> words, rlim_t largest_file, bool terminal);
  void read_terminal() const;

  fs::path log_;
  std::string tag_;  // a variable of all its processes
  pid_t pid_ = -1;
  int terminal_ = -1;
  mutable std::string typed_out_;  // what the terminal has shown
};

// SIGKILL to all of them, the last first: ranks before what watches them.
void kill_at_once(const std::vector<pid_t>& pids);

Ended run(const Workplace& place, const std::vector<std::string>& words, rlim_t largest_file = RLIM_INFINITY);

// Changes one byte of a file; its size stays.
void flip(const fs::path& path, std::uintmax_t at);

// Looks every half millisecond until it is so; false after `seconds`.
bool eventually(const std::function<bool()>& condition, double seconds = 60);

// The step of the newest folder named like a checkpoint; 0: none.
std::int64_t newest_step(const fs::path& out);
// A checkpoint is being written now, or was when its writer was killed.
bool saving(const fs::path& out);

// Every tensor of a checkpoint by name, its bytes read and verified. Throws UserError.
std::map<std::string, std::vector<std::byte>> tensors(const fs::path& checkpoint);
// The newest whole one's step, all of it verified; throws where there is none or it is damaged.
std::int64_t verified_step(const fs::path& out);

// A line of metrics.jsonl, as far as it must repeat.
struct Step {
  std::int64_t step = 0, sequences = 0;
  double loss = 0, grad_norm = 0, lr = 0, validation_loss = -1;
  bool operator==(const Step&) const = default;
};
std::vector<Step> metrics(const fs::path& out);
std::ostream& operator<<(std::ostream& out, const Step& step);

// Both runs' metrics and their checkpoints of step `last` are the same to the bit; failures are added to the test.
void expect_equal_runs(const fs::path& a, const fs::path& b, std::int64_t last);

}  // namespace hawser::faults

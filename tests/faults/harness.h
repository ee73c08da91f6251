// A tiny model on little text, runs of the real binary on it, and helpers to read their results.
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
// is out/. Removed with the object.
class Workplace {
 public:
  Workplace();

  fs::path folder() const { return folder_.path(); }
  fs::path out(const std::string& name = "out") const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

// Exit of a run.
struct Ended {
  int code = -1;       // 1000 + signal if it was killed
  double seconds = 0;  // from the call of wait()
  std::string out, err;
  // Lines of err that begin with "hawser: ", but those of the rule that finds slow steps, as on a busy machine.
  std::vector<std::string> lines() const;
};

// `hawser fit recipe.yaml ...` in a workplace, as a process of its own. The destructor kills what is left of it.
class Fit {
 public:
  // `words`: further arguments; "key=value" becomes `--set key=value`.
  Fit(const Workplace& place, const std::vector<std::string>& words, rlim_t largest_file = RLIM_INFINITY);
  // Another command of hawser, word for word; with `terminal`, on a terminal of its own that receives all of its output
  // (err() and Ended::err).
  struct Command {
    std::vector<std::string> words;
    bool terminal = false;
  };
  Fit(const Workplace& place, const Command& command);
  ~Fit();
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  pid_t pid() const { return pid_; }
  std::map<int, pid_t> ranks() const;  // those running now; this process itself if it started none
  pid_t rank(int rank) const;          // throws with the run's messages if that one does not run
  std::vector<pid_t> all() const;      // launcher, mpirun, ranks
  void kill_all() const;               // those running now
  std::vector<pid_t> left() const;     // processes that it started and that still run, whatever their parent is now
  void type(const std::string& keys);  // at its terminal
  bool going() const;
  Ended wait(double seconds = 120);          // killed after patient(seconds): code 1009
  Ended wait_at_most(double seconds = 120);  // killed after `seconds`
  std::string err() const;

 private:
  void start(const Workplace& place, std::vector<std::string> words, rlim_t largest_file, bool terminal);
  void read_terminal() const;

  fs::path log_;
  std::string tag_;  // marks all of its processes: a variable
  pid_t pid_ = -1;
  int terminal_ = -1;
  mutable std::string typed_out_;  // what the terminal has shown
};

// Sends SIGKILL to all of them, the last first: ranks before the processes that watch them.
void kill_at_once(const std::vector<pid_t>& pids);

Ended run(const Workplace& place, const std::vector<std::string>& words, rlim_t largest_file = RLIM_INFINITY);

// Changes one byte of a file and keeps its size.
void flip(const fs::path& path, std::uintmax_t at);

// A limit of time for this machine: `seconds` is that of an idle one with two fast cores. Where a run of one step takes
// longer than there, the limit grows in the same ratio, up to four times. Throws if that run fails.
double patient(double seconds);
// Polls every half millisecond until it is true; false after patient(seconds).
bool eventually(const std::function<bool()>& condition, double seconds = 60);

// The step of the newest folder named like a checkpoint; 0: none.
std::int64_t newest_step(const fs::path& out);
// A checkpoint is being written, or was when its writer was killed.
bool saving(const fs::path& out);

// Every tensor of a checkpoint by name, its bytes read and verified. Throws UserError.
std::map<std::string, std::vector<std::byte>> tensors(const fs::path& checkpoint);
// Step of the newest complete checkpoint, fully verified; throws if there is none or it is corrupt.
std::int64_t verified_step(const fs::path& out);

// The reproducible numbers of a line of metrics.jsonl.
struct Step {
  std::int64_t step = 0, sequences = 0;
  double loss = 0, grad_norm = 0, lr = 0, validation_loss = -1;
  bool operator==(const Step&) const = default;
};
std::vector<Step> metrics(const fs::path& out);
std::ostream& operator<<(std::ostream& out, const Step& step);

// Expects equal metrics and equal checkpoints of step `last`, bit by bit; failures are added to the test.
void expect_equal_runs(const fs::path& a, const fs::path& b, std::int64_t last);

}  // namespace hawser::faults

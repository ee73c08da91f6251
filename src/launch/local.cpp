#include "launch/local.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>

#include "base/addresses.h"
#include "base/error.h"
#include "io/background_output.h"
#include "launch/launcher_environment.h"
#include "launch/limits.h"
#include "launch/mpirun.h"
#include "launch/process_session.h"
#include "launch/scratch.h"
#include "launch/stop.h"
#include "launch/stop_page.h"

namespace hawser {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> own_command() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', begin), bytes.size());
    words.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  HAWSER_CHECK(!words.empty(), "/proc/self/cmdline is empty");
  std::array<char, 4096> self{};
  const ssize_t size = readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (size > 0) words[0] = std::string(self.data(), static_cast<std::size_t>(size));
  return words;
}

std::vector<std::string> mpirun_command(const LocalLaunch& launch, const ScratchFolder& scratch) {
  const Mpirun mpirun = find_mpirun();
  std::vector<std::string> words = {mpirun.path, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                                    "-np",       cat(launch.ranks)};
  // One machine: no remote shell, no Slurm allocation; shared memory and loopback only. Waiting ranks yield their core,
  // because there may be more ranks than cores.
  std::vector<std::pair<std::string, std::string>> parameters = {
      {"ras", "^slurm,gridengine"},
      {"pml", "ob1"},
      {"btl", "self,vader,tcp"},
      {"btl_tcp_if_include", "lo"},
      {"mpi_yield_when_idle", "1"},
      {"orte_tmpdir_base", scratch.path()},
      {"btl_vader_backing_directory", scratch.path()},
  };
  if (mpirun.is_version_5()) {
    // Version 5 prints a page about `plm isolated`. It finds no interface for oob_tcp_if_include=lo where there are
    // others (open-mpi/ompi#14441), so its mpirun listens on all of them.
    parameters.push_back({"plm", "^slurm"});
  } else {
    parameters.push_back({"plm", "isolated"});
    parameters.push_back({"oob_tcp_if_include", "lo"});
  }
  for (const auto& [name, value] : parameters) words.insert(words.end(), {"--mca", name, value});
  const std::vector<std::string> command = launch.command.empty() ? own_command() : launch.command;
  words.insert(words.end(), command.begin(), command.end());
  words.insert(words.end(), launch.options.begin(), launch.options.end());
  return words;
}

// Environment of the ranks. The user's OMP variables override our defaults; the recipe's threads override both.
void set_environment(const LocalLaunch& launch, const StopFile& stop) {
  const Terminal terminal = user_terminal();
  setenv(kLauncherVariable, "local", 1);
  setenv(kStopVariable, stop.path().c_str(), 1);
  unsetenv(kTerminalVariable);
  if (terminal.is_terminal) setenv(kTerminalVariable, cat(terminal.columns).c_str(), 1);
  setenv("OMP_WAIT_POLICY", "passive", 0);
  const int threads = launch.threads > 0 ? launch.threads : threads_per_rank(launch.ranks);
  setenv("OMP_NUM_THREADS", cat(threads).c_str(), launch.threads > 0 ? 1 : 0);
}

// While it exists, the launcher's signals are read from a file descriptor instead of being delivered.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&set, signal);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);  // nohup: keep running
    std::signal(SIGCHLD, SIG_DFL);                              // if ignored, mpirun's exit code would be lost
    sigprocmask(SIG_BLOCK, &set, &before_);
    file_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    HAWSER_CHECK(file_ >= 0, "signalfd: ", std::strerror(errno));
  }
  ~SignalQueue() {
    close(file_);
    // The ranks have ended: there is nothing left to save.
    std::signal(SIGUSR1, SIG_IGN);
    // A repeated signal that was already handled must not kill this process before it has returned its exit code.
    if (answered_) {
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
    }
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int file() const { return file_; }
  void answered() { answered_ = true; }
  bool was_answered() const { return answered_; }
  const sigset_t& before() const { return before_; }
  std::optional<int> next() const {
    signalfd_siginfo info{};
    if (read(file_, &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_{};
  int file_ = -1;
  bool answered_ = false;
};

// Supervises one mpirun, from fork to its last output.
class Supervisor {
 public:
  explicit Supervisor(const LocalLaunch& launch)
      : launch_(launch), stop_(scratch_.path()), words_(mpirun_command(launch, scratch_)) {
    expect_shared_memory(scratch_.path(), launch.ranks);
  }

  LocalEnd run() {
    const int code = supervise();
    deliver_output();
    return {code, signals_.was_answered()};
  }

 private:
  static constexpr int kQuiet = 50;  // ms without output until an incomplete line is printed
  static constexpr std::chrono::seconds kLastMessageTimeout{3};
  static constexpr std::chrono::seconds kGrace{8};     // for mpirun, after a rank has ended the run
  static constexpr std::chrono::seconds kPatience{8};  // for the kernel, after SIGKILL
  static constexpr std::chrono::seconds kStopped{2};   // for mpirun, before it is continued
  // For a reader of standard error after an interruption; with the result of a run that saved and stopped.
  static constexpr std::chrono::seconds kReader{1}, kReaderOfResult{3};
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kMaxPending = 1 << 20;  // bytes; then the ranks wait for the reader too

  int supervise() {
    start();
    while (!status_) {
      // After an interruption the ranks must not wait for the reader: they print their last lines and end.
      const bool full = output_.pending() >= kMaxPending && interruption_ == Interruption::none;
      std::array<pollfd, 2> files{{{signals_.file(), POLLIN, 0}, {full ? -1 : errors_, POLLIN, 0}}};
      const int ready = poll(files.data(), files.size(), kQuiet);
      if (ready == 0 && !full) output_.put(filter_.flush());
      if (files[1].revents != 0) take_errors(interruption_ == Interruption::none ? kMaxPending : kNoLimit);
      while (const auto signal = signals_.next()) take_signal(*signal);
      look_after_child();
      // A rank has ended the run, and mpirun ends the others: within seconds, unless it is stuck itself.
      if (!kill_at_ && (stop_.page().failure != 0 || !filter_.ends().empty())) kill_at_ = Clock::now() + kGrace;
      if (!status_ && kill_at_ && Clock::now() >= *kill_at_) end_all();
      if (!ended_at_ && stop_.page().ended >= launch_.ranks) ended_at_ = Clock::now();
      if (!status_ && ended_at_ && Clock::now() >= *ended_at_ + launch_.exit_limit) {
        stuck_ = true;
        end_all();
      }
      if (!status_ && !all_started() && Clock::now() >= start_deadline_) {
        late_ = launch_.ranks - stop_.page().started;
        end_all();
      }
    }
    end_all();  // mpirun may leave ranks behind: stopped ones, or all if it was killed
    drain();
    if (interruption_ == Interruption::ended && stop_.page().claim(StopPage::of_launcher)) {
      print_after_signal(ended_line_);
    }
    if (late_ > 0 && interruption_ == Interruption::none) {
      print(cat(late_, " of ", launch_.ranks, " ranks did not start within ",
                std::chrono::duration_cast<std::chrono::seconds>(launch_.start_limit).count(),
                " s; check mpirun and the limits of open files and processes (ulimit -n, ulimit -u)"));
      return static_cast<int>(ExitCode::rank_failed);
    }
    if (stuck_ && interruption_ == Interruption::none) {
      print(cat("a rank did not exit within ",
                std::chrono::duration_cast<std::chrono::seconds>(launch_.exit_limit).count(),
                " s after its work, which is complete; it is killed"));
      return static_cast<int>(ExitCode::rank_failed);
    }
    const int unfinished = launch_.ranks - stop_.page().ended;
    if (*status_ == 0 && unfinished > 0 && interruption_ == Interruption::none) {
      print(cat("mpirun reports success, but ", unfinished, " of ", launch_.ranks,
                " ranks did not finish; check which mpirun is first in PATH"));
      return static_cast<int>(ExitCode::rank_failed);
    }
    const Outcome end = outcome({.status = *status_,
                                 .interruption = interruption_,
                                 .failure = stop_.page().failure,
                                 .started = all_started(),
                                 .ends = filter_.ends(),
                                 .notices = filter_.notices(),
                                 .explained = filter_.explained()});
    if (!end.line.empty()) print(end.line);
    return end.code;
  }

  void start() {
    std::array<int, 2> pipe_ends{};
    HAWSER_CHECK(pipe2(pipe_ends.data(), O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
    // Closed by exec or by the child's exit: from then on the session exists and can be killed.
    std::array<int, 2> started{};
    HAWSER_CHECK(pipe2(started.data(), O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
    const pid_t parent = getpid();
    child_ = fork();
    if (child_ < 0) throw cannot_start_mpirun(errno);
    if (child_ == 0) {
      // A session of its own: Ctrl-C reaches only this process, which decides what to do. The child dies with it, and
      // the ranks with the child (stop.cpp).
      setsid();
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      // mpirun kills the ranks when it gets SIGTERM or SIGINT. A service manager sends a signal to all processes at
      // once, while this one asks the ranks to save. Blocked signals stay blocked in mpirun; it unblocks them in the
      // ranks.
      sigset_t mask = signals_.before();
      sigdelset(&mask, SIGUSR1);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, signal);
      sigprocmask(SIG_SETMASK, &mask, nullptr);
      set_environment(launch_, stop_);  // checks for a terminal, so call it before stderr is the pipe
      const int nothing = open("/dev/null", O_RDONLY);
      if (nothing >= 0) dup2(nothing, STDIN_FILENO);
      dup2(pipe_ends[1], STDERR_FILENO);
      exec();
    }
    close(pipe_ends[1]);
    close(started[1]);
    char none = 0;
    while (read(started[0], &none, 1) < 0 && errno == EINTR) continue;
    close(started[0]);
    errors_ = pipe_ends[0];
    fcntl(errors_, F_SETFL, O_NONBLOCK);
  }

  [[noreturn]] void exec() {
    std::vector<char*> arguments;
    for (std::string& word : words_) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    // argv[0] is the plain name: mpirun prints it in its notices, and would use a path as an installation prefix.
    std::string name = "mpirun";
    const std::string file = words_[0];
    arguments[0] = name.data();
    execv(file.c_str(), arguments.data());
    _exit(127);
  }

  void print(const std::string& line) { output_.put((filter_.end_line() ? "\nhawser: " : "hawser: ") + line + "\n"); }

  // A terminal echoes ^C at the cursor.
  void print_after_signal(const std::string& line) {
    const bool in_line = filter_.end_line() || terminal_;
    output_.put((in_line ? "\nhawser: " : "hawser: ") + line + "\n");
  }

  void take_errors(std::size_t max_pending) {
    std::array<char, 16384> bytes{};
    while (output_.pending() < max_pending) {
      const ssize_t size = read(errors_, bytes.data(), bytes.size());
      if (size > 0) {
        output_.put(filter_.feed({bytes.data(), static_cast<std::size_t>(size)}));
        continue;
      }
      const int error = size < 0 ? errno : 0;
      if (error == EINTR) continue;
      if (error != EAGAIN) errors_ended();
      return;
    }
  }

  void errors_ended() {
    close(errors_);
    errors_ = -1;  // poll ignores negative descriptors
  }

  bool all_started() { return stop_.page().started >= launch_.ranks; }

  void take_signal(int signal) {
    if (signal == SIGCHLD) return;  // only wakes the loop
    signals_.answered();
    if (status_) return;                                       // mpirun has already exited
    const bool can_save = all_started() || signal == SIGUSR1;  // Slurm's SIGUSR1 announces the end of a job
    if (launch_.saves && can_save && interruption_ == Interruption::none) {
      interruption_ = Interruption::asked;
      print_after_signal(kSavingLine);
      stop_.page().requested = true;
    } else if (!launch_.saves || signal != SIGUSR1) {
      // As of now: until the message is printed, ranks may start that had not when the signal came.
      if (interruption_ != Interruption::ended) {
        ended_line_ = launch_.saves && all_started() ? kEndedLine : kInterruptedLine;
      }
      interruption_ = Interruption::ended;
      if (stop_.page().claim(StopPage::of_launcher)) return end_all();
      // The ranks have saved: mpirun forwards their last message and exits.
      if (!kill_at_) kill_at_ = Clock::now() + kLastMessageTimeout;
    }
  }

  // Polled in every iteration: a library's thread that blocks no signals (the GPU driver has one) may receive SIGCHLD,
  // whose default action is to ignore it, and then the descriptor never reports it.
  void look_after_child() {
    int status = 0;
    if (!status_ && waitpid(child_, &status, WNOHANG | WUNTRACED | WCONTINUED) == child_) {
      stopped_ = WIFSTOPPED(status);
      if (stopped_) continue_at_ = Clock::now() + kStopped;
      if (!stopped_ && !WIFCONTINUED(status)) take_status(status);
    }
    // A stopped mpirun passes on no output and lets no rank end.
    if (stopped_ && Clock::now() >= continue_at_) {
      stopped_ = false;
      kill(child_, SIGCONT);
    }
  }

  void take_status(int status) { status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

  void end_all() {
    if (gave_up_) return;
    int status = -1;
    const std::vector<pid_t> left = end_session(child_, kPatience, &status);
    if (status != -1) take_status(status);
    if (!status_) take_status(SIGKILL);
    for (const pid_t pid : left) {
      const std::string state = process_state(pid);
      print(cat("process ", pid,
                " does not exit after SIGKILL; check for a hung disk or network file system; its state is ",
                state.empty() ? "unknown" : state));
    }
    gave_up_ = !left.empty();
  }

  // mpirun is gone; its last output and that of the ranks may still be in the pipe.
  void drain() {
    const auto end = Clock::now() + std::chrono::seconds(1);
    while (errors_ >= 0 && Clock::now() < end) {
      pollfd file{errors_, POLLIN, 0};
      if (poll(&file, 1, 100) == 0) break;
      take_errors(kNoLimit);
    }
    if (errors_ >= 0) errors_ended();
    output_.put(filter_.finish());
  }

  // Waits for the reader of standard error, however slow it is; after an interruption only for a moment.
  void deliver_output() {
    bool interrupted = interruption_ != Interruption::none;
    for (auto end = Clock::now() + (interruption_ == Interruption::asked ? kReaderOfResult : kReader);
         output_.pending() > 0 && !(interrupted && Clock::now() >= end);) {
      output_.wait(std::chrono::milliseconds(kQuiet));
      while (const auto signal = signals_.next()) {
        if (interrupted || *signal == SIGCHLD || *signal == SIGUSR1) continue;
        interrupted = true;
        signals_.answered();
        end = Clock::now() + kReader;
      }
    }
  }

  LocalLaunch launch_;
  Adoption adoption_;  // constructed before mpirun starts
  ScratchFolder scratch_;
  StopFile stop_;
  std::vector<std::string> words_;
  SignalQueue signals_;
  MpirunOutputFilter filter_;
  io::BackgroundOutput output_{STDERR_FILENO};
  pid_t child_ = -1;
  int errors_ = -1;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  Interruption interruption_ = Interruption::none;
  const char* ended_line_ = kInterruptedLine;  // printed if the run is ended
  std::optional<int> status_;                  // as in a shell
  std::optional<Clock::time_point> kill_at_;
  bool stopped_ = false;  // mpirun, by SIGSTOP or the like
  Clock::time_point continue_at_;
  const Clock::time_point start_deadline_ = Clock::now() + launch_.start_limit;
  int late_ = 0;                               // ranks that did not start in time
  std::optional<Clock::time_point> ended_at_;  // all ranks have done their work
  bool stuck_ = false;                         // and did not exit in time
  bool gave_up_ = false;                       // a process did not exit after SIGKILL, and is not waited for again
};

}  // namespace

LocalEnd launch_local(const LocalLaunch& launch) {
  HAWSER_CHECK(launch.ranks >= 1, "ranks ", launch.ranks);
  expect_addresses_for_mpi();
  expect_open_files(launch.ranks);
  expect_file_size();
  return Supervisor(launch).run();
}

}  // namespace hawser

#include "launch/stop.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/error.h"
#include "io/result_file.h"
#include "launch/launcher_environment.h"
#include "launch/stop_page.h"

namespace hawser {
namespace {

// Signals reach any thread, and one thread's handler may run while another's does.
std::atomic<bool> g_requested = false, g_ending = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // so handlers may use them
volatile std::sig_atomic_t g_finishing = 0;             // the last message is being printed
volatile std::sig_atomic_t g_speaks = 0;                // rank 0 prints for all ranks
volatile std::sig_atomic_t g_terminal = 0;  // standard error is a terminal: the line may hold a progress bar
const char* volatile g_ended = kEndedLine;
StopPage* g_page = nullptr;

constexpr int kReaderMs = 500;  // for a reader of standard error; then the line is dropped

// Async-signal-safe: uses poll() and write() only.
void print(const char* line) {
  if (g_speaks == 0) return;
  std::array<char, 128> text{};
  std::size_t size = 0;
  for (const char* part : {g_terminal != 0 ? "\n" : "", "hawser: ", line, "\n"}) {
    const std::size_t more = std::min(std::strlen(part), text.size() - size);
    std::memcpy(text.data() + size, part, more);
    size += more;
  }
  pollfd file{STDERR_FILENO, POLLOUT, 0};
  if (poll(&file, 1, kReaderMs) != 1) return;
  if (write(STDERR_FILENO, text.data(), size) < 0) return;  // no reader
}

[[noreturn]] void end_at_once(const char* line) {
  while (g_ending.exchange(true)) pause();  // another thread is about to exit
  io::drop_unfinished_result();
  print(line);
  _exit(static_cast<int>(ExitCode::interrupted));
}

void on_interrupt(int) {
  end_at_once(kInterruptedLine);
}

void on_request(int signal) {
  // The process is about to exit, unless nothing reads its message. The next signal exits at once, without a message.
  if (g_finishing != 0) {
    g_finishing = 0;
    g_speaks = 0;
    g_requested = true;
    return;
  }
  const int before = errno;
  // The launcher decides about its ranks: the signals that reach them may be the same request again.
  const bool first = !g_requested.exchange(true);
  if (!first && signal != SIGUSR1 && g_page == nullptr) end_at_once(g_ended);
  if (first) print(kSavingLine);
  errno = before;
}

void handle(std::initializer_list<int> signals, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) sigaddset(&action.sa_mask, signal);  // handlers do not interrupt each other
  for (const int signal : signals) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void end_when_interrupted() {
  // A parent may have blocked them, and the mask is inherited.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals, signal);
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  if (launched_locally()) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // mpirun's death; it ignores the signals that stop a run (local.cpp)
    // mpirun, which begins the session, has died before: this process already has another parent.
    if (getsid(getppid()) != getsid(0)) _exit(static_cast<int>(ExitCode::rank_failed));
    if (const char* path = std::getenv(kStopVariable)) g_page = open_stop_page(path);
    return;
  }
  g_speaks = launched_as().rank == 0;
  g_terminal = isatty(STDERR_FILENO);
  handle({SIGINT, SIGTERM, SIGHUP}, on_interrupt);
}

void note_started() {
  if (g_page != nullptr) ++g_page->started;
}

void note_ended() {
  if (g_page != nullptr) ++g_page->ended;
}

void note_failed(int code) {
  if (g_page != nullptr) g_page->fail(launched_as().rank, code);
}

void keep_quiet_when_stopped() {
  g_speaks = 0;
}

void catch_stop_signals(const char* ended) {
  g_ended = ended;
  if (launched_locally()) {
    handle({SIGINT, SIGTERM, SIGHUP, SIGUSR1}, on_request);
    return;
  }
  g_speaks = launched_as().rank == 0;
  g_terminal = isatty(STDERR_FILENO);
  handle({SIGINT, SIGTERM, SIGHUP, SIGUSR1}, on_request);
}

bool stop_requested() {
  return g_requested || (g_page != nullptr && g_page->requested);
}

void print_last_message(const std::function<void()>& print) {
  if (g_page != nullptr && !g_page->claim(StopPage::of_ranks)) return;
  g_finishing = 1;
  print();
  g_speaks = 0;
  g_finishing = 0;
}

}  // namespace hawser

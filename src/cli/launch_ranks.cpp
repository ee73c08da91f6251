#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "cli/exit.h"
#include "cli/ranks.h"

namespace hawser::cli {
namespace {

// Pipes the ranks' standard output and checks the writes: mpirun does not report when it cannot write.
class Delivery {
 public:
  Delivery() {
    std::fflush(stdout);
    std::array<int, 2> ends{};
    // A closed standard output becomes a file that rejects writes with the same error.
    if (fcntl(STDOUT_FILENO, F_GETFD) < 0) {
      const int unwritable = open("/dev/null", O_RDONLY);
      if (unwritable >= 0) dup2(unwritable, STDOUT_FILENO);
      if (unwritable > STDERR_FILENO) close(unwritable);
    }
    out_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (out_ < 0 || pipe2(ends.data(), O_CLOEXEC) != 0) {  // continues without the pipe
      error_ = errno;
      return;
    }
    from_ = ends[0];
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    // Signals go to the thread that watches the ranks. A closed reader is an error here, and does not end the process.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pump_ = std::thread([this] { pump(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Delivery() { finish(/*interrupted=*/true); }

  // Error of the writes; 0: what the ranks printed was written, or left because of `interrupted`. Waits for a slow
  // reader; if the run was interrupted, for a second.
  int finish(bool interrupted) {
    if (!pump_.joinable()) return error_;
    dup2(out_, STDOUT_FILENO);
    interrupted_ = interrupted;
    ended_ = true;
    pump_.join();
    close(from_);
    close(out_);
    return error_;
  }
  bool left() const { return left_; }  // output was left because the run was interrupted

 private:
  void pump() {
    std::array<char, 16384> bytes{};
    for (;;) {
      // A rank that outlives mpirun keeps the pipe open: after the end, only read what is available.
      const bool last = ended_;
      pollfd file{from_, POLLIN, 0};
      if (poll(&file, 1, last ? 0 : 50) <= 0) {
        if (last) return;
        continue;
      }
      const ssize_t size = read(from_, bytes.data(), bytes.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return;
      for (ssize_t done = 0, waits = 0; done < size && error_ == 0;) {
        pollfd reader{out_, POLLOUT, 0};
        if (poll(&reader, 1, 50) == 0) {
          if (interrupted_ && ++waits == 20) {
            left_ = true;
            return;
          }
          continue;
        }
        // A pipe that is writable takes this much without blocking.
        const ssize_t part = std::min<ssize_t>(size - done, 4096);
        const ssize_t written = write(out_, bytes.data() + done, static_cast<std::size_t>(part));
        if (written >= 0) {
          done += written;
        } else if (errno != EINTR) {
          error_ = errno;
        }
      }
    }
  }

  int out_ = -1, from_ = -1;
  std::atomic<bool> ended_ = false, interrupted_ = false, left_ = false;
  std::atomic<int> error_ = 0;
  std::thread pump_;
};

}  // namespace

int launch_ranks(const LocalLaunch& launch) {
  Delivery delivery;
  const auto [code, signalled] = launch_local(launch);
  // A reader that does not read must not keep a process that has answered a signal, and ignores further ones.
  const int error = delivery.finish(signalled);
  if (error == 0) return code == 0 && delivery.left() ? static_cast<int>(ExitCode::interrupted) : code;
  print("", undelivered(error));
  return code == 0 ? static_cast<int>(ExitCode::internal) : code;
}

}  // namespace hawser::cli

#include "comm/mpi/service.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <system_error>

#include "base/addresses.h"
#include "base/error.h"
#include "comm/mpi/library.h"
#include "comm/rank_list.h"

namespace hawser::comm {

namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kSpin = microseconds(50);  // poll without sleeping for this time after the last event
constexpr auto kShortestSleep = microseconds(5);
constexpr auto kLongestSleep = microseconds(200);
// An idle thread still calls MPI at this interval: MPI may hold parts of small messages that were sent earlier.
constexpr auto kLongestIdleSleep = milliseconds(5);
constexpr int kSleepShare = 8;                         // sleep at most 1/8 of the time waited so far
constexpr auto kAbortGrace = std::chrono::seconds(5);  // then the process exits by itself

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// Only the host's threads receive signals; this thread receives those of its own faults.
sigset_t asynchronous_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&set, signal);
  return set;
}

// One write call, so that lines of several ranks do not mix. The prefix tells the launcher that it need not add one.
void write_line(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = "hawser: " + line + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace

std::string Operation::text() const {
  return cat(name, " on ", group, bytes > 0 ? cat(" (", bytes, " bytes)") : std::string());
}

struct Service::Requests {
  struct Owner {
    Exchange* exchange;
    std::size_t message;
    int bytes;
  };
  std::vector<MPI_Request> requests;
  std::vector<Owner> owners;
  std::vector<int> done;
  std::vector<MPI_Status> statuses;
};

Service::Service(std::function<void(int)> on_abort, std::chrono::seconds start_limit, std::int64_t piece_bytes)
    : on_abort_(std::move(on_abort)),
      piece_bytes_(piece_bytes),
      start_limit_(start_limit),
      phase_(std::make_shared<std::string>("start")) {
  expect_addresses_for_mpi();
  mpi_library();  // its errors are the caller's
  const sigset_t block = asynchronous_signals();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &block, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return started_; });
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Service::set_phase(std::string phase) {
  auto shared = std::make_shared<const std::string>(std::move(phase));
  const std::lock_guard lock(mutex_);
  phase_ = std::move(shared);
}

std::shared_ptr<const std::string> Service::phase() const {
  const std::lock_guard lock(mutex_);
  return phase_;
}

void Service::finished(OperationPtr operation) {
  const std::lock_guard lock(mutex_);
  last_done_.swap(operation);
}

ExchangePtr Service::post(OperationPtr operation, std::vector<Message> messages) {
  auto exchange = std::make_shared<Exchange>(std::move(operation), std::move(messages));
  {
    const std::lock_guard lock(mutex_);
    HAWSER_CHECK(!closing_, exchange->operation_->text(), " posted to a service that is closing");
    incoming_.push_back(exchange);
  }
  wake_.notify_all();
  return exchange;
}

int Service::tag(int group, TagKind kind, std::uint64_t sequence) const {
  HAWSER_CHECK(group < (1 << group_bits_), "more than ", 1 << group_bits_, " groups");
  const std::uint64_t wrapped = sequence & ((std::uint64_t{1} << sequence_bits_) - 1);
  return static_cast<int>(((static_cast<std::uint64_t>(group) * 2 + (kind == TagKind::pair)) << sequence_bits_) |
                          wrapped);
}

void Service::start_mpi() {
  const MpiLibrary& mpi = mpi_library();
  // Several ranks may share cores: MPI's own waits (only in MPI_Init and MPI_Finalize) must yield.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int provided = 0, status = MPI_SUCCESS;
  expect_return([&] { status = mpi.init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); }, start_limit_,
                [&] {
                  write_line(cat("MPI did not start within ", start_limit_.count(),
                                 " s: a rank has not started, is stopped or cannot be reached"));
                });
  if (status != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
    write_line(
        "MPI: this installation does not support calls from a thread of the program (expected MPI_THREAD_FUNNELED)");
    _exit(static_cast<int>(ExitCode::internal));
  }
  mpi.comm_set_errhandler(mpi.world, mpi.errors_return);
  mpi.comm_rank(mpi.world, &rank_);
  mpi.comm_size(mpi.world, &size_);
  int found = 0;
  int* largest_tag = nullptr;
  mpi.comm_get_attr(mpi.world, MPI_TAG_UB, static_cast<void*>(&largest_tag), &found);
  const int tag_bits = std::bit_width(static_cast<std::uint64_t>(found ? *largest_tag : 32767) + 1) - 1;
  // A process may create many meshes, and every group has its own number: 2^15 groups with Open MPI's tags of 31 bits.
  // Numbers of operations wrap around; messages with one tag match in order.
  group_bits_ = tag_bits / 2;
  sequence_bits_ = tag_bits - group_bits_ - 1;
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  wake_.notify_all();
}

void Service::end_mpi() {
  // All ranks have just passed a barrier, so this takes milliseconds unless a rank failed in between.
  expect_return([] { mpi_library().finalize(); }, kAbortGrace,
                [&] { write_line(cat("rank ", rank_, ": MPI_Finalize did not return")); });
}

void Service::expect_return(const std::function<void()>& call, std::chrono::seconds limit,
                            const std::function<void()>& report) {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
  const auto watch = [&] {
    std::unique_lock lock(mutex);
    for (auto waited = std::chrono::seconds(0); waited < limit; ++waited) {
      if (changed.wait_for(lock, std::chrono::seconds(1), [&] { return returned; })) return;
    }
    report();
    if (on_abort_) on_abort_(static_cast<int>(ExitCode::rank_failed));
    _exit(static_cast<int>(ExitCode::rank_failed));
  };
  std::thread guard;
  try {
    guard = std::thread(watch);
  } catch (const std::system_error&) {
    // Too few threads are allowed: nothing watches the call.
  }
  call();
  {
    const std::lock_guard lock(mutex);
    returned = true;
  }
  changed.notify_all();
  if (guard.joinable()) guard.join();
}

void Service::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default lengthens short sleeps by 50 us
  start_mpi();
  Requests requests;
  auto last = Clock::now();
  for (;;) {
    bool moved = take(requests);
    moved |= complete(requests);
    const auto now = Clock::now();
    if (const int code = abort_code_.load(); code >= 0) end_run(code);
    check_deadlines(now);
    if (moved) last = now;
    if (active_.empty()) {
      const std::lock_guard lock(mutex_);
      if (closing_ && incoming_.empty()) break;
    }
    pause(now - last, !active_.empty());
  }
  end_mpi();
}

void Service::pause(Clock::duration idle, bool busy) {
  if (idle < kSpin) {
    sched_yield();
    return;
  }
  const Clock::duration longest = busy ? Clock::duration(kLongestSleep) : Clock::duration(kLongestIdleSleep);
  const auto sleep = std::clamp<Clock::duration>(idle / kSleepShare, kShortestSleep, longest);
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, sleep, [this] { return closing_ || !incoming_.empty() || abort_code_.load() >= 0; });
}

bool Service::take(Requests& requests) {
  const MpiLibrary& mpi = mpi_library();
  std::vector<ExchangePtr> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(incoming_);
  }
  for (ExchangePtr& exchange : taken) {
    for (std::size_t m = 0; m < exchange->messages_.size(); ++m) {
      const Message& message = exchange->messages_[m];
      std::int64_t begin = 0;
      do {  // an empty message is one piece too
        const int bytes = static_cast<int>(std::min(message.bytes - begin, piece_bytes_));
        MPI_Request request = mpi.no_request;
        const int result =
            message.way == Message::Way::send
                ? mpi.isend(message.data + begin, bytes, mpi.byte, message.rank, message.tag, mpi.world, &request)
                : mpi.irecv(message.data + begin, bytes, mpi.byte, message.rank, message.tag, mpi.world, &request);
        if (result != MPI_SUCCESS) {
          fail(cat(exchange->operation_->text(), " failed: MPI error ", result, " with rank ", message.rank,
                   context_of(*exchange->operation_)));
        }
        requests.requests.push_back(request);
        requests.owners.push_back({exchange.get(), m, bytes});
        ++exchange->open_[m];
        ++exchange->total_open_;
        begin += bytes;
      } while (begin < message.bytes);
    }
    if (exchange->total_open_ == 0) {
      exchange->finish();
    } else {
      active_.push_back(std::move(exchange));
    }
  }
  return !taken.empty();
}

bool Service::complete(Requests& r) {
  const MpiLibrary& mpi = mpi_library();
  if (r.requests.empty()) {
    int flag = 0;
    mpi.iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi.world, &flag, MPI_STATUS_IGNORE);
    return false;
  }
  r.done.resize(r.requests.size());
  r.statuses.resize(r.requests.size());
  int count = 0;
  const int result =
      mpi.testsome(static_cast<int>(r.requests.size()), r.requests.data(), &count, r.done.data(), r.statuses.data());
  if (count == MPI_UNDEFINED || count == 0) {
    if (result != MPI_SUCCESS) fail(cat("MPI error ", result, " while polling"));
    return false;
  }
  bool exchanged = false;
  for (int i = 0; i < count; ++i) {
    const Requests::Owner& owner = r.owners[static_cast<std::size_t>(r.done[static_cast<std::size_t>(i)])];
    const MPI_Status& status = r.statuses[static_cast<std::size_t>(i)];
    Exchange& exchange = *owner.exchange;
    const Message& message = exchange.messages_[owner.message];
    const int error = result == MPI_ERR_IN_STATUS ? status.MPI_ERROR : result;
    int received = owner.bytes;
    if (error == MPI_SUCCESS && message.way == Message::Way::receive) mpi.get_count(&status, mpi.byte, &received);
    if (error == MPI_ERR_TRUNCATE || received != owner.bytes) {
      fail(cat(exchange.operation_->text(), " does not match what rank ", message.rank,
               " sent: the ranks run different operations", context_of(*exchange.operation_)));
    }
    if (error != MPI_SUCCESS) {
      fail(cat(exchange.operation_->text(), " failed: MPI error ", error, " with rank ", message.rank,
               context_of(*exchange.operation_)));
    }
    --exchange.open_[owner.message];
    if (--exchange.total_open_ == 0) exchanged = true;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < r.requests.size(); ++i) {
    if (r.requests[i] == mpi.no_request) continue;
    r.requests[kept] = r.requests[i];
    r.owners[kept++] = r.owners[i];
  }
  r.requests.resize(kept);
  r.owners.resize(kept);
  if (exchanged) {
    std::erase_if(active_, [](const ExchangePtr& exchange) {
      if (exchange->total_open_ > 0) return false;
      exchange->finish();
      return true;
    });
  }
  return true;
}

std::string Service::context_of(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  return cat("; phase: ", *operation.phase, "; last done: ", last_done_ ? last_done_->text() : "nothing");
}

void Service::check_deadlines(Clock::time_point now) {
  frozen_.look(now);
  for (const ExchangePtr& exchange : active_) {
    const Operation& operation = *exchange->operation_;
    const double waited = seconds(now - operation.started - frozen_.since(operation.started));
    // Ranks in a deadlock all time out at once: the delay lets the lowest rank report and end the others, which takes
    // over 100 ms on a busy host.
    if (waited < operation.timeout_s + 0.2 * std::min(rank_, 20)) continue;
    std::vector<int> missing;
    for (std::size_t m = 0; m < exchange->messages_.size(); ++m) {
      if (exchange->open_[m] > 0) missing.push_back(exchange->messages_[m].rank);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    fail(cat(operation.text(), " waited ", std::llround(waited), " s for rank", missing.size() > 1 ? "s " : " ",
             rank_list(missing), context_of(operation)));
  }
}

void Service::report(const std::string& message) const {
  write_line(cat("rank ", rank_, ": ", message));
}

void Service::fail(const std::string& message) {
  report(message);
  abort(static_cast<int>(ExitCode::rank_failed));
}

void Service::abort(int code) {
  if (on_abort_) on_abort_(code);
  std::cout.flush();
  std::fflush(nullptr);
  if (std::this_thread::get_id() == thread_.get_id()) end_run(code);
  int none = -1;
  abort_code_.compare_exchange_strong(none, code);
  wake_.notify_all();
  std::this_thread::sleep_for(kAbortGrace);  // the thread ends the process during this time
  _exit(code);
}

void Service::end_run(int code) {
  try {
    std::thread([code] {
      std::this_thread::sleep_for(kAbortGrace);
      _exit(code);
    }).detach();
  } catch (const std::exception&) {
    // No thread, for example for lack of memory: exit at once, without MPI_Abort. The others detect the exit.
    _exit(code);
  }
  mpi_library().abort(mpi_library().world, code);
  _exit(code);
}

}  // namespace hawser::comm

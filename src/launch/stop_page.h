// `StopPage`: memory shared by the launcher and its ranks for stop requests and the start of ranks. A rank sees a
// request whenever it polls, even long after it was made. A signal could arrive before the rank, or mpirun, has a
// handler, and be lost or kill it. Internal to launch/.
#pragma once

#include <atomic>
#include <string>

namespace hawser {

struct StopPage {
  // Which side prints the last message of a stopped run: the first to claim it, and only that one.
  enum Side : char { none, of_ranks, of_launcher };

  std::atomic<bool> requested{false};
  std::atomic<int> started{0};  // ranks that have started MPI
  std::atomic<int> ended{0};    // ranks that have done their work
  std::atomic<Side> last_message{none};
  std::atomic<int> failure{0};  // of the first rank that failed: 1 + rank, times 256, plus its exit code

  void fail(int rank, int code) {
    int before = 0;
    failure.compare_exchange_strong(before, (rank + 1) * 256 + (code & 255));
  }

  // True if `by` holds the claim, from this call or an earlier one.
  bool claim(Side by) {
    Side had = none;
    return last_message.compare_exchange_strong(had, by) || had == by;
  }
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<StopPage::Side>::is_always_lock_free);

// The launcher's side: a file in the run's scratch folder.
class StopFile {
 public:
  explicit StopFile(const std::string& folder);  // throws UserError
  ~StopFile();
  StopFile(const StopFile&) = delete;
  StopFile& operator=(const StopFile&) = delete;

  const std::string& path() const { return path_; }
  StopPage& page() { return *page_; }

 private:
  std::string path_;
  StopPage* page_ = nullptr;
};

// The rank's side: maps the file; the mapping outlives the file. Null if there is no such file.
StopPage* open_stop_page(const char* path);

}  // namespace hawser

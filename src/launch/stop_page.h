// Memory that the launcher and its ranks share, by which it asks them to stop and they say that they have. A rank sees
// the request whenever it looks, be it long after it was made: a signal that comes before the rank, or mpirun, has a
// handler would be lost, or end it. Internal to launch/.
#pragma once

#include <atomic>
#include <string>

namespace hawser {

struct StopPage {
  // Who has the last word on a run that was asked to stop: the first of both to claim it, and only that one speaks.
  enum Word : char { unused_buffers, of_ranks, of_launcher };

  std::atomic<bool> requested{false};
  std::atomic<Word> last_word{unused_buffers};

  // True where `by` has it now, or had it before.
  bool claim(Word by) {
    Word had = unused_buffers;
    return last_word.compare_exchange_strong(had, by) || had == by;
  }
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<StopPage::Word>::is_always_lock_free);

// The launcher's side: a file of its own in the folder of a run.
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

// The rank's side. It stays when the file is gone. Null when there is no such file.
StopPage* open_stop_page(const char* path);

}  // namespace hawser

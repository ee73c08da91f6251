// What ranks say and what mpirun says, told apart. Ranks' standard error passes through; mpirun's own notices (dashed
// blocks, many lines each) are taken out and remembered, so that the launcher can say in one line what happened.
// Internal to launch/.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hawser {

// What mpirun said about the end of the run.
struct RankEnd {
  enum class Kind { killed, aborted, exited, vanished };  // a signal; MPI_Abort; exit(code); exit without MPI_Finalize
  Kind kind = Kind::exited;
  int rank = -1;
  int code = 0;        // the signal, or the exit code
  std::string signal;  // "Killed"
  std::string host;
};

class MpirunOutputFilter {
 public:
  // Takes bytes as they come; returns what is to be shown of them. Whole lines only, until flush().
  std::string feed(std::string_view bytes);
  // The part of a line that has come so far (a progress bar ends in no newline): call when nothing came for a while.
  std::string flush();
  // The end of the stream.
  std::string finish();

  // Before the launcher says something itself: was a line left without its end? Then it is ended by who asks.
  bool end_line() { return std::exchange(shown_in_part_, false); }

  const std::vector<RankEnd>& ends() const { return ends_; }
  // Notices of mpirun that say nothing about a rank's end, each as one line.
  const std::vector<std::string>& notices() const { return notices_; }
  // A rank has explained itself in a line "hawser: ...".
  bool explained() const { return !printed_.empty(); }

 private:
  std::string line(std::string text);
  void close_block();

  std::string pending_;         // of the line that has not ended
  bool shown_in_part_ = false;  // the beginning of this line was shown by flush()
  bool in_block_ = false;
  std::vector<std::string> block_;
  std::set<std::string> printed_;  // lines of ours, each shown once however many ranks say it
  bool waited_ = false;            // a rank has said that its time limit passed
  bool rejected_ = false;          // a rank has said that it was refused memory or a thread
  std::vector<RankEnd> ends_;
  std::vector<std::string> notices_;
};

}  // namespace hawser

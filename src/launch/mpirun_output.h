// `MpirunOutputFilter`: separates mpirun's notices from the ranks' standard error. The ranks' output passes through;
// mpirun's notices (blocks between dashed lines) are removed and stored, so that the launcher can print one line
// instead. Internal to launch/.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hawser {

// How a rank ended that could not report it itself (note_failed, stop.h), according to mpirun.
struct RankEnd {
  enum class Kind { killed, vanished };  // by a signal; exit without MPI_Finalize
  Kind kind = Kind::vanished;
  int rank = -1;
  int code = 0;        // the signal
  std::string signal;  // "Killed"
  std::string host;
};

class MpirunOutputFilter {
 public:
  // Processes new bytes; returns those to print. Only complete lines, until flush().
  std::string feed(std::string_view bytes);
  // The current incomplete line (a progress bar ends without a newline); call it when no input came for a while.
  std::string flush();
  // Call at the end of the stream.
  std::string finish();

  // True if the last line printed is incomplete; resets it. The launcher then prints a newline before its own message.
  bool end_line() { return std::exchange(shown_in_part_, false); }

  const std::vector<RankEnd>& ends() const { return ends_; }
  // Notices of mpirun that are not about a rank's end, each as one line.
  const std::vector<std::string>& notices() const { return notices_; }
  // True if a rank has printed its error in a line "hawser: ...".
  bool explained() const { return !printed_.empty(); }

 private:
  std::string line(std::string text);
  void close_block();

  std::string pending_;         // of the incomplete line
  bool shown_in_part_ = false;  // flush() has returned the start of the current line
  bool in_block_ = false;
  std::vector<std::string> block_;
  std::set<std::string> printed_;  // Hawser's messages: each is printed once, even if all ranks print it
  bool waited_ = false;            // a rank has reported a collective timeout
  bool rejected_ = false;          // a rank has reported that memory or a thread could not be allocated
  std::vector<RankEnd> ends_;
  std::vector<std::string> notices_;
};

}  // namespace hawser

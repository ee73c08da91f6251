#include "launch/mpirun_output.h"

#include <algorithm>
#include <cstring>
#include <regex>
#include <utility>

namespace hawser {
namespace {

constexpr std::size_t kDashes = 70;  // mpirun's separators have 74

// Messages of the MPI runtime about its own messages, and its errors while a run is being stopped.
bool droppable(const std::string& text) {
  static const std::regex kChatter(
      R"(^(mpirun: (Forwarding signal|killing job|abort is already).*)"
      R"(|\[[^\]]*:\d+\] (\d+ more process(es)? ha(s|ve) sent help message.*|Set MCA parameter .*)"
      R"(|\[\[\d+,\d+\],\d+\] ORTE_ERROR_LOG: .*|PMIX ERROR: .*|Read -1, expected \d+, errno = \d+))$)");
  return std::regex_match(text, kChatter);
}

// If one rank hangs, all ranks that wait for it time out: the first message is enough.
bool is_time_limit(const std::string& text) {
  static const std::regex kTimeLimit(R"(^hawser: rank \d+: .* waited \d+ s for ranks? .*)");
  return std::regex_match(text, kTimeLimit);
}

// Ranks with the same limits run out of memory at the same time, with different messages.
bool is_rejection(const std::string& text) {
  for (const char* begin :
       {"hawser: out of memory; ", "hawser: cannot create a thread ", "hawser: memory: cannot allocate "}) {
    if (text.starts_with(begin)) return true;
  }
  return false;
}

std::string one_line(const std::vector<std::string>& block) {
  std::string out;
  for (const std::string& text : block) {
    const auto first = text.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    out += (out.empty() ? "" : " ") + text.substr(first);
  }
  return out.size() > 300 ? out.substr(0, 297) + "..." : out;
}

std::optional<RankEnd> rank_end(const std::string& text) {
  static const std::regex kKilled(
      R"((?:mpirun|prterun) noticed that process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)(?: \(([^)]*)\))?)");
  static const std::regex kVanished(R"((?:mpirun|prterun) has exited due to process rank (\d+) .*exiting improperly)");
  std::smatch match;
  using Kind = RankEnd::Kind;
  if (std::regex_search(text, match, kKilled))
    return RankEnd{Kind::killed, std::stoi(match[1]), std::stoi(match[3]), match[4], match[2]};
  if (std::regex_search(text, match, kVanished)) return RankEnd{Kind::vanished, std::stoi(match[1])};
  return std::nullopt;
}

// Offset of a message that follows a progress bar on the same line (a bar ends by erasing the rest of its line); 0 if
// there is no bar.
std::size_t end_of_bar(const std::string& text) {
  for (const char* mark : {"\x1b[Khawser: ", "\x1b[Kmpirun: ", "\x1b[K["}) {
    if (const auto at = text.find(mark); at != std::string::npos) return at + std::strlen("\x1b[K");
  }
  return 0;
}

bool begins_a_message(const std::string& text) {
  return text.starts_with("hawser: ") || text.starts_with("mpirun: ");
}

std::size_t trailing_dashes(const std::string& text) {
  const auto last = text.find_last_not_of('-');
  return last == std::string::npos ? text.size() : text.size() - last - 1;
}

}  // namespace

void MpirunOutputFilter::close_block() {
  const std::string text = one_line(block_);
  block_.clear();
  if (const auto end = rank_end(text)) {
    ends_.push_back(*end);
  } else if (!text.empty() && !text.starts_with("Primary job") && std::ranges::find(notices_, text) == notices_.end()) {
    notices_.push_back(text);
  }
}

std::string MpirunOutputFilter::line(std::string text) {
  std::string shown;
  if (trailing_dashes(text) >= kDashes) {
    // The line may begin with an unfinished progress bar.
    const std::string before = text.substr(0, text.size() - trailing_dashes(text));
    if (!in_block_ && (!before.empty() || shown_in_part_)) shown = before + "\n";
    shown_in_part_ = false;
    if (in_block_) close_block();
    in_block_ = !in_block_;
    return shown;
  }
  if (in_block_) {
    block_.push_back(std::move(text));
    return "";
  }
  const std::string bar = text.substr(0, end_of_bar(text));
  text.erase(0, bar.size());
  if (!begins_a_message(text) && !droppable(text)) {
    shown_in_part_ = false;
    return bar + text + "\n";
  }
  const bool after_bar = shown_in_part_ || !bar.empty();
  shown_in_part_ = after_bar;
  if (droppable(text) || (text.starts_with("hawser: ") && !printed_.insert(text).second)) return bar;
  if (is_time_limit(text) && std::exchange(waited_, true)) return bar;
  if (is_rejection(text) && std::exchange(rejected_, true)) return bar;
  shown_in_part_ = false;
  return bar + (after_bar ? "\n" : "") + text + "\n";
}

std::string MpirunOutputFilter::feed(std::string_view bytes) {
  std::string shown;
  for (const char c : bytes) {
    if (c == '\0') continue;  // Open MPI 5 ends its last message with one
    if (c != '\n') {
      pending_ += c;
      continue;
    }
    std::string text;
    std::swap(text, pending_);
    shown += line(std::move(text));
  }
  return shown;
}

std::string MpirunOutputFilter::flush() {
  if (in_block_ || pending_.empty()) return "";
  // Wait for the end of a line that may become a separator or a message.
  if (trailing_dashes(pending_) > 0) return "";
  if (begins_a_message(pending_) || end_of_bar(pending_) > 0) return "";
  shown_in_part_ = true;
  std::string shown;
  std::swap(shown, pending_);
  return shown;
}

std::string MpirunOutputFilter::finish() {
  std::string shown;
  if (!pending_.empty()) {
    std::string text;
    std::swap(text, pending_);
    shown = line(std::move(text));
  }
  if (in_block_) close_block();
  in_block_ = false;
  return shown;
}

}  // namespace hawser

#include <algorithm>
#include <array>
#include <csignal>

#include "base/error.h"
#include "launch/local.h"
#include "launch/stop.h"

namespace hawser {
namespace {

constexpr int kInterrupted = static_cast<int>(ExitCode::interrupted);
constexpr int kRankFailed = static_cast<int>(ExitCode::rank_failed);

bool ours(int code) {
  static constexpr std::array kCodes = {0, 1, 2, 3, 4, 5, 6, 130};
  return std::ranges::find(kCodes, code) != kCodes.end();
}

std::string killed_line(const RankEnd& end) {
  std::string line = cat("rank ", end.rank, " was killed by signal ", end.code);
  if (!end.signal.empty()) line += " (" + end.signal + ")";
  if (end.code == SIGKILL) line += "; probably out of memory, unless it was killed on purpose";
  if (end.code == SIGBUS) line += "; /dev/shm or a disk may be full";
  return line;
}

const RankEnd* find(const std::vector<RankEnd>& ends, RankEnd::Kind kind) {
  const auto found = std::ranges::find(ends, kind, &RankEnd::kind);
  return found == ends.end() ? nullptr : &*found;
}

}  // namespace

Outcome outcome(const RunEnd& end) {
  using Kind = RankEnd::Kind;
  const RankEnd* killed = find(end.ends, Kind::killed);
  const RankEnd* gone = find(end.ends, Kind::vanished);
  if (end.interruption == Interruption::ended) return {kInterrupted, ""};  // the launcher has printed the message
  if (end.interruption == Interruption::asked) {
    // Signals from elsewhere may have killed the ranks before they saved; a crash while saving is still a crash.
    const bool by_us = killed == nullptr || killed->code == SIGUSR1 || killed->code == SIGTERM ||
                       killed->code == SIGINT || killed->code == SIGKILL;
    const bool saved = end.status == 0 || end.status == kInterrupted;
    const bool silent = end.ends.empty() && end.failure == 0;
    if (by_us && (saved || killed != nullptr || end.status > 128 || silent))
      return {end.status == 0 ? 0 : kInterrupted, saved ? "" : kEndedLine};
  }
  if (end.status == 0) return {0, ""};
  if (killed != nullptr) return {kRankFailed, killed_line(*killed)};
  if (gone != nullptr) return {kRankFailed, cat("rank ", gone->rank, " exited before the run ended")};
  const bool failed = end.failure != 0;
  const int code = failed ? end.failure % 256 : end.status;
  if (!failed && !end.started && !end.explained && !end.notices.empty()) return {1, "mpirun: " + end.notices.front()};
  if (!failed && code > 128 && !ours(code)) {
    return {kRankFailed, cat("the ranks were killed by signal ", code - 128)};
  }
  std::string line = cat("a rank exited with code ", code);
  if (failed) line = cat("rank ", end.failure / 256 - 1, " exited with code ", code);
  return {ours(code) ? code : kRankFailed, end.explained || code == kInterrupted ? "" : line};
}

}  // namespace hawser

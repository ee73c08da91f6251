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
  static constexpr std::array kCodes = {0, 1, 2, 3, 4, 5, 130};
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

Outcome outcome(int status, Interruption interruption, const std::vector<RankEnd>& ends,
                const std::vector<std::string>& notices, bool explained) {
  using Kind = RankEnd::Kind;
  const RankEnd* killed = find(ends, Kind::killed);
  if (interruption == Interruption::ended) return {kInterrupted, ""};  // the launcher has printed the message
  if (interruption == Interruption::asked) {
    // Signals from elsewhere may have killed the ranks before they saved; a crash while saving is still a crash.
    const bool by_us = killed == nullptr || killed->code == SIGUSR1 || killed->code == SIGTERM ||
                       killed->code == SIGINT || killed->code == SIGKILL;
    const bool saved = status == 0 || status == kInterrupted;
    if (by_us && (saved || killed != nullptr || status > 128 || ends.empty()))
      return {status == 0 ? 0 : kInterrupted, saved ? "" : kEndedLine};
  }
  if (status == 0) return {0, ""};
  if (killed != nullptr) return {kRankFailed, killed_line(*killed)};
  if (const RankEnd* gone = find(ends, Kind::vanished))
    return {kRankFailed, cat("rank ", gone->rank, " exited before the run ended")};
  if (const RankEnd* aborted = find(ends, Kind::aborted)) {
    const bool known = ours(aborted->code) && aborted->code != 0;
    const std::string line = cat("rank ", aborted->rank, " aborted the run with code ", aborted->code);
    return {known ? aborted->code : kRankFailed, explained && known ? "" : line};
  }
  if (const RankEnd* exited = find(ends, Kind::exited)) {
    const std::string line = cat("rank ", exited->rank, " exited with code ", exited->code);
    return {ours(exited->code) ? exited->code : kRankFailed, explained || exited->code == kInterrupted ? "" : line};
  }
  if (!notices.empty()) return {1, "mpirun: " + notices.front()};
  if (status > 128 && !ours(status)) return {kRankFailed, cat("the ranks were killed by signal ", status - 128)};
  return {ours(status) ? status : kRankFailed, explained ? "" : cat("mpirun exited with code ", status)};
}

}  // namespace hawser

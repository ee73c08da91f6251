// `PolicyCandidates`: the checkpointing policies that a layout may mix, and the fastest mix within a number of bytes.
//
// The estimate is linear. A block's policy determines the bytes that the block saves from forward to backward, and the
// time of its backward. At the peak (in the head, or the first instructions of backward) the saved bytes of all blocks
// are live; times add up:
//   needed(mix)  = needed(lightest policy in all blocks) - sum over blocks of (kept(lightest) - kept(block's policy))
//   seconds(mix) = sum over blocks of seconds(block's policy in all blocks) / blocks
// The lightest policy of a mix is the one that saves most. Forecaster::choose plans a mix completely before it is used.
#pragma once

#include <optional>
#include <vector>

#include "plan/layout.h"

namespace hawser::plan {

// One policy in all blocks.
struct PolicyCandidate {
  Checkpointing policy = Checkpointing::none;
  double kept = 0;     // bytes that a block saves from forward to backward
  double needed = 0;   // bytes of a rank
  double seconds = 0;  // of a step
};

// The distinct policies under a layout, in descending order of saved bytes, with `kept` set.
std::vector<PolicyCandidate> list_policy_candidates(const Layout& layout, const models::Model& model);

struct Mix {
  std::vector<int> counts;  // blocks of each candidate
  double needed = 0, seconds = 0;
  friend bool operator==(const Mix& a, const Mix& b) { return a.counts == b.counts; }
};

class PolicyCandidates {
 public:
  // Removes candidates for which another one is faster, saves no more and needs no more. `candidates`: the result of
  // list_policy_candidates, with `needed` and `seconds` set.
  PolicyCandidates(std::vector<PolicyCandidate> candidates, int blocks);

  const std::vector<PolicyCandidate>& candidates() const { return candidates_; }
  // The fastest mix that needs at most `budget` bytes by the estimate; nullopt if there is none. With `light`: among
  // mixes whose lightest candidate is this one (the policy of the last block).
  std::optional<Mix> fastest(double budget) const;
  std::optional<Mix> fastest(double budget, std::size_t light) const;
  // Estimated needs and time of a mix with these counts.
  Mix mix(std::vector<int> counts) const;
  Mix uniform(std::size_t candidate) const;
  // Mixes with an estimated time below that of `from` that differ from it in the policy of one or two blocks, by
  // ascending estimated memory.
  std::vector<Mix> faster_neighbours(const Mix& from) const;
  // One policy per block. Those that save least come first: their backward runs last, when few blocks' saved
  // activations are live alongside what they recompute.
  std::vector<Checkpointing> list(const Mix& mix) const;

 private:
  struct Search;
  std::vector<PolicyCandidate> candidates_;
  int blocks_;
};

}  // namespace hawser::plan

// Which checkpointing policies a setting could mix, and the fastest mix within a number of bytes, by a simple model.
//
// The model: a block's policy decides what the block keeps from forward to backward, and how long its backward takes.
// At the peak (the head, or the first rows of backward) what all blocks keep is there; seconds add up. So a mix needs
// what its lightest policy needs in all blocks, less what its heavier ones keep less, and takes its blocks' shares of
// each policy's own step. It is a sketch: whoever uses a mix plans it whole (Forecaster::choose).
#pragma once

#include <optional>
#include <vector>

#include "plan/layout.h"

namespace hawser::plan {

// One policy in all blocks.
struct PolicyCandidate {
  Checkpointing policy = Checkpointing::none;
  double kept = 0;     // bytes that a block keeps from forward to backward
  double needed = 0;   // bytes of a rank
  double seconds = 0;  // of a step
};

// Policies that differ under a layout, what keeps most first; `candidates` of each has its `kept`.
std::vector<PolicyCandidate> list_policy_candidates(const Layout& layout, const models::Model& model);

struct Mix {
  std::vector<int> counts;  // blocks of each candidate
  double needed = 0, seconds = 0;
  friend bool operator==(const Mix& a, const Mix& b) { return a.counts == b.counts; }
};

class PolicyCandidates {
 public:
  // Candidates that keep less than another and still take longer to no end (another one is faster and needs less) are left
  // out. `candidates` as list_policy_candidates gives them, with what each needs and takes.
  PolicyCandidates(std::vector<PolicyCandidate> candidates, int blocks);

  const std::vector<PolicyCandidate>& candidates() const { return candidates_; }
  // The fastest mix that needs at most `budget` bytes by the model; nothing where there is none. With `light`: of those
  // whose lightest candidate, that of the last block, is this one.
  std::optional<Mix> fastest(double budget) const;
  std::optional<Mix> fastest(double budget, std::size_t light) const;
  // What these counts need and take by the model.
  Mix mix(std::vector<int> counts) const;
  Mix uniform(std::size_t candidate) const;
  // Mixes that the model takes to be faster than `from` and that differ from it in the policy of one or two blocks;
  // what needs least by the model first.
  std::vector<Mix> faster_neighbours(const Mix& from) const;
  // A policy a block. Those that keep least come first: their backward comes last, when what they make again lies
  // beside what few blocks keep.
  std::vector<Checkpointing> list(const Mix& mix) const;

 private:
  struct Search;
  std::vector<PolicyCandidate> candidates_;
  int blocks_;
};

}  // namespace hawser::plan

// `PolicyCandidates`: the checkpointing policies that a layout may mix, and the fastest mix within a number of bytes.
//
// A mix assigns a policy to each block. A block's policy p determines the bytes S(p) that the block stores from forward
// to backward, and the time of its backward. A policy that recomputes less stores more. Let M(p) be the bytes that a
// rank needs, and T(p) the seconds of a step, with policy p in every block. The estimate for a mix with policy p_b in
// block b, where r is the policy of the mix that recomputes least (stores most):
//   needed_bytes(mix) = M(r) - sum over blocks b of (S(r) - S(p_b))
//   seconds(mix)      = mean over blocks b of T(p_b)
// The sum holds because the stored bytes of all blocks are live at the peak, which is in the head or in the first
// instructions of backward. It does not know that an offloaded block is on the device around its passes, nor the mean
// that copies of few blocks may be hidden where those of all are not. Forecaster::choose plans a mix completely before
// it is used.
#pragma once

#include <optional>
#include <vector>

#include "plan/candidate.h"

namespace hawser::plan {

// A policy, and its costs with this policy in every block.
struct PolicyCandidate {
  BlockPolicy policy;
  // S: bytes that a block stores on the device from forward to backward, for all micro-batches of which the schedule
  // stores them at a time; the mean over the blocks. With pipeline stages, what the stage that stores the most has,
  // divided by the blocks of the model: with another policy in all blocks a rank needs the difference times their
  // number. The inputs of all layers are not counted; S is negative where they are not stored, with offload or
  // Checkpointing::block.
  double stored_bytes = 0;
  double needed_bytes = 0;  // M: all device memory that a rank needs (Forecast::needed)
  double seconds = 0;       // T: of a step
  double host_bytes = 0;    // that a block stores in host memory, as stored_bytes
};

// The policies that store different numbers of bytes under a layout, in descending order of stored_bytes: the one that
// recomputes least is first. `offload`: all with offload, or none, or each of them without and with it (nullopt). They
// delay weight gradients if the layout does. Only `policy` and the bytes of a block are set.
std::vector<PolicyCandidate> list_policy_candidates(const Layout& layout, const models::Model& model,
                                                    std::optional<bool> offload = false);

struct Mix {
  std::vector<int> counts;               // number of blocks with each candidate
  double needed_bytes = 0, seconds = 0;  // estimates
  friend bool operator==(const Mix& a, const Mix& b) { return a.counts == b.counts; }
};

class PolicyCandidates {
 public:
  // `candidates`: the result of list_policy_candidates, with `needed_bytes` and `seconds` set. Those for which another
  // one is faster, stores no more bytes, here and in host memory, and needs no more bytes are removed. `blocks`: of the
  // model.
  PolicyCandidates(std::vector<PolicyCandidate> candidates, int blocks);

  // The candidates that are left; the indices and counts below refer to them.
  const std::vector<PolicyCandidate>& candidates() const { return candidates_; }
  // The fastest mix with needed_bytes <= budget; nullopt if there is none.
  std::optional<Mix> fastest(double budget) const;
  // The same among mixes in which the candidate with index `least_recompute` recomputes least. The mixes contain it; it
  // comes last in list().
  std::optional<Mix> fastest(double budget, std::size_t least_recompute) const;
  // The mix with these counts, with its estimates.
  Mix mix(std::vector<int> counts) const;
  // The mix with one candidate in every block.
  Mix uniform(std::size_t candidate) const;
  // Mixes that are faster than `from` and differ from it in the policy of one or two blocks, in ascending order of
  // needed_bytes.
  std::vector<Mix> faster_neighbours(const Mix& from) const;
  // The policy of each block. The first blocks get the policies that recompute most (store least): their backward runs
  // last, when few blocks' stored activations are live alongside the recomputed ones.
  std::vector<BlockPolicy> list(const Mix& mix) const;

 private:
  struct Search;
  std::vector<PolicyCandidate> candidates_;
  int blocks_;
};

}  // namespace hawser::plan

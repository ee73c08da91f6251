// `DoesNotFit`: a session needs more memory than a rank may use, or its ranks more than their machine has. Ranks
// compare what each needs before any of them reserves memory, and all of them throw it at the same point. So a caller
// may catch it and continue, on every rank alike. Any other Error(does_not_fit), such as that of a failed allocation,
// may be thrown on one rank alone.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "comm/mpi/world.h"

namespace hawser::engine {

class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(const std::string& message) : Error(ExitCode::does_not_fit, message) {}
};

// What a rank is about to reserve.
struct RankNeed {
  std::string too_large;                  // what does not fit on this rank alone, if anything
  std::int64_t pinned = 0;                // bytes of host memory
  std::optional<Bytes> machine_has = {};  // of host memory for all ranks of this machine, if it is limited
  std::string hint = {};                  // what to do if the host memory is short, besides fewer ranks on a machine
};

// Why the ranks do not fit, the message of DoesNotFit, equal on all ranks; "" if they fit. Collective over `ranks`.
std::string reason_against(comm::Channel* ranks, const RankNeed& need);

// Throws DoesNotFit on every rank if one rank has `too_large`, or if the ranks of a machine together pin more than the
// smallest `machine_has` of them. Collective over `ranks`, null for a rank alone.
void expect_fits(comm::Channel* ranks, const RankNeed& need);

}  // namespace hawser::engine

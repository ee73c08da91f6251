// For tests of the checker: plans with a mistake.
#pragma once

#include "plan/shared_plan.h"

namespace hawser::testing {

// Whether the checker rejects the plan of one rank after item `wait` of its trace, a wait for an event, is removed.
inline bool rejected_without_wait(plan::RankPlan plan, std::size_t wait) {
  TraceItem& item = plan.trace.items[wait];
  item.kind = TraceItem::Kind::record_event;  // an unused event: keeps the indices
  item.target = -1;
  try {
    plan::check_plans({&plan}, {0});
  } catch (const InternalError&) {
    return true;
  }
  return false;
}

}  // namespace hawser::testing

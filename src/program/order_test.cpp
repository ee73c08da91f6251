#include "program/order.h"

#include <gtest/gtest.h>

#include "program/testing/reachability.h"
#include "program/testing/traces.h"

namespace hawser::program {
namespace order_test {

using testing::Reachability;
using testing::Recorder;

TEST(Order, EqualsReachabilityOnRandomTraces) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const auto recorder = testing::random_trace(seed, 1 + static_cast<int>(seed % 6), 150, 20);
    const Order order(recorder->trace());
    const Reachability truth(recorder->trace());
    const int count = static_cast<int>(recorder->trace().items.size());
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < count; ++b) {
        ASSERT_EQ(order.before(a, b), truth.before(a, b)) << "seed " << seed << ", items " << a << " and " << b;
      }
    }
  }
}

TEST(Order, EventsCarryTheirStreamsClock) {
  Recorder r({"a", "b", "c"});
  r.launch(0, {.name = "first", .kind = OpKind::copy});
  r.after(1, 0);
  r.after(2, 1);
  r.launch(2, {.name = "last", .kind = OpKind::copy});
  const Order order(r.trace());
  const int last = static_cast<int>(r.trace().items.size()) - 1;
  EXPECT_TRUE(order.before(0, last));
  EXPECT_FALSE(order.before(last, 0));
  EXPECT_FALSE(order.before(last, last));
}

TEST(Order, RejectsAWaitForALaterItem) {
  Trace trace;
  trace.streams = {"a"};
  trace.items.push_back({.kind = TraceItem::Kind::wait, .target = 1});
  trace.items.push_back({.kind = TraceItem::Kind::record_event});
  EXPECT_THROW(const Order order(trace), InternalError);
}

}  // namespace order_test
}  // namespace hawser::program

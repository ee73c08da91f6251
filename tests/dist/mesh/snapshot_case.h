// A snapshot of a run whose state is partly in host memory.
#pragma once

#include <chrono>
#include <thread>

#include "toy_training.h"
#include "train/snapshot.h"

namespace hawser::testing {

// The elements that this rank has of each state.
inline Tensors elements_of(const std::vector<NamedState>& states) {
  Tensors elements;
  for (const NamedState& state : states) {
    for (const Box& box : state.boxes) {
      const std::vector<float> part = floats_of(box.view);
      elements[state.name].insert(elements[state.name].end(), part.begin(), part.end());
    }
  }
  return elements;
}

// The copies of a snapshot are those of the step that it was taken after, although they begin when later steps would
// have overwritten the state. Run: has session() and enqueue(step).
template <class Run>
void expect_snapshot_of_its_step(Run& run) {
  const auto now = [&] {
    engine::HostCopy copy(run.session());
    copy.fetch();
    return elements_of(copy.states());
  };
  for (const std::int64_t which : {0, 1}) run.enqueue(which);
  const Tensors expected = now();
  train::Snapshot snapshot(run.session(), {}, 1000);  // smaller than its tensors
  const auto late = run.session().device().make_stream("late");
  late->launch({.name = "sleep", .kind = OpKind::host},
               [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  snapshot.take(late->record_event());
  for (const std::int64_t which : {2, 3}) run.enqueue(which);
  snapshot.wait();
  run.session().synchronize();
  EXPECT_TRUE(same_bits(elements_of(snapshot.states()), expected));
  EXPECT_FALSE(same_bits(now(), expected));
}

}  // namespace hawser::testing

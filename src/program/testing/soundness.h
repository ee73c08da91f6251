// `expect_sound`: whether a placement is right, from reachability between all pairs of accesses; slow.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/units.h"
#include "device/device.h"
#include "program/testing/reachability.h"

namespace hawser::program::testing {

inline std::int64_t aligned(const Buffer& buffer) {
  return round_up(buffer.bytes, Device::kAlignment);
}

// The pairs of buffers that may not share bytes, from reachability between all pairs of accesses.
inline std::vector<std::vector<bool>> conflicts_of(const Trace& trace, const std::vector<Buffer>& buffers) {
  const Reachability truth(trace);
  const auto accesses = accesses_of(trace, buffers);
  const std::size_t n = buffers.size();
  std::vector<std::vector<bool>> ordered(n, std::vector<bool>(n, true));  // all accesses of a before all of b
  std::vector<bool> used(n, false);
  for (const auto& a : accesses) {
    used[static_cast<std::size_t>(a.buffer)] = true;
    for (const auto& b : accesses) {
      if (!truth.before(a.item, b.item)) {
        ordered[static_cast<std::size_t>(a.buffer)][static_cast<std::size_t>(b.buffer)] = false;
      }
    }
  }
  std::vector<std::vector<bool>> out(n, std::vector<bool>(n, false));
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) out[a][b] = used[a] && used[b] && a != b && !ordered[a][b] && !ordered[b][a];
  }
  return out;
}

// Each two buffers that conflict have no byte in common, and the peak is a lower bound.
inline void expect_sound(const Trace& trace, const std::vector<Buffer>& buffers, const Placement& placement) {
  const auto conflict = conflicts_of(trace, buffers);
  std::set<int> used;
  for (const auto& access : accesses_of(trace, buffers)) used.insert(access.buffer);
  const int n = static_cast<int>(buffers.size());
  ASSERT_EQ(placement.offsets.size(), buffers.size());
  const auto at = [&](int b) { return placement.offsets[static_cast<std::size_t>(b)]; };
  const auto end = [&](int b) { return at(b) + buffers[static_cast<std::size_t>(b)].bytes; };
  std::int64_t top = 0;
  for (int a = 0; a < n; ++a) {
    const bool placed = used.count(a) > 0 && buffers[static_cast<std::size_t>(a)].space != Space::persistent;
    ASSERT_EQ(at(a) >= 0, placed) << buffers[static_cast<std::size_t>(a)].name;
    if (!placed) continue;
    ASSERT_EQ(at(a) % Device::kAlignment, 0);
    ASSERT_LE(end(a), placement.bytes);
    top = std::max(top, at(a) + aligned(buffers[static_cast<std::size_t>(a)]));
    for (int b = 0; b < a; ++b) {
      if (at(b) < 0 || !conflict[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]) continue;
      ASSERT_TRUE(end(a) <= at(b) || end(b) <= at(a))
          << buffers[static_cast<std::size_t>(a)].name << " over " << buffers[static_cast<std::size_t>(b)].name;
    }
  }
  EXPECT_EQ(top, placement.bytes);
  // live_bytes is a lower bound: all pairs of its buffers conflict.
  std::int64_t live = 0;
  for (const int a : placement.peak_buffers) {
    live += aligned(buffers[static_cast<std::size_t>(a)]);
    for (const int b : placement.peak_buffers) {
      ASSERT_TRUE(a == b || conflict[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]);
    }
  }
  EXPECT_EQ(live, placement.live_bytes);
  EXPECT_GE(placement.bytes, placement.live_bytes);
}

}  // namespace hawser::program::testing

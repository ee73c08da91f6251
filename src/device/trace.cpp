#include "device/trace.h"

#include <algorithm>

namespace hawser {

bool overlap(const Access& a, const Access& b) {
  if (a.row_bytes == 0 || b.row_bytes == 0 || a.rows == 0 || b.rows == 0) return false;
  if (a.end() <= b.address || b.end() <= a.address) return false;
  if (a.rows > 1 && b.rows > 1 && a.stride == b.stride) {
    // Equal strides: compare the column ranges, with b's start relative to a's row. A row that crosses the end of the
    // period also meets the next row, so both neighbours are tested.
    const auto period = static_cast<std::int64_t>(a.stride);
    const auto distance = static_cast<std::int64_t>(b.address) - static_cast<std::int64_t>(a.address);
    const std::int64_t column = ((distance % period) + period) % period;
    return column < a.row_bytes || column + b.row_bytes > period;
  }
  return true;
}

const char* to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::none:
      return "none";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::all_to_all_v:
      return "all_to_all_v";
    case CollectiveKind::broadcast:
      return "broadcast";
    case CollectiveKind::send:
      return "send";
    case CollectiveKind::receive:
      return "receive";
    case CollectiveKind::exchange:
      return "exchange";
    case CollectiveKind::barrier:
      return "barrier";
  }
  return "?";
}

}  // namespace hawser

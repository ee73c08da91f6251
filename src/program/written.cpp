#include "program/written.h"

#include <algorithm>

namespace hawser::program {

namespace {

// Rows [row, row_end) x columns [column, column_end) of the buffer, viewed as a matrix with rows of `period` bytes.
struct Tile {
  std::int64_t row, row_end, column, column_end;
  bool empty() const { return row >= row_end || column >= column_end; }
};

bool one_run(const Access& access) {
  return access.rows == 1 || access.stride == access.row_bytes;
}

std::vector<Tile> tiles_of(const Access& access, std::uint64_t buffer, std::int64_t period) {
  const auto begin = static_cast<std::int64_t>(access.address - buffer);
  const std::int64_t column = begin % period;
  if (!one_run(access) && access.stride == period && column + access.row_bytes <= period) {
    return {{begin / period, begin / period + access.rows, column, column + access.row_bytes}};
  }
  const auto end = static_cast<std::int64_t>(access.end() - buffer);
  const std::int64_t first = begin / period, last = end / period;
  if (first == last) return {{first, first + 1, column, end % period}};
  return {{first, first + 1, column, period}, {first + 1, last, 0, period}, {last, last + 1, 0, end % period}};
}

// The tiles minus `cut`.
std::vector<Tile> without(const std::vector<Tile>& tiles, const Tile& cut) {
  std::vector<Tile> out;
  for (const Tile& t : tiles) {
    const Tile common{std::max(t.row, cut.row), std::min(t.row_end, cut.row_end), std::max(t.column, cut.column),
                      std::min(t.column_end, cut.column_end)};
    if (common.empty()) {
      out.push_back(t);
      continue;
    }
    for (const Tile& rest :
         {Tile{t.row, common.row, t.column, t.column_end}, Tile{common.row_end, t.row_end, t.column, t.column_end},
          Tile{common.row, common.row_end, t.column, common.column},
          Tile{common.row, common.row_end, common.column_end, t.column_end}}) {
      if (!rest.empty()) out.push_back(rest);
    }
  }
  return out;
}

bool same(const Access& a, const Access& b) {
  return a.address == b.address && a.row_bytes == b.row_bytes && a.rows == b.rows && a.stride == b.stride;
}

}  // namespace

void Written::add(const Access& write) {
  if (write.row_bytes == 0 || write.rows == 0) return;
  for (const Access& other : writes_) {
    if (same(other, write) || (one_run(other) && other.address <= write.address && write.end() <= other.end())) return;
  }
  writes_.push_back(write);
}

bool Written::covers(const Access& read) const {
  if (read.row_bytes == 0 || read.rows == 0) return true;
  std::int64_t period = one_run(read) ? 0 : read.stride;
  for (const Access& write : writes_) {
    if (one_run(write) && write.address <= read.address && read.end() <= write.end()) return true;
    if (period == 0 && !one_run(write)) period = write.stride;
  }
  // All accesses are contiguous: one row holds them all.
  if (period == 0) {
    for (const Access& write : writes_) period = std::max(period, static_cast<std::int64_t>(write.end() - buffer_));
    period = std::max(period, static_cast<std::int64_t>(read.end() - buffer_)) + 1;
  }
  std::vector<Tile> left = tiles_of(read, buffer_, period);
  std::erase_if(left, [](const Tile& tile) { return tile.empty(); });
  for (const Access& write : writes_) {
    for (const Tile& tile : tiles_of(write, buffer_, period)) left = without(left, tile);
    if (left.empty()) return true;
  }
  return left.empty();
}

}  // namespace hawser::program

// `ShortTrace`: a trace without most of the repetitions of the part of it that repeats, such as the micro-batches of a
// step. place() places the buffers of the short trace, repeats their offsets in the repetitions that were left out, and
// then checks the offsets of all buffers against the accesses of the complete trace.
//
// An item repeats the item `period` items before it if both have the same stream and record, wait for items at the same
// distance, and access the same ranges of buffers of equal sizes. The period is found, not given: it may be one
// micro-batch, or several (micro-batches in flight together), or one layer of a step that saves nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/trace.h"
#include "program/placement.h"

namespace hawser::program {

// Items [begin, begin + count * period) of a trace: each but the first `period` repeats an earlier one.
struct Repetition {
  std::size_t begin = 0, period = 0, count = 0;
};

// Repetitions that a short trace keeps: of those before the cut the first few may have other offsets than the rest;
// those after it keep the items that depend on the end.
constexpr std::size_t kKeptBefore = 4, kKeptAfter = 2;
// The last repetitions before the cut whose offsets are repeated: one or two. So an even number is left out.
constexpr std::size_t kMaxTile = 2;

// The repetition whose middle has the most items that a short trace can leave out; none if these are less than half of
// the trace.
std::optional<Repetition> find_repetition(const Trace& trace, const Lifetimes& lifetimes,
                                          const std::vector<Buffer>& buffers);

class ShortTrace {
 public:
  // None if the trace has no repetition, if buffers live longer than two repetitions and end in one that was left out,
  // or if an item after the cut accesses or waits for what was left out and has no counterpart before the cut. The
  // arguments outlive this.
  static std::optional<ShortTrace> make(const Trace& trace, const Lifetimes& lifetimes,
                                        const std::vector<Buffer>& buffers);

  // Its items access the same `buffers`, except those that are first accessed in an item that was left out.
  const Trace& trace() const { return short_; }
  // The index in the complete trace of an item of the short one.
  int item(int short_item) const { return short_item < begin_ ? short_item : short_item + left_out_; }
  // Gives each buffer of the space that is first accessed in an item left out the offset of its counterpart in the last
  // `tile` repetitions before the cut. False if one has no counterpart there.
  bool repeat_offsets(std::vector<std::int64_t>& offsets, std::size_t tile, Space space) const;

 private:
  ShortTrace(const Trace& trace, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers);
  bool cut(const Repetition& repetition);
  bool lives_repeat() const;
  bool shorten(TraceItem& item, std::size_t index) const;
  // The buffer whose first access is at the same place of `item` as that of `buffer` in its own first item.
  std::optional<int> counterpart(int buffer, std::size_t item) const;

  const Trace& complete_;
  const Lifetimes& lifetimes_;
  const std::vector<Buffer>& buffers_;
  int begin_ = 0, left_out_ = 0, period_ = 0;  // in items
  Trace short_;
};

// True if each two of the placed buffers that share bytes are ordered.
bool shares_in_order(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
                     const std::vector<std::int64_t>& offsets, const std::vector<int>& used);

}  // namespace hawser::program

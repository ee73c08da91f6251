#include "ops/attention/attention_cpu.h"

namespace hawser::ops::cpu {

namespace {

void check_disjoint_keys(const char* op, std::vector<Segment> segments) {
  std::erase_if(segments, [](const Segment& segment) { return segment.k_count == 0; });
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.k_begin < b.k_begin; });
  for (std::size_t s = 1; s < segments.size(); ++s) {
    HAWSER_CHECK(segments[s - 1].k_begin + segments[s - 1].k_count <= segments[s].k_begin, op, ": key row ",
                 segments[s].k_begin, " is in two segments, but the form requires disjoint keys");
  }
}

// The guarantees on a segment of a call with a window and without a causal mask.
void check_window(const char* op, const AttentionCall& args, const Segment& segment, bool first_half) {
  if (args.window == 0 || args.causal) return;
  const std::int64_t distance = segment.q_position - segment.k_position;
  HAWSER_CHECK(args.blocks.empty() || distance == segment.k_count, op, ": query row ", segment.q_begin,
               ": the keys of a block with a window must end where the queries begin");
  if (!args.window_halves) return;
  HAWSER_CHECK(segment.q_count < args.window && segment.k_count < args.window &&
                   (first_half ? distance == args.window - 1 : distance + segment.q_count <= args.window),
               op, ": query row ", segment.q_begin, ": window_halves does not hold");
}

bool is_inside(const Segment& segment, const StridedBlocks& blocks, bool causal) {
  const std::int64_t step = std::max<std::int64_t>(blocks.q_step, 1), from = segment.q_begin - blocks.q_begin;
  if (from < 0 || from % step != 0 || from / step >= blocks.count) return false;
  return segment.k_begin == blocks.k_begin + from / step * blocks.k_step && segment.q_count <= blocks.q_rows &&
         (causal ? segment.k_count <= blocks.k_rows : segment.k_count == blocks.k_rows);
}

}  // namespace

std::vector<Segment> read_segments(const char* op, const AttentionCall& args) {
  const std::int64_t n = *args.segment_count.data<std::int32_t>(), table = args.segments.size(0);
  const std::int64_t query_rows = args.q.size(0), key_rows = args.k.size(0);
  const std::vector<StridedBlocks>& blocks = args.blocks;
  HAWSER_CHECK(n >= 0 && n <= table, op, ": ", n, " segments in a table of ", table);
  std::vector<Segment> out;
  const auto* row = args.segments.data<std::int32_t>();
  for (std::int64_t s = 0; s < n; ++s, row += kSegmentFields) {
    const Segment segment{row[0], row[1], row[2], row[3], row[4], row[5]};
    HAWSER_CHECK(segment.q_begin >= 0 && segment.q_count >= 0 && segment.q_begin + segment.q_count <= query_rows &&
                     segment.k_begin >= 0 && segment.k_count >= 0 && segment.k_begin + segment.k_count <= key_rows,
                 op, ": segment ", s, " is outside the ", query_rows, " query rows and ", key_rows, " key rows");
    if (args.form == SegmentForm::diagonal) {
      HAWSER_CHECK(segment.q_count == segment.k_count && segment.q_position == segment.k_position, op, ": segment ", s,
                   " is not a diagonal block, but form is diagonal");
    }
    if (!blocks.empty()) {
      HAWSER_CHECK(std::any_of(blocks.begin(), blocks.end(),
                               [&](const StridedBlocks& b) { return is_inside(segment, b, args.causal); }),
                   op, ": segment ", s, " is in none of the blocks: query rows ", segment.q_begin, " + ",
                   segment.q_count, ", key rows ", segment.k_begin, " + ", segment.k_count);
    }
    if (segment.q_count > 0) check_window(op, args, segment, 2 * s < table);
    if (segment.q_count > 0) out.push_back(segment);
  }
  std::sort(out.begin(), out.end(), [](const Segment& a, const Segment& b) { return a.q_begin < b.q_begin; });
  for (std::size_t s = 1; s < out.size(); ++s) {
    HAWSER_CHECK(out[s - 1].q_begin + out[s - 1].q_count <= out[s].q_begin, op, ": query row ", out[s].q_begin,
                 " is in two segments");
  }
  if (args.form != SegmentForm::any) check_disjoint_keys(op, out);
  return out;
}

Band band_of(const Segment& segment, bool causal, std::int64_t window, std::int64_t row, std::int64_t key,
             std::int64_t keys) {
  constexpr std::int64_t kOutOfReach = std::int64_t{1} << 40;
  const std::int64_t position = segment.q_position + row - segment.k_position;  // of row 0, as a key index
  return {.first = std::max<std::int64_t>(0, -key),
          .last = std::min(keys, segment.k_count - key),
          .low = window > 0 ? position - window + 1 - key : -kOutOfReach,
          .high = causal ? position + 1 - key : kOutOfReach};
}

ScoreChange change_of(const AttentionCall& args, std::int64_t head, const Segment& segment, std::int64_t row,
                      std::int64_t key) {
  constexpr double kLog2e = 1.4426950408889634;
  ScoreChange out{.cap = static_cast<float>(args.softcap * kLog2e)};
  if (args.slopes.empty()) return out;
  const std::int64_t distance = segment.q_position + row - segment.k_position - key;
  out.slope = static_cast<float>(args.slopes.data<float>()[head] * kLog2e);
  out.distance = static_cast<float>(distance);
  return out;
}

}  // namespace hawser::ops::cpu

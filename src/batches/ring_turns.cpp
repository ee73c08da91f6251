#include "batches/ring_turns.h"

#include <algorithm>

namespace hawser::batches {

double imbalance_of_turns(const BatchShape& shape, const std::vector<std::int32_t>& document_lengths) {
  const int ring = shape.ring();
  const ChunkTable table =
      shape.split == SequenceSplit::zigzag
          ? make_zigzag(shape.padded_length(), ring)
          : deal_by_work(shape.padded_length(), document_lengths, ring, shape.chunks_per_rank, {}, shape.together);
  const bool join = !shape.equal_chunks();
  std::vector<double> most(static_cast<std::size_t>(ring), 0);
  double sum = 0;
  for (int rank = 0; rank < ring; ++rank) {
    std::vector<double> turns(most.size(), 0);  // in turn t a rank has the keys of the rank t before it
    for (const Segment& s : make_segments({&table, 1}, {&document_lengths, 1}, rank, join).diagonal) {
      turns[0] += static_cast<double>(s.q_count) * (s.q_count + 1) / 2;
    }
    const auto by_source = segments_by_source({&table, 1}, {&document_lengths, 1}, rank, {}, join, false);
    for (int source = 0; source < ring; ++source) {
      const WindowSegments& segments = by_source[static_cast<std::size_t>(source)];
      double& turn = turns[static_cast<std::size_t>((rank - source + ring) % ring)];
      for (const auto* list : {&segments.complete, &segments.band}) {
        for (const Segment& s : *list) turn += static_cast<double>(s.q_count) * s.k_count;
      }
    }
    for (std::size_t t = 0; t < most.size(); ++t) most[t] = std::max(most[t], turns[t]), sum += turns[t];
  }
  double turns = 0;
  for (const double pairs : most) turns += pairs;
  return sum > 0 ? turns / (sum / ring) : 1;
}

}  // namespace hawser::batches

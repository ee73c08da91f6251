// The tables of TwoLevelExchange (support/two_level_exchange.h), for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "comm/group.h"
#include "nn/seams.h"
#include "ops/copy/permute_rows.h"

namespace hawser::testing {

// N nodes of M ranks, and this rank's node. Part n * M + m of the experts is on rank m of node n.
struct Nodes {
  using Sizes = nn::TokenExchange::Sizes;
  std::int64_t nodes = 1, places = 1, own = 0;

  // The most rows that this rank sends to all nodes; that arrive in the middle; and that it sends to experts, of a
  // piece. The bounded ones are as many as this rank's own on average.
  std::int64_t leaving_rows(const Sizes& s) const { return s.tokens * std::min(s.per_token, nodes); }
  std::int64_t middle_rows(const Sizes& s) const {
    return bounded(s, s.tokens * nodes, static_cast<double>(leaving_rows(s)));
  }
  std::int64_t copied_rows(const Sizes& s) const {
    return bounded(s, nodes * s.tokens * std::min(s.per_token, places * s.piece_experts()),
                   static_cast<double>(s.tokens * s.per_token) / s.options.pieces);
  }
  std::int64_t node_of(const Sizes& s, std::int32_t expert) const { return expert / s.local_experts / places; }
  // Whether a token with these K experts, negative ones for none, goes to a node.
  bool visits(const Sizes& s, const std::int32_t* experts, std::int64_t node) const {
    return std::any_of(experts, experts + s.per_token, [&](auto e) { return e >= 0 && node_of(s, e) == node; });
  }

 private:
  static std::int64_t bounded(const Sizes& s, std::int64_t most, double mean) {
    return s.row_bound <= 0 ? most : std::min(most, static_cast<std::int64_t>(std::ceil(s.row_bound * mean)));
  }
};

// Views of the tables in a routing's state.
class NodeTables {
 public:
  using Routing = nn::TokenExchange::Routing;
  NodeTables(const Nodes& nodes, const Routing& r) : of_(nodes), r_(r), at_(nodes, r.sizes) {}
  // Elements of the state that the tables have.
  static std::int64_t elements(const Nodes& nodes, const Nodes::Sizes& s) { return Places(nodes, s).elements; }

  // What is sent to nodes and received from them: a slot for each.
  comm::CountedRows first_hop(bool received, const TensorView& rows) const {
    const std::int64_t first = at_.first_hop + (received ? 2 * of_.nodes : 0);
    return {rows, table(first, {of_.nodes}), table(first + of_.nodes, {of_.nodes})};
  }
  // Of a piece. Sent: slots by the rank of this node, then the node that a row came from, then the expert. Received: by
  // the rank of this node that it came through, then as before.
  comm::CountedRows second_hop(int p, bool received, const TensorView& rows) const {
    const std::int64_t count = r_.sizes.ranks() * r_.sizes.piece_experts();
    const std::int64_t first = at_.second_hop + (4 * p + (received ? 2 : 0)) * count;
    return {rows, table(first, {count}), table(first + count, {count})};
  }
  std::int64_t slot(std::int64_t place, std::int64_t node, std::int64_t i) const {
    return (place * of_.nodes + node) * r_.sizes.piece_experts() + i;
  }
  // As ops/moe/dispatch.h has them, with nodes in the place of experts. `leaving`: [2], 0 and the rows that leave.
  TensorView leaving() const { return table(at_.leaving, {2}); }
  TensorView leaving_assignments() const { return table(at_.leaving_assignments, {of_.leaving_rows(r_.sizes)}); }
  TensorView leaving_rows() const { return table(at_.leaving_rows, {r_.sizes.tokens, of_.nodes}); }  // [T, N]
  // [T K, 1]: of values [leaving rows, K] as a column, the one of each assignment.
  TensorView value_rows() const { return table(at_.value_rows, {r_.sizes.tokens * r_.sizes.per_token, 1}); }
  // With rows of the middle in the place of tokens. Rows: of all pieces, one after another.
  TensorView copied(int p) const { return table(at_.copied + 2 * p, {2}); }
  TensorView copied_assignments(int p) const {
    const std::int64_t rows = of_.copied_rows(r_.sizes);
    return table(at_.copied_assignments + p * rows, {rows});
  }
  TensorView copied_rows() const { return table(at_.copied_rows, {of_.middle_rows(r_.sizes), r_.sizes.per_token}); }
  TensorView copied_weights() const {
    const TensorView bits = table(at_.copied_weights, {of_.middle_rows(r_.sizes), r_.sizes.per_token});
    return {bits.raw(), DType::f32, bits.shape(), bits.device()};
  }

  // Writes all but what second_hop() has received, from the experts and weights [N, T, K] of the tokens of this rank's
  // place in all nodes; negative: none.
  void place(const std::int32_t* experts, const float* weights) const {
    place_first_hop(experts);
    place_second_hop(experts, weights);
  }

 private:
  // Offsets in the state.
  struct Places {
    Places(const Nodes& of, const Nodes::Sizes& s) {
      const auto next = [&](std::int64_t count) {
        const std::int64_t begin = elements;
        elements += count;
        return begin;
      };
      first_hop = next(4 * of.nodes);
      leaving = next(2);
      leaving_assignments = next(of.leaving_rows(s));
      leaving_rows = next(s.tokens * of.nodes);
      value_rows = next(s.tokens * s.per_token);
      second_hop = next(4 * s.experts);
      copied = next(2 * s.options.pieces);
      copied_assignments = next(s.options.pieces * of.copied_rows(s));
      copied_rows = next(of.middle_rows(s) * s.per_token);
      copied_weights = next(of.middle_rows(s) * s.per_token);
    }
    std::int64_t elements = 0;
    std::int64_t first_hop, leaving, leaving_assignments, leaving_rows, value_rows, second_hop, copied,
        copied_assignments, copied_rows, copied_weights;
  };

  TensorView table(std::int64_t first, const Shape& shape) const {
    return r_.state.rows(first, shape.elements()).reshape(shape);
  }
  static std::int32_t* data(const TensorView& view) { return view.data<std::int32_t>(); }

  void place_first_hop(const std::int32_t* all) const {
    const Nodes::Sizes& s = r_.sizes;
    const auto experts = [&](std::int64_t node, std::int64_t t) { return all + (node * s.tokens + t) * s.per_token; };
    const comm::CountedRows sent = first_hop(false, {}), received = first_hop(true, {});
    auto *const rows = data(leaving_rows()), *const assignments = data(leaving_assignments());
    std::fill_n(assignments, of_.leaving_rows(s), -1);
    std::int32_t next = 0, arrives = 0;
    for (std::int64_t node = 0; node < of_.nodes; ++node) {
      data(sent.offsets)[node] = next;
      data(received.offsets)[node] = arrives;
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const std::int64_t at = t * of_.nodes + node;
        const bool goes = of_.visits(s, experts(of_.own, t), node);
        rows[at] = goes ? next : ops::kNoRow;
        if (goes) assignments[next++] = static_cast<std::int32_t>(at);
        arrives += of_.visits(s, experts(node, t), of_.own) ? 1 : 0;
      }
      data(sent.counts)[node] = next - data(sent.offsets)[node];
      data(received.counts)[node] = arrives - data(received.offsets)[node];
    }
    data(leaving())[0] = 0;
    data(leaving())[1] = next;
    for (std::int64_t a = 0; a < s.tokens * s.per_token; ++a) {
      const std::int64_t t = a / s.per_token, k = a % s.per_token;
      const std::int32_t e = experts(of_.own, t)[k];
      data(value_rows())[a] =
          e < 0 ? ops::kNoRow : static_cast<std::int32_t>(rows[t * of_.nodes + of_.node_of(s, e)] * s.per_token + k);
    }
  }

  // Calls act(middle row, k, node, index among all tokens, expert of the rank, its place) for each expert of this node.
  // The middle's rows are those that arrive, by node, then by token.
  template <class Act>
  void each_copy(const std::int32_t* all, const Act& act) const {
    const Nodes::Sizes& s = r_.sizes;
    std::int64_t middle = 0;
    for (std::int64_t from = 0; from < of_.nodes * s.tokens; ++from) {
      const auto* const experts = all + from * s.per_token;
      if (!of_.visits(s, experts, of_.own)) continue;
      for (std::int64_t k = 0; k < s.per_token; ++k) {
        if (experts[k] < 0 || of_.node_of(s, experts[k]) != of_.own) continue;
        act(middle, k, from, experts[k] % s.local_experts, experts[k] / s.local_experts % of_.places);
      }
      ++middle;
    }
  }

  void place_second_hop(const std::int32_t* all, const float* weights) const {
    const Nodes::Sizes& s = r_.sizes;
    auto* const row_of = data(copied_rows());
    auto* const weight_of = copied_weights().data<float>();
    std::fill_n(row_of, of_.middle_rows(s) * s.per_token, ops::kNoRow);
    std::fill_n(weight_of, of_.middle_rows(s) * s.per_token, 0.0f);
    for (int p = 0; p < s.options.pieces; ++p) {
      const comm::CountedRows sent = second_hop(p, false, {});
      auto *const counts = data(sent.counts), *const offsets = data(sent.offsets);
      const auto each = [&](const auto& act) {
        each_copy(all, [&](auto middle, auto k, auto from, auto local, auto place) {
          if (local / s.piece_experts() != p) return;
          act(middle * s.per_token + k, from * s.per_token + k,
              slot(place, from / s.tokens, local % s.piece_experts()));
        });
      };
      std::fill_n(counts, sent.counts.elements(), 0);
      each([&](auto, auto, std::int64_t slot) { ++counts[slot]; });
      std::int32_t next = 0;
      for (std::int64_t slot = 0; slot < sent.counts.elements(); ++slot) {
        offsets[slot] = next;
        next += counts[slot];
      }
      data(copied(p))[0] = 0;
      data(copied(p))[1] = next;
      auto* const assignments = data(copied_assignments(p));
      std::fill_n(assignments, of_.copied_rows(s), -1);
      std::vector<std::int32_t> at(offsets, offsets + sent.counts.elements());
      each([&](std::int64_t here, std::int64_t there, std::int64_t slot) {
        const std::int32_t row = at[static_cast<std::size_t>(slot)]++;
        assignments[row] = static_cast<std::int32_t>(here);
        row_of[here] = static_cast<std::int32_t>(p * of_.copied_rows(s)) + row;
        weight_of[here] = weights[there];
      });
    }
  }

  Nodes of_;
  Routing r_;
  Places at_;
};

}  // namespace hawser::testing

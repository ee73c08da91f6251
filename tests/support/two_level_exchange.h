// Expert parallelism over nodes, for tests.
#pragma once

#include <cmath>
#include <memory>

#include "comm/mesh.h"
#include "support/token_exchange.h"

namespace hawser::testing {

// Two hops: between nodes, to the rank at the sender's place in the expert's node, and from there to the expert's rank.
// N nodes of M ranks: part n * M + m of the experts is on rank m of node n.
class TwoLevelExchange : public PiecesExchange {
 public:
  explicit TwoLevelExchange(comm::Mesh& mesh, int pieces = 1)
      : PiecesExchange(mesh.expert(), pieces), node_(mesh.expert_node()), nodes_(mesh.expert_nodes()) {}

 protected:
  int hops() const override { return 2; }
  comm::Group& hop_group(int hop) const override { return hop == 0 ? nodes_ : node_; }
  // Of the ranks at this one's place in all nodes, for the experts of this node. They are as many as a rank's own tokens
  // have on average.
  std::int64_t rows_between(const Sizes& s) const override {
    const std::int64_t most = nodes_.size() * s.tokens * std::min(s.per_token, node_.size() * s.piece_experts());
    if (s.row_bound <= 0) return most;
    const double mean = static_cast<double>(s.tokens * s.per_token) / s.options.pieces;
    return std::min(most, static_cast<std::int64_t>(std::ceil(s.row_bound * mean)));
  }
  bool fits(const Sizes& s, const TensorView& all) const override {
    for (int piece = 0; piece < s.options.pieces; ++piece) {
      for (int node = 0; node < nodes_.size(); ++node) {
        for (int place = 0; place < node_.size(); ++place) {
          std::int64_t rows = 0;
          for (int from = 0; from < nodes_.size(); ++from) {
            for (int to = 0; to < node_.size(); ++to) {
              for (std::int64_t i = 0; i < s.piece_experts(); ++i) {
                rows += count(s, all, part(from, place), part(node, to), piece, i);
              }
            }
          }
          if (rows > rows_between(s)) return false;
        }
      }
    }
    return PiecesExchange::fits(s, all);
  }
  std::int64_t expert_slot(const Sizes& s, std::int64_t q, std::int64_t i) const override {
    return (q % node_.size() * nodes_.size() + q / node_.size()) * s.piece_experts() + i;
  }
  // What arrives between the hops: packed, by node, then by the rank of this node that it goes to. Table 1 has the slots
  // in this order, table 2 by rank, then by node.
  void place_between(const Routing& r, int p, const TensorView& all, bool fits) const override {
    const Sizes& s = r.sizes;
    const comm::CountedRows arrives = slots(r, p, 1, {}), leaves = slots(r, p, 2, {});
    std::int32_t next = 0;
    for (int node = 0; node < nodes_.size(); ++node) {
      for (int to = 0; to < node_.size(); ++to) {
        for (std::int64_t i = 0; i < s.piece_experts(); ++i) {
          const std::int32_t rows = fits ? count(s, all, part(node, node_.index()), part(nodes_.index(), to), p, i) : 0;
          const std::int64_t in = (node * node_.size() + to) * s.piece_experts() + i,
                             out = (to * nodes_.size() + node) * s.piece_experts() + i;
          arrives.counts.data<std::int32_t>()[in] = leaves.counts.data<std::int32_t>()[out] = rows;
          arrives.offsets.data<std::int32_t>()[in] = leaves.offsets.data<std::int32_t>()[out] = next;
          next += rows;
        }
      }
    }
  }

 private:
  int part(int node, int place) const { return node * node_.size() + place; }
  // The rows of rank `from` for local expert i of a piece of rank `to`.
  static std::int32_t count(const Sizes& s, const TensorView& all, int from, int to, int piece, std::int64_t i) {
    return all.data<std::int32_t>()[from * s.experts + to * s.local_experts + piece * s.piece_experts() + i];
  }

  comm::Group &node_, &nodes_;
};

// Of a mesh's expert ranks.
inline std::shared_ptr<nn::TokenExchange> token_exchange(comm::Mesh& mesh, int pieces = 1) {
  if (mesh.sizes().expert_node > 1) return std::make_shared<TwoLevelExchange>(mesh, pieces);
  return std::make_shared<PiecesExchange>(mesh.expert(), pieces);
}

}  // namespace hawser::testing

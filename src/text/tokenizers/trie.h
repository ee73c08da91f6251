// `Trie`: finds the strings of a set that a text starts with. A double array: the child of a node by byte b is at
// base ^ b if the parent stored there is the node.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hawser::text {

class Trie {
 public:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::uint32_t kRoot = 0;

  Trie() : Trie(std::vector<std::pair<std::string, std::int32_t>>{}) {}
  // Strings and their values, at least 0. Of equal strings the last counts; the empty string is ignored.
  explicit Trie(std::vector<std::pair<std::string, std::int32_t>> strings);

  // Moves `node` to its child by a byte; false if there is none.
  bool go(std::uint32_t& node, unsigned char byte) const {
    const std::uint32_t child = nodes_[node].base ^ byte;
    if (nodes_[child].parent != node) return false;
    node = child;
    return true;
  }
  // The same for all bytes of `text`.
  bool go(std::uint32_t& node, std::string_view text) const {
    for (const char c : text) {
      if (!go(node, static_cast<unsigned char>(c))) return false;
    }
    return true;
  }
  // Value of the string that ends at `node`, or kNone.
  std::int32_t value(std::uint32_t node) const { return nodes_[node].value; }

 private:
  static constexpr std::uint32_t kFree = 0xFFFFFFFF;
  struct Node {
    std::uint32_t base = 0;
    std::uint32_t parent = kFree;
    std::int32_t value = kNone;
  };
  using Strings = std::vector<std::pair<std::string, std::int32_t>>;

  std::vector<Node> nodes_;
};

}  // namespace hawser::text

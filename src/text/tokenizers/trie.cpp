#include "text/tokenizers/trie.h"

#include <algorithm>

namespace hawser::text {

Trie::Trie(Strings strings) {
  std::stable_sort(strings.begin(), strings.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  nodes_.resize(512);
  nodes_[kRoot].parent = kFree - 1;  // in use, but not the child of any node
  struct Task {
    std::size_t begin, end, depth;  // strings that pass through this node
    std::uint32_t node;
  };
  std::vector<Task> tasks = {{0, strings.size(), 0, kRoot}};
  std::uint32_t first_free = 1;  // all before it are in use
  while (!tasks.empty()) {
    const Task task = tasks.back();
    tasks.pop_back();
    std::vector<std::pair<unsigned char, std::size_t>> children;  // byte, and index of its first string
    for (std::size_t i = task.begin; i < task.end; ++i) {
      const std::string& text = strings[i].first;
      if (text.size() == task.depth) {
        if (task.depth > 0) nodes_[task.node].value = strings[i].second;
        continue;
      }
      const auto byte = static_cast<unsigned char>(text[task.depth]);
      if (children.empty() || children.back().first != byte) children.emplace_back(byte, i);
    }
    if (children.empty()) continue;
    while (nodes_[first_free].parent != kFree) {
      if (++first_free + 512 > nodes_.size()) nodes_.resize(nodes_.size() * 2);
    }
    // Finds the first base at which the places of all children are free. After 64 tries, later searches skip the part
    // searched so far.
    std::uint32_t base = 0;
    std::uint32_t tries = 0;
    for (std::uint32_t place = first_free;; ++place) {
      if (place + 512 > nodes_.size()) nodes_.resize(nodes_.size() * 2);
      if (nodes_[place].parent != kFree) continue;
      base = place ^ children[0].first;
      if (std::all_of(children.begin(), children.end(), [&](const auto& child) {
            const std::uint32_t at = base ^ child.first;
            return at != kRoot && nodes_[at].parent == kFree;
          })) {
        break;
      }
      if (++tries == 64) first_free = place;
    }
    nodes_[task.node].base = base;
    for (std::size_t c = 0; c < children.size(); ++c) {
      const std::uint32_t at = base ^ children[c].first;
      nodes_[at].parent = task.node;
      const std::size_t end = c + 1 < children.size() ? children[c + 1].second : task.end;
      tasks.push_back({children[c].second, end, task.depth + 1, at});
    }
  }
}

}  // namespace hawser::text

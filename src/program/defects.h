// `Defects`: the list of defects that the checkers have found; `describe` names an item of a trace in them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "program/checker.h"

namespace hawser::program {

class Defects {
 public:
  void add(std::string line) {
    if (!full()) lines_.push_back(std::move(line));
  }
  bool full() const { return static_cast<int>(lines_.size()) >= kMaxDefects; }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

inline std::string describe(const Trace& trace, int item) {
  const TraceItem& it = trace.items[static_cast<std::size_t>(item)];
  return cat(it.record.name, " (instruction ", it.instruction, ", stream ",
             trace.streams[static_cast<std::size_t>(it.stream)], ", item ", item, ")");
}

}  // namespace hawser::program

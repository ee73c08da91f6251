// `BackgroundOutput`: writes to a file descriptor from a thread of its own, so that its caller never waits for a slow
// reader, such as a paused terminal.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

namespace hawser::io {

class BackgroundOutput {
 public:
  explicit BackgroundOutput(int file);  // stays the caller's
  ~BackgroundOutput();                  // drops what is not written yet
  BackgroundOutput(const BackgroundOutput&) = delete;
  BackgroundOutput& operator=(const BackgroundOutput&) = delete;

  void put(std::string_view text);
  std::size_t pending() const;  // bytes that are not written yet
  // Waits until all is written, or until the time limit. Returns whether all is.
  bool wait(std::chrono::milliseconds limit);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this object in a blocked write
};

}  // namespace hawser::io

// `ErrorOutput`: writes to standard error from a thread of its own, so that its caller never waits for a slow reader.
// Nothing is dropped while it exists. Internal to launch/.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

namespace hawser {

class ErrorOutput {
 public:
  ErrorOutput();
  ~ErrorOutput();  // drops what is not written yet
  ErrorOutput(const ErrorOutput&) = delete;
  ErrorOutput& operator=(const ErrorOutput&) = delete;

  void put(std::string_view text);
  std::size_t pending() const;  // bytes that are not written yet
  // Waits until all is written, or until the time limit.
  void wait(std::chrono::milliseconds limit);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this object in a blocked write
};

}  // namespace hawser

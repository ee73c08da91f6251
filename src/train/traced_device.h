// A device whose streams' work is recorded on demand, with the moments at which it ran: `bench step --trace`.
//
// On the CPU the streams' workers take the time themselves. On a GPU CUPTI reports kernels and copies, and one belongs
// to the piece of work during whose enqueueing the host made the call that launched it. Between start() and stop() only
// one thread enqueues.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/activities.h"
#include "device/forwarding_device.h"
#include "report/timeline.h"

namespace hawser::train {

// A piece of work, as the host asked for it.
struct TracedWork {
  std::string name;
  int lane = 0;
  int instruction = -1;
  bool communication = false;
  std::int64_t enqueued = 0, enqueued_end = 0;  // ns: the host's call
  std::int64_t begin = 0, end = 0;              // where our own code ran it: on the CPU, or a host function
};

class TracedDevice : public ForwardingDevice {
 public:
  // UserError where the device is a GPU and cannot be traced.
  explicit TracedDevice(std::unique_ptr<Device> inner);

  void start();
  void begin_instruction(int instruction);  // what is enqueued from here on is of this row; -1: of none
  // All streams are synchronized. `rows`: names, by the numbers given to begin_row.
  report::RankTimeline stop(int rank, std::vector<std::string> instructions);

  std::unique_ptr<Stream> make_stream(const std::string& name) override;

 private:
  friend class TracedStream;
  struct Lane {
    std::string name;
    std::optional<std::uint32_t> number;  // CUPTI's
  };
  // Null while nothing is recorded.
  TracedWork* enqueue(int lane, const OpRecord& record);
  void add_activities(const std::vector<cuda::Activity>& activities, report::RankTimeline& timeline);

  std::optional<cuda::ActivityRecorder> recorder_;
  std::vector<Lane> lanes_;
  bool recording_ = false;
  int instruction_ = -1;
  std::int64_t instruction_begin_ = 0;
  std::deque<TracedWork> work_;  // grows while workers write into it
  std::vector<report::TimelineSpan> host_;
};

}  // namespace hawser::train

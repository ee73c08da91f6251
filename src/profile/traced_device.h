// `TracedDevice`: a device that records on demand when its streams' work runs, for `bench step --trace`.
//
// On the CPU the streams' workers record times. On a GPU CUPTI reports kernels and copies; each belongs to the piece of
// work whose enqueueing made the host call that launched it. Only one thread may enqueue between start() and stop().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/activities.h"
#include "device/forwarding_device.h"
#include "profile/timeline.h"

namespace hawser::profile {

// A piece of work, as enqueued by the host.
struct TracedWork {
  std::string name;
  std::string family;
  int lane = 0;
  int instruction = -1;
  bool communication = false;
  std::int64_t enqueued = 0, enqueued_end = 0;  // ns, the host's call
  std::int64_t begin = 0, end = 0;              // ns, on the CPU or in a host function; 0: CUPTI reports it
};

class TracedDevice : public ForwardingDevice {
 public:
  // UserError if the device is a GPU that cannot be traced.
  explicit TracedDevice(std::unique_ptr<Device> inner);

  void start();
  void begin_instruction(int instruction);  // instruction of the work enqueued from now on; -1: none
  // Call after all streams are synchronized. `instructions`: names, indexed by the ids given to begin_instruction.
  RankTimeline stop(int rank, std::vector<std::string> instructions);

  std::unique_ptr<Stream> make_stream(const std::string& name) override;
  // Its work is not measured.

 private:
  friend class TracedStream;
  struct Lane {
    std::string name;
    std::optional<std::uint32_t> number;  // CUPTI's stream id
  };
  // Null while not recording.
  TracedWork* enqueue(int lane, const OpRecord& record);
  void add_activities(const std::vector<cuda::Activity>& activities, RankTimeline& timeline);

  std::optional<cuda::ActivityRecorder> recorder_;
  std::vector<Lane> lanes_;
  bool recording_ = false;
  int instruction_ = -1;
  std::int64_t instruction_begin_ = 0;
  std::deque<TracedWork> work_;  // a deque: workers write elements while it grows
  std::vector<TimelineSpan> host_;
};

}  // namespace hawser::profile

#include "profile/traced_device.h"
#include "profile/work_family.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <map>

namespace hawser::profile {

namespace {

constexpr int kHostLane = 0;  // in a timeline; streams follow

// CUPTI's default clock, the same for all ranks of a machine.
std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::function<void()> timed(TracedWork* traced, std::function<void()> work) {
  return [traced, work = std::move(work)] {
    traced->begin = now();
    work();
    traced->end = now();
  };
}

// Keeps the lanes that have spans, a step's streams in their usual order, others after them.
void arrange(RankTimeline& timeline) {
  std::vector<int> used;
  used.reserve(timeline.spans.size());
  for (const TimelineSpan& span : timeline.spans) used.push_back(span.lane);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  const auto place = [&](int lane) {
    const std::string& name = timeline.lanes[static_cast<std::size_t>(lane)];
    static constexpr const char* kOrder[] = {"host", "compute", "exchange", "gather", "reduce"};
    const auto* found = std::find(std::begin(kOrder), std::end(kOrder), name);
    return found - std::begin(kOrder);
  };
  std::stable_sort(used.begin(), used.end(), [&](int a, int b) { return place(a) < place(b); });
  std::vector<std::string> lanes;
  std::vector<int> to(timeline.lanes.size());
  for (const int lane : used) {
    to[static_cast<std::size_t>(lane)] = static_cast<int>(lanes.size());
    lanes.push_back(timeline.lanes[static_cast<std::size_t>(lane)]);
  }
  for (TimelineSpan& span : timeline.spans) span.lane = to[static_cast<std::size_t>(span.lane)];
  timeline.lanes = std::move(lanes);
}

}  // namespace

class TracedStream : public ForwardingStream {
 public:
  TracedStream(std::unique_ptr<Stream> inner, TracedDevice& device, int lane)
      : ForwardingStream(std::move(inner)), device_(device), lane_(lane) {}
  void launch(OpRecord record, std::function<void()> work) override {
    TracedWork* traced = device_.enqueue(lane_, record);
    if (traced != nullptr && inner_->native() == nullptr) work = timed(traced, std::move(work));
    inner_->launch(std::move(record), std::move(work));
    if (traced != nullptr) traced->enqueued_end = now();
  }
  void call_host(OpRecord record, std::function<void()> work) override {
    TracedWork* traced = device_.enqueue(lane_, record);
    if (traced != nullptr) work = timed(traced, std::move(work));
    inner_->call_host(std::move(record), std::move(work));
    if (traced != nullptr) traced->enqueued_end = now();
  }

 private:
  TracedDevice& device_;
  int lane_;
};

TracedDevice::TracedDevice(std::unique_ptr<Device> inner) : ForwardingDevice(std::move(inner)) {
  if (inner_->kind() == DeviceKind::cuda) recorder_.emplace();
}

std::unique_ptr<Stream> TracedDevice::make_stream(const std::string& name) {
  std::unique_ptr<Stream> stream = inner_->make_stream(name);
  Lane lane{.name = name};
  if (recorder_) lane.number = recorder_->stream_number(*stream->native());
  lanes_.push_back(std::move(lane));
  return std::make_unique<TracedStream>(std::move(stream), *this, static_cast<int>(lanes_.size()) - 1);
}

TracedWork* TracedDevice::enqueue(int lane, const OpRecord& record) {
  if (!recording_) return nullptr;
  work_.push_back({.name = record.name,
                   .family = family_of(record),
                   .lane = lane,
                   .instruction = instruction_,
                   .communication = record.collective.kind != CollectiveKind::none,
                   .enqueued = now()});
  return &work_.back();
}

void TracedDevice::start() {
  work_.clear();
  host_.clear();
  instruction_ = -1;
  if (recorder_) recorder_->start();
  recording_ = true;
}

void TracedDevice::begin_instruction(int instruction) {
  const std::int64_t time = now();
  if (recording_ && instruction_ >= 0) {
    host_.push_back({.kind = TimelineSpan::Kind::host,
                     .begin = instruction_begin_,
                     .end = time,
                     .lane = kHostLane,
                     .instruction = instruction_});
  }
  instruction_ = instruction;
  instruction_begin_ = time;
}

RankTimeline TracedDevice::stop(int rank, std::vector<std::string> instructions) {
  begin_instruction(-1);
  recording_ = false;
  RankTimeline out{.rank = rank, .lanes = {"host"}, .instructions = std::move(instructions)};
  for (const Lane& lane : lanes_) out.lanes.push_back(lane.name);
  for (TimelineSpan& span : host_) {
    span.name = out.instructions[static_cast<std::size_t>(span.instruction)];
    out.spans.push_back(std::move(span));
  }
  for (std::size_t i = 0; i < work_.size(); ++i) {
    const TracedWork& work = work_[i];
    if (work.end == 0) continue;  // reported by CUPTI, added below
    out.spans.push_back({.kind = TimelineSpan::Kind::work,
                         .begin = work.begin,
                         .end = work.end,
                         .lane = 1 + work.lane,
                         .instruction = work.instruction,
                         .op = static_cast<int>(i),
                         .name = work.name,
                         .op_name = work.name,
                         .family = work.family,
                         .communication = work.communication});
  }
  if (recorder_) add_activities(recorder_->stop(), out);
  arrange(out);
  put_in_order(out);
  return out;
}

void TracedDevice::add_activities(const std::vector<cuda::Activity>& activities, RankTimeline& out) {
  std::vector<int> work(activities.size(), -1);
  std::map<std::uint32_t, std::map<int, int>> asked;  // activities per CUPTI stream and requesting lane
  for (std::size_t i = 0; i < activities.size(); ++i) {
    const std::int64_t launched = activities[i].launched;
    const auto later = std::upper_bound(work_.begin(), work_.end(), launched,
                                        [](std::int64_t time, const TracedWork& one) { return time < one.enqueued; });
    if (later == work_.begin()) continue;
    const auto asker = std::prev(later);
    if (launched > asker->enqueued_end) continue;
    work[i] = static_cast<int>(asker - work_.begin());
    ++asked[activities[i].stream][asker->lane];
  }
  // A library's internal stream gets a lane of its own, named after the lane that requested most of its work.
  std::map<std::uint32_t, int> lane_of;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::optional<std::uint32_t>& number = lanes_[lane].number;
    if (number) lane_of.emplace(*number, 1 + static_cast<int>(lane));
  }
  for (const cuda::Activity& activity : activities) {
    if (lane_of.contains(activity.stream)) continue;
    std::string name = cat("stream ", activity.stream);
    if (const auto found = asked.find(activity.stream); found != asked.end()) {
      const auto max = std::max_element(found->second.begin(), found->second.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
      name = cat(lanes_[static_cast<std::size_t>(max->first)].name, ", internal ", activity.stream);
    }
    lane_of.emplace(activity.stream, static_cast<int>(out.lanes.size()));
    out.lanes.push_back(std::move(name));
  }
  for (std::size_t i = 0; i < activities.size(); ++i) {
    const cuda::Activity& activity = activities[i];
    TimelineSpan span{
        .kind = activity.kind == cuda::Activity::Kind::kernel ? TimelineSpan::Kind::kernel : TimelineSpan::Kind::copy,
        .begin = activity.begin,
        .end = activity.end,
        .lane = lane_of.at(activity.stream),
        .op = work[i],
        .name = activity.name};
    if (work[i] >= 0) {
      const TracedWork& one = work_[static_cast<std::size_t>(work[i])];
      span.instruction = one.instruction;
      span.op_name = one.name;
      span.family = one.family;
      span.communication = one.communication;
    }
    out.spans.push_back(std::move(span));
  }
}

}  // namespace hawser::profile

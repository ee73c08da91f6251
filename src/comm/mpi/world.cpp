#include "comm/mpi/world.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/host_name.h"
#include "comm/mesh_builder.h"
#include "comm/mpi/mpi_group.h"
#include "comm/mpi/service.h"
#include "comm/rank_list.h"

namespace hawser::comm {

namespace {

std::byte* bytes_of(std::string& text) {
  return reinterpret_cast<std::byte*>(text.data());
}
std::byte* bytes_of(std::uint64_t& number) {
  return reinterpret_cast<std::byte*>(&number);
}

}  // namespace

// A control operation: rounds of messages, run by the calling thread with the channel's tags.
class Channel::Control {
 public:
  Control(Channel& channel, const char* name) : service_(*channel.service_) {
    operation_ = std::make_shared<Operation>(
        Operation{name, channel.name_, 0, service_.phase(), channel.timeout_s_, Clock::now()});
    tag_ = service_.tag(channel.group_, Service::TagKind::collective, channel.controls_++);
  }
  ~Control() { service_.finished(operation_); }

  void send(int rank, std::string& text) { add(Message::Way::send, rank, bytes_of(text), text.size()); }
  void send(int rank, std::uint64_t& number) { add(Message::Way::send, rank, bytes_of(number), sizeof number); }
  void receive(int rank, std::string& text) { add(Message::Way::receive, rank, bytes_of(text), text.size()); }
  void receive(int rank, std::uint64_t& number) { add(Message::Way::receive, rank, bytes_of(number), sizeof number); }
  void run() { service_.post(operation_, std::exchange(messages_, {}))->wait(); }

  // Broadcasts `text` of `root`: first its length, then the text.
  void spread(std::string& text, int root) {
    std::uint64_t length = text.size();
    to_all_from(
        root, [&](int rank) { send(rank, length); }, [&] { receive(root, length); });
    text.resize(length);
    to_all_from(
        root, [&](int rank) { send(rank, text); }, [&] { receive(root, text); });
  }

 private:
  void add(Message::Way way, int rank, std::byte* data, std::size_t bytes) {
    messages_.push_back({way, rank, tag_, data, static_cast<std::int64_t>(bytes)});
  }
  template <class Send, class Receive>
  void to_all_from(int root, const Send& send_to, const Receive& receive_it) {
    if (service_.rank() == root) {
      for (int rank = 0; rank < service_.size(); ++rank) {
        if (rank != root) send_to(rank);
      }
    } else {
      receive_it();
    }
    run();
  }

  Service& service_;
  OperationPtr operation_;
  int tag_ = 0;
  std::vector<Message> messages_;
};

Channel::Channel(std::shared_ptr<Service> service, std::string name, int group, double timeout_s)
    : service_(std::move(service)), name_(std::move(name)), group_(group), timeout_s_(timeout_s) {}

Channel::~Channel() = default;

namespace {

// Hosts start at different times, so a short limit of operations is not one of the start.
constexpr std::chrono::seconds kStartLimit{120};

std::chrono::seconds whole_seconds(double seconds) {
  return std::chrono::seconds(static_cast<std::int64_t>(std::ceil(seconds)));
}

}  // namespace

World::World(double timeout_s, std::function<void(int)> on_abort, std::int64_t piece_bytes)
    : Channel(
          std::make_shared<Service>(std::move(on_abort), std::max(kStartLimit, whole_seconds(timeout_s)), piece_bytes),
          "the run", 0, timeout_s),
      timeout_s_(timeout_s),
      exceptions_(std::uncaught_exceptions()) {}

World::~World() {
  if (std::uncaught_exceptions() > exceptions_) abort(static_cast<int>(ExitCode::internal));
  barrier();
}

std::unique_ptr<Channel> World::open_channel(const std::string& name) {
  return std::make_unique<Channel>(service_, name, service_->new_group(), timeout_s_);
}

Rank Channel::rank() const {
  return Rank(service_->rank());
}
int Channel::size() const {
  return service_->size();
}
void World::set_phase(std::string phase) {
  service_->set_phase(std::move(phase));
}
void World::abort(int code) {
  service_->abort(code);
}

std::vector<std::string> Channel::all_gather_strings(const std::string& mine) {
  Control control(*this, "all_gather_strings");
  const auto ranks = static_cast<std::size_t>(size());
  const bool first = service_->rank() == 0;

  // Every rank sends its length and text to rank 0, which broadcasts all lengths and texts in one message.
  std::vector<std::string> texts(ranks);
  std::vector<std::uint64_t> lengths(ranks, mine.size());
  std::string own = mine;
  if (first) {
    for (int r = 1; r < size(); ++r) control.receive(r, lengths[static_cast<std::size_t>(r)]);
    control.run();
    for (int r = 1; r < size(); ++r) {
      texts[static_cast<std::size_t>(r)].resize(lengths[static_cast<std::size_t>(r)]);
      control.receive(r, texts[static_cast<std::size_t>(r)]);
    }
    control.run();
    texts[0] = mine;
  } else {
    control.send(0, lengths[0]);
    control.send(0, own);
    control.run();
  }
  std::string all;
  if (first) {
    all.append(reinterpret_cast<const char*>(lengths.data()), ranks * sizeof(std::uint64_t));
    for (const std::string& text : texts) all += text;
  }
  control.spread(all, 0);
  if (!first) {
    std::memcpy(lengths.data(), all.data(), ranks * sizeof(std::uint64_t));
    std::size_t at = ranks * sizeof(std::uint64_t);
    for (std::size_t r = 0; r < ranks; ++r) {
      texts[r] = all.substr(at, lengths[r]);
      at += lengths[r];
    }
  }
  return texts;
}

std::string Channel::broadcast_bytes(const std::string& bytes, Rank root) {
  HAWSER_CHECK(root.value() >= 0 && root.value() < size(), "rank ", root, " of ", size());
  Control control(*this, "broadcast_bytes");
  std::string out = rank() == root ? bytes : std::string();
  control.spread(out, root.value());
  return out;
}

int World::local_rank() {
  const std::string name = host_name();
  const std::vector<std::string> names = all_gather_strings(name);
  return static_cast<int>(std::count(names.begin(), names.begin() + service_->rank(), name));
}

bool Channel::any(bool mine) {
  Control control(*this, "any");
  return meet(control, mine ? 1 : 0) != 0;
}

std::uint64_t Channel::any_of(std::uint64_t mine) {
  Control control(*this, "any");
  return meet(control, mine);
}

void Channel::barrier() {
  Control control(*this, "barrier");
  meet(control, 0);
}

std::uint64_t Channel::meet(Control& control, std::uint64_t mine) {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(size()), mine);
  std::uint64_t answer = 0;
  if (service_->rank() == 0) {
    for (int r = 1; r < size(); ++r) control.receive(r, values[static_cast<std::size_t>(r)]);
    control.run();
    for (const std::uint64_t one : values) answer |= one;
    for (int r = 1; r < size(); ++r) control.send(r, answer);
    control.run();
  } else {
    control.receive(0, answer);
    control.send(0, values[0]);
    control.run();
  }
  return answer;
}

namespace {

std::string text_of(const MeshSizes& sizes) {
  std::string out = cat("tensor ", sizes.tensor, ", context ", sizes.context, " (heads ", sizes.context_heads,
                        "), shard ", sizes.shard, sizes.shard_context ? "" : " (none)", ", replicate ", sizes.replicate,
                        ", pipeline ", sizes.pipeline, sizes.interleaved ? " (interleaved)" : "", ", expert ",
                        sizes.expert, sizes.expert_over_tensor ? " (over tensor)" : "", ", copies ", sizes.kv_copies);
  for (const std::vector<int>& stages : sizes.tied) out += cat(", tied ", rank_list(stages));
  return out;
}

}  // namespace

void expect_one_mesh(World& world, const MeshSizes& sizes) {
  const std::string mine = text_of(sizes);
  const auto all = world.all_gather_strings(mine);
  for (std::size_t r = 0; r < all.size(); ++r) {
    HAWSER_CHECK(all[r] == all[0], "ranks 0 and ", r, " request different meshes: ", all[0], "; ", all[r]);
  }
  HAWSER_CHECK(sizes.world() == world.size(), "a mesh of ", mine, " on ", world.size(), " ranks");
}

std::unique_ptr<Mesh> make_mpi_mesh(World& world, const MeshSizes& sizes, double timeout_s) {
  expect_one_mesh(world, sizes);
  Service& service = world.service();
  const auto make = [&](const GroupPartition& all,
                        const std::optional<GroupPartition::Place>& place) -> std::unique_ptr<Group> {
    const int id = service.new_group();
    if (!place) return nullptr;
    return std::make_unique<MpiGroup>(service, id, all.name(*place), all.ranks(*place), place->index, timeout_s);
  };
  return MeshBuilder::build(sizes, world.rank(), make, &world);
}

}  // namespace hawser::comm

#include "comm/mpi/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/counted_slots.h"
#include "comm/reduce.h"

namespace hawser::comm {

namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

// Part m is elements [begin(m), begin(m) + count(m)). Each has `part` elements, the last ones fewer or none.
struct MpiGroup::Parts {
  std::int64_t total = 0;
  std::int64_t part = 0;
  DType dtype = DType::f32;

  std::int64_t begin(int m) const { return std::min(m * part, total); }
  std::int64_t count(int m) const { return std::min(part, total - begin(m)); }
};

class MpiGroup::Call {
 public:
  Call(MpiGroup& group, const Ticket& ticket) : group_(group), tag_(ticket.tag) {
    auto operation = std::make_shared<Operation>(ticket.operation);
    operation->started = Clock::now();
    operation_ = std::move(operation);
  }

  int size() const { return group_.size(); }
  int index() const { return group_.index(); }

  // Messages for the next post(). Empty ones are left out on both sides, except for signal().
  void send(int member, const std::byte* data, std::int64_t bytes) {
    add(Message::Way::send, member, const_cast<std::byte*>(data), bytes);
  }
  void receive(int member, std::byte* data, std::int64_t bytes) { add(Message::Way::receive, member, data, bytes); }
  void set_tag(int tag) { tag_ = tag; }  // of the messages that follow
  void signal(int member) {
    messages_.push_back({Message::Way::receive, rank(member), tag_, nullptr, 0});
    messages_.push_back({Message::Way::send, rank(member), tag_, nullptr, 0});
  }

  ExchangePtr post() { return group_.service_.post(operation_, std::exchange(messages_, {})); }
  void finish() { group_.service_.finished(operation_); }

  // Calls `act` for the other members, each member starting after itself, so that not all send to the same one at once.
  template <class Do>
  void each_peer(const Do& act) const {
    for (int k = 1; k < size(); ++k) act((index() + k) % size());
  }

 private:
  int rank(int member) const { return group_.ranks_[static_cast<std::size_t>(member)]; }
  void add(Message::Way way, int member, std::byte* data, std::int64_t bytes) {
    if (bytes > 0) messages_.push_back({way, rank(member), tag_, data, bytes});
  }

  MpiGroup& group_;
  int tag_;
  OperationPtr operation_;
  std::vector<Message> messages_;
};

MpiGroup::MpiGroup(Service& service, int id, std::string name, std::vector<int> ranks, int index, double timeout_s)
    : Group(std::move(name), static_cast<int>(ranks.size()), index),
      service_(service),
      ranks_(std::move(ranks)),
      timeout_s_(timeout_s),
      id_(id),
      sent_(ranks_.size(), 0),
      received_(ranks_.size(), 0) {}

MpiGroup::Ticket MpiGroup::ticket(CollectiveKind kind, std::int64_t bytes) {
  const int tag = service_.tag(id_, Service::TagKind::collective, collectives_++);
  return {{to_string(kind), name(), bytes, service_.phase(), timeout_s_, {}}, tag};
}

MpiGroup::Ticket MpiGroup::pair_ticket(CollectiveKind kind, std::int64_t bytes, int peer) {
  const int tag = pair_tag(kind == CollectiveKind::receive ? received_ : sent_, peer);
  return {{to_string(kind), name(), bytes, service_.phase(), timeout_s_, {}}, tag};
}

int MpiGroup::pair_tag(std::vector<std::uint64_t>& counts, int peer) {
  return service_.tag(id_, Service::TagKind::pair, counts[static_cast<std::size_t>(peer)]++);
}

// All-gathers the parts of `data`, each from the member that owns it.
void MpiGroup::gather_parts(Call& call, std::byte* data, const Parts& parts) {
  const std::int64_t element = size_of(parts.dtype);
  const int me = call.index();
  call.each_peer([&](int p) { call.receive(p, data + parts.begin(p) * element, parts.count(p) * element); });
  call.each_peer([&](int p) { call.send(p, data + parts.begin(me) * element, parts.count(me) * element); });
  call.post()->wait();
}

// recv (+)= the sum over members of this member's part, in member order. Each peer has a slot in a chunk's workspace.
void MpiGroup::reduce_parts(Call& call, std::byte* send, const Parts& parts, Reduction reduction, std::byte* recv,
                            DType recv_dtype, bool accumulate, std::byte* workspace) {
  const std::int64_t element = size_of(parts.dtype);
  const auto [chunk, slot, sets] = reduce_slots(parts.part, parts.dtype, call.size(), DeviceKind::cpu);
  const std::int64_t chunks = ceil_div(parts.part, chunk), slots = (call.size() - 1) * slot;
  const int me = call.index();
  const auto begin = [&](int member, std::int64_t c) { return parts.begin(member) + c * chunk; };
  const auto count = [&](int member, std::int64_t c) {
    return std::clamp<std::int64_t>(parts.count(member) - c * chunk, 0, chunk);
  };
  const auto slot_of = [&](int peer, std::int64_t c) {
    return workspace + (c % 2) * slots + (peer < me ? peer : peer - 1) * slot;
  };
  const auto post = [&](std::int64_t c) {
    call.each_peer([&](int p) { call.receive(p, slot_of(p, c), count(me, c) * element); });
    call.each_peer([&](int p) { call.send(p, send + begin(p, c) * element, count(p, c) * element); });
    return call.post();
  };

  std::vector<const std::byte*> members(static_cast<std::size_t>(call.size()));
  ExchangePtr here = post(0);
  for (std::int64_t c = 0; c < chunks; ++c) {
    ExchangePtr next = c + 1 < chunks ? post(c + 1) : nullptr;
    here->wait();
    if (count(me, c) > 0) {
      for (int m = 0; m < call.size(); ++m) {
        members[static_cast<std::size_t>(m)] = m == me ? send + begin(me, c) * element : slot_of(m, c);
      }
      reduce_members(members, parts.dtype, reduction, count(me, c), recv + c * chunk * size_of(recv_dtype), recv_dtype,
                     accumulate);
    }
    here = std::move(next);
  }
}

// Every member receives all data and sums it: one round of messages.
void MpiGroup::reduce_full(Call& call, const TensorView& data, Reduction reduction, std::byte* workspace) {
  const std::int64_t slot = round_up(data.bytes(), kSlotAlign);
  const auto slot_of = [&](int peer) { return workspace + (peer < call.index() ? peer : peer - 1) * slot; };
  call.each_peer([&](int p) { call.receive(p, slot_of(p), data.bytes()); });
  call.each_peer([&](int p) { call.send(p, data.raw(), data.bytes()); });
  call.post()->wait();
  std::vector<const std::byte*> members;
  for (int m = 0; m < call.size(); ++m) members.push_back(m == call.index() ? data.raw() : slot_of(m));
  reduce_members(members, data.dtype(), reduction, data.elements(), data.raw(), data.dtype(), /*accumulate=*/false);
}

Group::Work MpiGroup::all_gather_work(const TensorView& send, const TensorView& recv) {
  return [this, ticket = ticket(CollectiveKind::all_gather, send.bytes()), send, recv](const CudaNative*) {
    Call call(*this, ticket);
    call.each_peer([&](int p) { call.receive(p, recv.raw() + p * send.bytes(), send.bytes()); });
    call.each_peer([&](int p) { call.send(p, send.raw(), send.bytes()); });
    const ExchangePtr exchange = call.post();
    copy_bytes(recv.raw() + index() * send.bytes(), send.raw(), send.bytes());
    exchange->wait();
    call.finish();
  };
}

Group::Work MpiGroup::reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                                          const TensorView& workspace) {
  return [this, ticket = ticket(CollectiveKind::reduce_scatter, recv.elements() * size_of(send.dtype())), send, recv,
          accumulate, workspace](const CudaNative*) {
    Call call(*this, ticket);
    const Parts parts{.total = send.elements(), .part = recv.elements(), .dtype = send.dtype()};
    reduce_parts(call, send.raw(), parts, Reduction::sum, recv.raw(), recv.dtype(), accumulate, workspace.raw());
    call.finish();
  };
}

Group::Work MpiGroup::all_reduce_work(const TensorView& data, Reduction reduction, const TensorView& workspace) {
  return
      [this, ticket = ticket(CollectiveKind::all_reduce, data.bytes()), data, reduction, workspace](const CudaNative*) {
        Call call(*this, ticket);
        if (data.bytes() <= kGatherReduceBytes) {
          reduce_full(call, data, reduction, workspace.raw());
        } else {
          const Parts parts{.total = data.elements(), .part = ceil_div(data.elements(), size()), .dtype = data.dtype()};
          std::byte* mine = data.raw() + parts.begin(index()) * size_of(data.dtype());
          reduce_parts(call, data.raw(), parts, reduction, mine, data.dtype(), /*accumulate=*/false, workspace.raw());
          gather_parts(call, data.raw(), parts);
        }
        call.finish();
      };
}

Group::Work MpiGroup::all_to_all_work(const TensorView& send, const TensorView& recv) {
  return [this, ticket = ticket(CollectiveKind::all_to_all, send.bytes()), send, recv](const CudaNative*) {
    Call call(*this, ticket);
    const std::int64_t part = send.bytes() / size();
    call.each_peer([&](int p) { call.receive(p, recv.raw() + p * part, part); });
    call.each_peer([&](int p) { call.send(p, send.raw() + p * part, part); });
    const ExchangePtr exchange = call.post();
    copy_bytes(recv.raw() + index() * part, send.raw() + index() * part, part);
    exchange->wait();
    call.finish();
  };
}

// A message for each slot with rows. The two sides of a slot agree on its count, so they leave out the same ones.
Group::Work MpiGroup::all_to_all_v_work(const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                                        const TensorView&) {
  return
      [this, ticket = ticket(CollectiveKind::all_to_all_v, send.rows.bytes()), send, recv, bound](const CudaNative*) {
        Call call(*this, ticket);
        const CountedSlots from(send, bound), to(recv, bound);
        const std::int64_t each = from.slots() / size();
        const auto each_slot = [&](const CountedSlots& of, int member, const auto& act) {
          for (std::int64_t slot = member * each; slot < (member + 1) * each; ++slot) {
            const std::span<std::byte> rows = of.rows(slot);
            act(rows.data(), static_cast<std::int64_t>(rows.size()));
          }
        };
        call.each_peer(
            [&](int p) { each_slot(to, p, [&](auto* data, std::int64_t bytes) { call.receive(p, data, bytes); }); });
        call.each_peer(
            [&](int p) { each_slot(from, p, [&](auto* data, std::int64_t bytes) { call.send(p, data, bytes); }); });
        const ExchangePtr exchange = call.post();
        copy_counted(from, to, index() * each, each);
        exchange->wait();
        call.finish();
      };
}

Group::Work MpiGroup::broadcast_work(const TensorView& data, int root) {
  return [this, ticket = ticket(CollectiveKind::broadcast, data.bytes()), data, root](const CudaNative*) {
    Call call(*this, ticket);
    if (index() == root) {
      call.each_peer([&](int p) { call.send(p, data.raw(), data.bytes()); });
    } else {
      call.receive(root, data.raw(), data.bytes());
    }
    call.post()->wait();
    call.finish();
  };
}

Group::Work MpiGroup::send_work(const TensorView& data, int peer) {
  return [this, ticket = pair_ticket(CollectiveKind::send, data.bytes(), peer), data, peer](const CudaNative*) {
    Call call(*this, ticket);
    call.send(peer, data.raw(), data.bytes());
    call.post()->wait();
    call.finish();
  };
}

Group::Work MpiGroup::receive_work(const TensorView& data, int peer) {
  return [this, ticket = pair_ticket(CollectiveKind::receive, data.bytes(), peer), data, peer](const CudaNative*) {
    Call call(*this, ticket);
    call.receive(peer, data.raw(), data.bytes());
    call.post()->wait();
    call.finish();
  };
}

Group::Work MpiGroup::exchange_work(const TensorView& send, int to, const TensorView& recv, int from) {
  return [this, ticket = pair_ticket(CollectiveKind::exchange, send.bytes(), to), tag = pair_tag(received_, from), send,
          to, recv, from](const CudaNative*) {
    Call call(*this, ticket);
    call.send(to, send.raw(), send.bytes());
    call.set_tag(tag);
    call.receive(from, recv.raw(), recv.bytes());
    call.post()->wait();
    call.finish();
  };
}

Group::Work MpiGroup::barrier_work() {
  return [this, ticket = ticket(CollectiveKind::barrier, 0)](const CudaNative*) {
    Call call(*this, ticket);
    call.each_peer([&](int p) { call.signal(p); });
    call.post()->wait();
    call.finish();
  };
}

}  // namespace hawser::comm

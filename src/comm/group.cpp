#include "comm/group.h"

#include <algorithm>

#include "base/error.h"
#include "comm/reduce.h"

namespace hawser::comm {

namespace {

void expect_view(const Group& group, const Stream& stream, const char* what, const TensorView& view) {
  HAWSER_CHECK(view.dense(), what, " on ", group.name(), ": ", view.text(), " is not dense");
  HAWSER_CHECK(view.device() == stream.kind() || view.elements() == 0, what, " on ", group.name(), ": ", view.text(),
               " in a stream of ", to_string(stream.kind()));
}

void expect_dtype(const Group& group, const char* what, const TensorView& view, DType dtype) {
  HAWSER_CHECK(view.dtype() == dtype, what, " on ", group.name(), ": ", view.text(), " is not ", to_string(dtype));
}

void expect_number(const Group& group, const char* what, const TensorView& view) {
  HAWSER_CHECK(view.dtype() == DType::f32 || view.dtype() == DType::bf16, what, " on ", group.name(), ": ", view.text(),
               " is neither float32 nor bfloat16");
}

void expect_elements(const Group& group, const char* what, const TensorView& view, std::int64_t elements) {
  HAWSER_CHECK(view.elements() == elements, what, " on ", group.name(), ": ", view.text(), " has not ", elements,
               " elements");
}

void expect_workspace(const Group& group, const char* what, const TensorView& workspace, std::int64_t bytes) {
  if (bytes == 0) return;  // the view may be empty
  HAWSER_CHECK(!workspace.empty() && workspace.dense() && workspace.bytes() >= bytes, what, " on ", group.name(),
               ": a workspace of ", workspace.bytes(), " bytes where ", bytes, " are needed");
}

void expect_apart(const Group& group, const char* what, const TensorView& a, const TensorView& b) {
  HAWSER_CHECK(!overlap(reads(a), reads(b)), what, " on ", group.name(), ": ", a.text(), " overlaps ", b.text());
}

// `part` may be the member's own part of `full`, or must not overlap it.
void expect_own_part_or_apart(const Group& group, const char* what, const TensorView& part, const TensorView& full) {
  if (part.dtype() == full.dtype() && part.raw() == full.raw() + group.index() * part.bytes()) return;
  expect_apart(group, what, part, full);
}

void expect_peer(const Group& group, const char* what, int member, bool other) {
  HAWSER_CHECK(member >= 0 && member < group.size() && !(other && member == group.index()), what, " on ", group.name(),
               ": member ", member, " of ", group.size(), " (this is ", group.index(), ")");
}

// The bytes of the workspace that are used; the rest stays out of the op record.
Access writes_first(const TensorView& workspace, std::int64_t bytes) {
  return {.address = reinterpret_cast<std::uint64_t>(workspace.raw()), .row_bytes = bytes, .write = true};
}

}  // namespace

const char* to_string(Reduction reduction) {
  return reduction == Reduction::sum ? "sum" : "max";
}

ReduceSlots reduce_slots(std::int64_t n, DType reduce_dtype, int size, DeviceKind device) {
  const std::int64_t element = size_of(reduce_dtype), peers = size - 1;
  const auto of_elements = [&](std::int64_t chunk) {
    return ReduceSlots{.chunk = chunk, .slot = round_up(chunk * element, kSlotAlign), .sets = n > chunk ? 2 : 1};
  };
  if (device != DeviceKind::cuda) return of_elements(std::min(n, kReduceChunkBytes / element));
  const auto max = [&](std::int64_t slots) {
    return std::max(kCudaReduceBytes / slots / kSlotAlign, std::int64_t{1}) * kSlotAlign / element;
  };
  return of_elements(n <= max(peers) ? n : max(2 * peers));
}

std::int64_t reduce_scatter_workspace(std::int64_t n, DType reduce_dtype, int size, DeviceKind device) {
  if (size <= 1 || n <= 0) return 0;
  const ReduceSlots slots = reduce_slots(n, reduce_dtype, size, device);
  return slots.sets * (size - 1) * slots.slot;
}

std::int64_t all_reduce_workspace(std::int64_t n, DType dtype, int size, DeviceKind device) {
  if (size <= 1 || n <= 0) return 0;
  if (n * size_of(dtype) <= kGatherReduceBytes) {
    // On a GPU one all-gather brings all members' data, the own included.
    return (device == DeviceKind::cuda ? size : size - 1) * round_up(n * size_of(dtype), kSlotAlign);
  }
  return reduce_scatter_workspace(ceil_div(n, size), dtype, size, device);
}

namespace {

std::int64_t row_bytes_of(const CountedRows& rows) {
  return rows.rows.size(1) * size_of(rows.rows.dtype());
}

}  // namespace

std::int64_t counted_chunk(std::int64_t bound, std::int64_t slots, std::int64_t row_bytes) {
  return std::clamp<std::int64_t>(kCountedBytes / (slots * row_bytes), 1, std::max<std::int64_t>(bound, 1));
}

std::int64_t all_to_all_v_workspace(const CountedRows& rows, std::int64_t bound, int size, DeviceKind device) {
  if (device != DeviceKind::cuda || size == 1) return 0;
  const std::int64_t slots = rows.counts.elements(), bytes = row_bytes_of(rows);
  return 2 * slots * counted_chunk(bound, slots, bytes) * bytes;
}

Group::Group(std::string name, int size, int index) : name_(std::move(name)), size_(size), index_(index) {
  HAWSER_CHECK(index >= 0 && index < size, "member ", index, " of ", size, " in ", name_);
}

void Group::launch(Stream& stream, const CollectiveNote& note, std::vector<Access> accesses, Work work) {
  if (!work) return;
  OpRecord record{.name = to_string(note.kind), .kind = OpKind::communication, .accesses = std::move(accesses)};
  if (size_ > 1) {
    record.collective = note;
    record.collective.communicator = name_;
  }
  stream.launch(std::move(record), [native = stream.native(), work = std::move(work)] { work(native); });
}

void Group::all_gather(Stream& stream, const TensorView& send, const TensorView& recv) {
  constexpr const char* kWhat = "all_gather";
  expect_view(*this, stream, kWhat, send);
  expect_view(*this, stream, kWhat, recv);
  expect_dtype(*this, kWhat, recv, send.dtype());
  expect_elements(*this, kWhat, recv, size_ * send.elements());
  expect_own_part_or_apart(*this, kWhat, send, recv);
  if (send.elements() == 0) return;
  launch(stream, {.kind = CollectiveKind::all_gather, .bytes = send.bytes()}, {reads(send), writes(recv)},
         all_gather_work(send, recv));
}

void Group::reduce_scatter(Stream& stream, const TensorView& send, const TensorView& recv, bool accumulate,
                           const TensorView& workspace) {
  constexpr const char* kWhat = "reduce_scatter";
  expect_view(*this, stream, kWhat, send);
  expect_view(*this, stream, kWhat, recv);
  expect_number(*this, kWhat, send);
  if (recv.dtype() != DType::f32) expect_dtype(*this, kWhat, recv, send.dtype());
  expect_elements(*this, kWhat, send, size_ * recv.elements());
  if (accumulate) {
    expect_apart(*this, kWhat, recv, send);
  } else {
    expect_own_part_or_apart(*this, kWhat, recv, send);
  }
  const std::int64_t bytes = reduce_scatter_workspace(recv.elements(), send.dtype(), size_, stream.target());
  expect_workspace(*this, kWhat, workspace, bytes);
  if (bytes > 0) {
    expect_view(*this, stream, kWhat, workspace);
    expect_apart(*this, kWhat, workspace, send);
    expect_apart(*this, kWhat, workspace, recv);
  }
  if (recv.elements() == 0) return;
  std::vector<Access> accesses{reads(send), writes(recv)};
  if (accumulate) accesses.push_back(reads(recv));
  if (bytes > 0) accesses.push_back(writes_first(workspace, bytes));
  launch(stream, {.kind = CollectiveKind::reduce_scatter, .bytes = recv.elements() * size_of(send.dtype())},
         std::move(accesses), reduce_scatter_work(send, recv, accumulate, workspace));
}

void Group::all_reduce(Stream& stream, const TensorView& data, Reduction reduction, const TensorView& workspace,
                       std::int64_t label) {
  constexpr const char* kWhat = "all_reduce";
  expect_view(*this, stream, kWhat, data);
  expect_number(*this, kWhat, data);
  const std::int64_t bytes = all_reduce_workspace(data.elements(), data.dtype(), size_, stream.target());
  expect_workspace(*this, kWhat, workspace, bytes);
  if (bytes > 0) {
    expect_view(*this, stream, kWhat, workspace);
    expect_apart(*this, kWhat, workspace, data);
  }
  if (data.elements() == 0) return;
  std::vector<Access> accesses{reads(data), writes(data)};
  if (bytes > 0) accesses.push_back(writes_first(workspace, bytes));
  launch(stream, {.kind = CollectiveKind::all_reduce, .bytes = data.bytes(), .label = label}, std::move(accesses),
         all_reduce_work(data, reduction, workspace));
}

void Group::all_to_all(Stream& stream, const TensorView& send, const TensorView& recv) {
  constexpr const char* kWhat = "all_to_all";
  expect_view(*this, stream, kWhat, send);
  expect_view(*this, stream, kWhat, recv);
  expect_dtype(*this, kWhat, recv, send.dtype());
  expect_elements(*this, kWhat, recv, send.elements());
  HAWSER_CHECK(send.elements() % size_ == 0, kWhat, " on ", name_, ": ", send.text(), " in ", size_, " parts");
  expect_apart(*this, kWhat, send, recv);
  if (send.elements() == 0) return;
  launch(stream, {.kind = CollectiveKind::all_to_all, .bytes = send.bytes()}, {reads(send), writes(recv)},
         all_to_all_work(send, recv));
}

void Group::all_to_all_v(Stream& stream, const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                         const TensorView& workspace, double expected_rows) {
  constexpr const char* kWhat = "all_to_all_v";
  expect_view(*this, stream, kWhat, send.rows);
  expect_view(*this, stream, kWhat, recv.rows);
  expect_dtype(*this, kWhat, recv.rows, send.rows.dtype());
  HAWSER_CHECK(send.rows.rank() == 2 && recv.rows.rank() == 2 && send.rows.size(1) == recv.rows.size(1), kWhat, " on ",
               name_, ": ", send.rows.text(), " to ", recv.rows.text());
  const std::int64_t slots = send.counts.elements();
  for (const TensorView* view : {&send.counts, &send.offsets, &recv.counts, &recv.offsets}) {
    expect_view(*this, stream, kWhat, *view);
    expect_dtype(*this, kWhat, *view, DType::i32);
    expect_elements(*this, kWhat, *view, slots);
  }
  HAWSER_CHECK(slots > 0 && slots % size_ == 0 && bound >= 0, kWhat, " on ", name_, ": ", slots, " slots of at most ",
               bound, " rows, for ", size_, " members");
  const std::int64_t bytes = all_to_all_v_workspace(send, bound, size_, stream.target());
  expect_workspace(*this, kWhat, workspace, bytes);
  std::vector<Access> accesses{reads(send.rows),    writes(recv.rows),  reads(send.counts),
                               reads(send.offsets), reads(recv.counts), reads(recv.offsets)};
  if (bytes > 0) accesses.push_back(writes_first(workspace, bytes));
  for (std::size_t written : {std::size_t{1}, std::size_t{6}}) {
    for (std::size_t i = 0; i < accesses.size() && written < accesses.size(); ++i) {
      HAWSER_CHECK(i == written || !overlap(accesses[i], accesses[written]), kWhat, " on ", name_, ": view ", i,
                   " overlaps view ", written);
    }
  }
  const std::int64_t row_bytes = row_bytes_of(send);
  const std::int64_t most = std::min(send.rows.bytes(), slots * bound * row_bytes);
  if (most == 0) return;
  launch(stream,
         {.kind = CollectiveKind::all_to_all_v,
          .bytes = slots * round_up(bound, counted_chunk(bound, slots, row_bytes)) * row_bytes,
          .expected_bytes =
              expected_rows > 0 ? expected_rows * static_cast<double>(row_bytes) : static_cast<double>(most)},
         std::move(accesses), all_to_all_v_work(send, recv, bound, workspace));
}

void Group::broadcast(Stream& stream, const TensorView& data, int root) {
  expect_view(*this, stream, "broadcast", data);
  expect_peer(*this, "broadcast", root, /*other=*/false);
  if (data.elements() == 0) return;
  launch(stream, {.kind = CollectiveKind::broadcast, .bytes = data.bytes(), .peer = root},
         {index_ == root ? reads(data) : writes(data)}, broadcast_work(data, root));
}

void Group::send(Stream& stream, const TensorView& data, int peer, std::int64_t label) {
  expect_view(*this, stream, "send", data);
  expect_peer(*this, "send", peer, /*other=*/true);
  if (data.elements() == 0) return;
  launch(stream, {.kind = CollectiveKind::send, .bytes = data.bytes(), .peer = peer, .label = label}, {reads(data)},
         send_work(data, peer));
}

void Group::receive(Stream& stream, const TensorView& data, int peer, std::int64_t label) {
  expect_view(*this, stream, "receive", data);
  expect_peer(*this, "receive", peer, /*other=*/true);
  if (data.elements() == 0) return;
  launch(stream, {.kind = CollectiveKind::receive, .bytes = data.bytes(), .peer = peer, .label = label}, {writes(data)},
         receive_work(data, peer));
}

void Group::exchange(Stream& stream, const TensorView& send, int to, const TensorView& recv, int from,
                     std::int64_t label) {
  constexpr const char* kWhat = "exchange";
  expect_view(*this, stream, kWhat, send);
  expect_view(*this, stream, kWhat, recv);
  expect_peer(*this, kWhat, to, /*other=*/true);
  expect_peer(*this, kWhat, from, /*other=*/true);
  HAWSER_CHECK(send.bytes() == recv.bytes(), kWhat, " on ", name_, ": sends ", send.bytes(), " bytes and receives ",
               recv.bytes());
  expect_apart(*this, kWhat, send, recv);
  if (send.elements() == 0) return;
  launch(stream, {.kind = CollectiveKind::exchange, .bytes = send.bytes(), .peer = to, .source = from, .label = label},
         {reads(send), writes(recv)}, exchange_work(send, to, recv, from));
}

void Group::barrier(Stream& stream) {
  launch(stream, {.kind = CollectiveKind::barrier}, {}, barrier_work());
}

}  // namespace hawser::comm

#include "train/snapshot.h"

#include <algorithm>
#include <cstring>

#include "engine/session.h"

namespace hawser::train {

namespace {

// On a GPU's stream, transfer() between two host buffers blocks the caller until the stream gets there, so a host
// function copies, in pieces, since it must be short.
void copy_on_host(Stream& stream, const engine::StatePart& part, std::int64_t piece_bytes) {
  for (std::int64_t begin = 0; begin < part.device.bytes(); begin += piece_bytes) {
    const std::int64_t bytes = std::min(piece_bytes, part.device.bytes() - begin);
    stream.call_host({.name = "snapshot", .kind = OpKind::transfer, .accesses = {reads(part.device)}},
                     [to = part.host.raw() + begin, from = part.device.raw() + begin, bytes] {
                       std::memcpy(to, from, static_cast<std::size_t>(bytes));
                     });
  }
}

}  // namespace

Snapshot::Snapshot(engine::Session& session, engine::StateScope scope, std::int64_t piece_bytes)
    : session_(session), piece_bytes_(piece_bytes), parts_(engine::state_parts(session, scope)) {
  arena_ = Arena(session.device(), engine::place_copies(parts_, nullptr), Memory::host);
  engine::place_copies(parts_, arena_.data());
  stream_ = session.device().make_stream("snapshot");
  if (session.device().kind() != DeviceKind::cpu) return;
  // Touch the pages once, so that the first copy is as fast as later ones: the system allocates pages at the first
  // write.
  stream_->launch({.name = "touch", .kind = OpKind::host}, [data = arena_.data(), bytes = arena_.bytes()] {
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  });
}

void Snapshot::take(const Event& step_end) {
  stream_->wait(step_end);
  std::vector<Event> copied(session_.model().flats().size() + 1);  // by flat, then of the tables
  for (const engine::StatePart& part : parts_) {
    if (part.on_host()) {
      copy_on_host(*stream_, part, piece_bytes_);
    } else {
      transfer(*stream_, {.name = "snapshot", .kind = OpKind::transfer, .accesses = {reads(part.device)}},
               part.host.raw(), part.device.raw(), part.device.bytes());
    }
    (part.flat ? copied[static_cast<std::size_t>(*part.flat)] : copied.back()) = stream_->record_event();
  }
  session_.hold_updates(copied);
}

void Snapshot::wait() {
  stream_->synchronize();
}

}  // namespace hawser::train

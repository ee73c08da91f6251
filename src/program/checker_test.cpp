#include "program/checker.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "program/testing/reachability.h"
#include "program/testing/traces.h"
#include "program/written.h"

namespace hawser::program {
namespace checker_test {

using testing::pick;
using testing::Recorder;
using testing::StepSizes;
using testing::StepTrace;

std::string text(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// Expects a line that contains all the words.
void expect_defect(const std::vector<std::string>& lines, const std::vector<std::string>& words) {
  for (const std::string& line : lines) {
    bool all = true;
    for (const std::string& word : words) all = all && line.find(word) != std::string::npos;
    if (all) return;
  }
  ADD_FAILURE() << "no line with " << words.front() << " in:\n" << text(lines);
}

std::vector<std::string> memory_of(const Recorder& r, const Placement* placement = nullptr) {
  return check_memory({.trace = &r.trace(), .buffers = &r.buffers(), .placement = placement});
}

std::vector<std::string> collectives_of(const std::vector<const Recorder*>& recorders) {
  std::vector<RankTrace> ranks;
  for (std::size_t i = 0; i < recorders.size(); ++i) {
    ranks.push_back(
        {.rank = static_cast<int>(i), .trace = &recorders[i]->trace(), .buffers = &recorders[i]->buffers()});
  }
  return check_collectives(ranks);
}

CollectiveNote note(CollectiveKind kind, const char* communicator, std::int64_t bytes, int peer = -1) {
  return {.kind = kind, .communicator = communicator, .bytes = bytes, .peer = peer};
}

void record_collective(Recorder& r, int stream, const CollectiveNote& what) {
  r.launch(stream, {.name = to_string(what.kind), .kind = OpKind::communication, .collective = what});
}

// ---- memory

TEST(CheckMemory, PassesGoodSteps) {
  for (const StepSizes& sizes : {StepSizes{}, StepSizes{.layers = 3, .micro_batches = 3},
                                 StepSizes{.layers = 5, .micro_batches = 2, .full = true}}) {
    StepTrace step(sizes);
    const Placement placement = place(step.recorder().trace(), step.recorder().buffers());
    EXPECT_EQ(text(memory_of(step.recorder(), &placement)), "");
    EXPECT_EQ(text(collectives_of({&step.recorder(), &step.recorder()})), "");
  }
}

// True if two accesses to the same byte of the arena (or of one persistent buffer), one a write, are not ordered.
bool has_race(const Trace& trace, const std::vector<Buffer>& buffers, const Placement& placement) {
  const testing::Reachability truth(trace);
  auto accesses = testing::accesses_of(trace, buffers);
  for (auto& a : accesses) {
    const auto b = static_cast<std::size_t>(a.buffer);
    if (placement.offsets[b] >= 0) {
      a.access.address = a.access.address - buffers[b].address + static_cast<std::uint64_t>(placement.offsets[b]);
    }
  }
  for (std::size_t j = 0; j < accesses.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      const auto &a = accesses[i], &b = accesses[j];
      if (a.item == b.item || (!a.access.write && !b.access.write) || truth.before(a.item, b.item)) continue;
      if (overlap(a.access, b.access)) return true;
    }
  }
  return false;
}

// Removes each wait of a step in turn. The checker must reject the step, unless no two conflicting accesses have become
// unordered: then the wait was redundant.
void expect_every_removed_wait_found(const StepSizes& sizes) {
  StepTrace step(sizes);
  const Recorder& r = step.recorder();
  const Placement placement = place(r.trace(), r.buffers());
  int waits = 0, rejected = 0, redundant = 0;
  for (std::size_t i = 0; i < r.trace().items.size(); ++i) {
    if (r.trace().items[i].kind != TraceItem::Kind::wait) continue;
    ++waits;
    Trace trace = r.trace();
    trace.items[i].kind = TraceItem::Kind::record_event;  // keeps the item, orders nothing
    const bool found = !check_memory({.trace = &trace, .buffers = &r.buffers(), .placement = &placement}).empty();
    const bool race = has_race(trace, r.buffers(), placement);
    ASSERT_TRUE(found || !race) << "the wait at item " << i << " was removed and no defect was found";
    (found ? rejected : redundant) += 1;
  }
  std::printf("%d waits: %d removals rejected, %d redundant\n", waits, rejected, redundant);
  EXPECT_GT(rejected, waits / 2);
}

TEST(CheckMemory, RejectsAStepWithoutOneOfItsWaits) {
  expect_every_removed_wait_found({.layers = 4});
  expect_every_removed_wait_found({.layers = 3, .micro_batches = 2, .full = true});
}

TEST(CheckMemory, FindsRacesExactlyOnRandomTraces) {
  int races = 0, clean = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const auto r = testing::random_trace(seed, 2 + static_cast<int>(seed % 3), 30, 60, seed % 2 == 0);
    Placement nowhere;
    nowhere.offsets.assign(r->buffers().size(), -1);
    const bool race = has_race(r->trace(), r->buffers(), nowhere);
    bool found = false;
    for (const std::string& line : memory_of(*r)) found = found || line.find("race on") == 0;
    ASSERT_EQ(found, race) << "seed " << seed;
    ++(race ? races : clean);
  }
  EXPECT_GT(races, 10);
  EXPECT_GT(clean, 10);
}

TEST(CheckMemory, NamesARace) {
  Recorder r({"compute", "gather"});
  const int x = r.buffer("weights 3", "weights", 100);
  r.instruction(7);
  r.work(1, "all_gather", {}, {x});
  r.work(0, "gemm", {x}, {});
  expect_defect(memory_of(r),
                {"race on weights 3", "all_gather", "instruction 7", "stream gather", "gemm", "stream compute"});
}

TEST(CheckMemory, AllowsConcurrentUseOfDisjointColumns) {
  Recorder r({"a", "b"});
  const int x = r.buffer("x", "temp", 1000);
  const std::uint64_t at = r.buffers()[0].address;
  r.launch(0, {.name = "left",
               .kind = OpKind::copy,
               .accesses = {{.address = at, .row_bytes = 40, .rows = 10, .stride = 100, .write = true}}});
  r.launch(1, {.name = "right",
               .kind = OpKind::copy,
               .accesses = {{.address = at + 40, .row_bytes = 60, .rows = 10, .stride = 100, .write = true}}});
  EXPECT_EQ(text(memory_of(r)), "");
  r.after(0, 1);
  r.work(0, "read", {x}, {});
  EXPECT_EQ(text(memory_of(r)), "");
}

TEST(CheckMemory, FindsReadsOfUnwrittenBytes) {
  Recorder r({"compute"});
  const int x = r.buffer("x", "temp", 1000), y = r.buffer("y", "temp", 1000), z = r.buffer("z", "temp", 1000);
  const int kept = r.buffer("kept", testing::kPersistent, 1000);
  r.work(0, "copy", {kept}, {y});
  r.work(0, "gemm", {x}, {x});  // reads before it writes
  Access half = r.write(z);
  half.row_bytes = 500;
  r.launch(0, {.name = "half", .kind = OpKind::copy, .accesses = {half}});
  r.work(0, "sum", {y, z}, {});
  const auto lines = memory_of(r);
  EXPECT_EQ(lines.size(), 2u) << text(lines);
  expect_defect(lines, {"x is read before it is written", "gemm"});
  expect_defect(lines, {"z is read before it is written", "sum"});
}

// State in host memory: written before the step, not placed in an arena, and not free of races.
TEST(CheckMemory, KnowsPersistentHostMemory) {
  for (const bool waits : {true, false}) {
    Recorder r({"copy_in", "copy_out"});
    const int state = r.buffer("state", testing::kPersistentHost, 1000), staged = r.buffer("staged", "temp", 1000);
    r.work(0, "state_in", {state}, {staged});
    r.after(1, 0);
    r.work(1, "state_out", {staged}, {state});
    if (waits) r.after(0, 1);
    r.work(0, "state_in", {state}, {});
    const Placement device = place(r.trace(), r.buffers());
    const Placement host = place(r.trace(), r.buffers(), Placing::offsets, 1 << 20, Space::host);
    EXPECT_EQ(device.bytes, 1024);
    EXPECT_EQ(host.bytes, 0);
    const auto lines =
        check_memory({.trace = &r.trace(), .buffers = &r.buffers(), .placement = &device, .host_placement = &host});
    EXPECT_EQ(lines.size(), waits ? 0u : 1u) << text(lines);
    if (!waits) expect_defect(lines, {"race on state", "state_out", "state_in"});
  }
}

TEST(CheckMemory, FindsAccessesOutsideBuffers) {
  Recorder r({"compute"});
  const int x = r.buffer("x", "temp", 1000);
  Access access = r.write(x);
  access.row_bytes = 1001;
  r.launch(0, {.name = "long", .kind = OpKind::copy, .accesses = {access}});
  access.address -= 10, access.row_bytes = 5;
  r.launch(0, {.name = "wild", .kind = OpKind::copy, .accesses = {access}});
  Placement placement;
  placement.offsets = {0};
  placement.bytes = 1024;
  const auto lines = memory_of(r, &placement);
  expect_defect(lines, {"x is accessed past its end", "long"});
  expect_defect(lines, {"outside every buffer", "wild"});
}

TEST(CheckMemory, FindsBadPlacements) {
  Recorder r({"a", "b"});
  const int x = r.buffer("x", "temp", 1000), y = r.buffer("y", "temp", 1000);
  r.work(0, "one", {}, {x});
  r.work(1, "two", {}, {y});
  Placement placement = place(r.trace(), r.buffers());
  EXPECT_EQ(text(memory_of(r, &placement)), "");
  const Placement good = placement;
  placement.offsets[1] = placement.offsets[0];
  expect_defect(memory_of(r, &placement), {"share bytes"});
  placement = good;
  placement.offsets[1] = 1024 + 512 + 8;
  expect_defect(memory_of(r, &placement), {"y is not aligned"});
  expect_defect(memory_of(r, &placement), {"y ends after the arena's end"});
  placement = good;
  placement.offsets[0] = -1;
  expect_defect(memory_of(r, &placement), {"x is used but not placed"});
}

// Placements of which some buffers are moved, so that they share bytes with several others in part.
TEST(CheckMemory, FindsSharedBytesExactlyOnRandomPlacements) {
  int shared = 0, clean = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const int streams = 1 + static_cast<int>(seed % 3), buffers = 3 + static_cast<int>(seed % 8);
    const auto r = testing::random_trace(seed, streams, 6 * buffers, buffers);
    const Order order(r->trace());
    const Lifetimes lifetimes(r->trace(), order, r->buffers());
    std::vector<Buffer> sized = r->buffers();
    for (Buffer& b : sized) b.bytes = std::max(b.bytes, std::int64_t{256} * pick(random, 1, 30));
    Placement placement = place(r->trace(), sized);
    for (int moves = pick(random, 0, 4); moves > 0; --moves) {
      const auto moved = static_cast<std::size_t>(pick(random, 0, buffers));
      if (placement.offsets[moved] < 0) continue;
      placement.offsets[moved] = std::int64_t{256} * pick(random, 0, static_cast<int>(placement.bytes / 256));
    }
    bool truth = false;
    for (int a = 0; a < static_cast<int>(sized.size()); ++a) {
      for (int b = 0; b < a; ++b) {
        const auto x = static_cast<std::size_t>(a), y = static_cast<std::size_t>(b);
        const bool apart = placement.offsets[x] + sized[x].bytes <= placement.offsets[y] ||
                           placement.offsets[y] + sized[y].bytes <= placement.offsets[x];
        const bool placed = placement.offsets[x] >= 0 && placement.offsets[y] >= 0;
        truth = truth || (placed && !apart && !lifetimes.disjoint(a, b));
      }
    }
    bool found = false;
    for (const std::string& line : check_memory({.trace = &r->trace(), .buffers = &sized, .placement = &placement})) {
      found = found || line.find("share bytes") != std::string::npos;
    }
    ASSERT_EQ(found, truth) << "seed " << seed;
    ++(truth ? shared : clean);
  }
  EXPECT_GT(shared, 400);
  EXPECT_GT(clean, 400);
}

TEST(Written, EqualsAMapOfBytes) {
  std::mt19937 random(5);
  int covered = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::int64_t period = pick(random, 4, 12), rows = pick(random, 1, 6);
    const auto draw = [&](bool write) {
      if (pick(random, 0, 3) == 0) {
        const int begin = pick(random, 0, static_cast<int>(period * rows));
        return Access{.address = 1000 + static_cast<std::uint64_t>(begin),
                      .row_bytes = pick(random, 1, static_cast<int>(period * rows) - begin + 1),
                      .write = write};
      }
      const int row = pick(random, 0, static_cast<int>(rows)), column = pick(random, 0, static_cast<int>(period));
      return Access{.address = 1000 + static_cast<std::uint64_t>(row * period + column),
                    .row_bytes = pick(random, 1, static_cast<int>(period) - column + 1),
                    .rows = pick(random, 1, static_cast<int>(rows) - row + 1),
                    .stride = period,
                    .write = write};
    };
    std::vector<bool> bytes(static_cast<std::size_t>(period * rows + period), false);
    const auto each = [&](const Access& access, const auto& visit) {
      for (std::int64_t i = 0; i < access.rows; ++i) {
        for (std::int64_t k = 0; k < access.row_bytes; ++k) {
          visit(static_cast<std::size_t>(static_cast<std::int64_t>(access.address) - 1000 + i * access.stride + k));
        }
      }
    };
    Written written(1000);
    for (int i = pick(random, 1, 7); i > 0; --i) {
      const Access write = draw(true);
      written.add(write);
      each(write, [&](std::size_t at) { bytes[at] = true; });
    }
    const Access read = draw(false);
    bool truth = true;
    each(read, [&](std::size_t at) { truth = truth && bytes[at]; });
    ASSERT_EQ(written.covers(read), truth);
    covered += truth ? 1 : 0;
  }
  EXPECT_GT(covered, 300);
}

// ---- collectives

TEST(CheckCollectives, FindsMismatchedCollectives) {
  Recorder a({"s"}), b({"s"}), c({"s"});
  for (Recorder* r : {&a, &b, &c}) record_collective(*r, 0, note(CollectiveKind::all_gather, "shard", 64));
  record_collective(a, 0, note(CollectiveKind::all_reduce, "shard", 4));
  record_collective(b, 0, note(CollectiveKind::all_reduce, "shard", 8));
  EXPECT_EQ(text(collectives_of({&a, &a})), "");
  expect_defect(collectives_of({&a, &b}), {"collective 1 of shard", "all_reduce of 4 bytes", "all_reduce of 8 bytes"});
  const auto lines = collectives_of({&a, &c});
  expect_defect(lines, {"collective 1 of shard", "rank 1 calls nothing"});
  expect_defect(lines, {"deadlock: rank 0", "all_reduce of 4 bytes on shard"});
  Recorder d({"s"}), e({"s"});
  record_collective(d, 0, note(CollectiveKind::broadcast, "world", 4, 0));
  record_collective(e, 0, note(CollectiveKind::broadcast, "world", 4, 1));
  expect_defect(collectives_of({&d, &e}), {"broadcast", "member 0", "member 1"});
}

TEST(CheckCollectives, FindsDifferentOrdersOfTwoCommunicators) {
  Recorder a({"s"}), b({"s"});
  record_collective(a, 0, note(CollectiveKind::all_gather, "context", 64));
  record_collective(a, 0, note(CollectiveKind::all_reduce, "data", 4));
  record_collective(b, 0, note(CollectiveKind::all_reduce, "data", 4));
  record_collective(b, 0, note(CollectiveKind::all_gather, "context", 64));
  const auto lines = collectives_of({&a, &b});
  expect_defect(lines, {"deadlock: rank 0", "all_gather"});
  expect_defect(lines, {"deadlock: rank 1", "all_reduce"});
  // On separate streams they do not wait for each other.
  Recorder c({"s", "t"}), d({"s", "t"});
  record_collective(c, 0, note(CollectiveKind::all_gather, "context", 64));
  record_collective(c, 1, note(CollectiveKind::all_reduce, "data", 4));
  record_collective(d, 1, note(CollectiveKind::all_reduce, "data", 4));
  record_collective(d, 0, note(CollectiveKind::all_gather, "context", 64));
  EXPECT_EQ(text(collectives_of({&c, &d})), "");
}

TEST(CheckCollectives, FindsACyclicWaitThroughEvents) {
  // Rank 0: t's collective waits for s's. Rank 1: s's waits for t's.
  Recorder a({"s", "t"}), b({"s", "t"});
  record_collective(a, 0, note(CollectiveKind::all_gather, "context", 64));
  a.after(1, 0);
  record_collective(a, 1, note(CollectiveKind::all_reduce, "data", 4));
  record_collective(b, 1, note(CollectiveKind::all_reduce, "data", 4));
  b.after(0, 1);
  record_collective(b, 0, note(CollectiveKind::all_gather, "context", 64));
  const auto lines = collectives_of({&a, &b});
  expect_defect(lines, {"deadlock: rank 0, stream t waits for an event"});
  expect_defect(lines, {"deadlock: rank 1, stream s waits for an event"});
  EXPECT_EQ(text(collectives_of({&a, &a})), "");
}

TEST(CheckCollectives, FindsUnorderedUseOfACommunicatorOnTwoStreams) {
  Recorder a({"s", "t"});
  record_collective(a, 0, note(CollectiveKind::all_gather, "shard", 64));
  record_collective(a, 1, note(CollectiveKind::all_gather, "shard", 64));
  expect_defect(collectives_of({&a, &a}), {"rank 0", "use shard without an order"});
  Recorder b({"s", "t"});
  record_collective(b, 0, note(CollectiveKind::all_gather, "shard", 64));
  b.after(1, 0);
  record_collective(b, 1, note(CollectiveKind::all_gather, "shard", 64));
  EXPECT_EQ(text(collectives_of({&b, &b})), "");
}

TEST(CheckCollectives, PairsSendsAndReceives) {
  // A ring of three, each rank sending on one stream and receiving on another.
  const auto ring = [](int member, std::int64_t bytes) {
    auto r = std::make_unique<Recorder>(std::vector<std::string>{"send", "receive"});
    for (int round = 0; round < 2; ++round) {
      record_collective(*r, 0, note(CollectiveKind::send, "out", bytes + round, (member + 1) % 3));
      record_collective(*r, 1, note(CollectiveKind::receive, "out", bytes + round, (member + 2) % 3));
      r->after(0, 1);
      r->after(1, 0);
    }
    return r;
  };
  const auto a = ring(0, 100), b = ring(1, 100), c = ring(2, 100), other = ring(2, 200);
  // One communicator on two streams: the pairs match, but their order is not fixed, which NCCL requires.
  std::vector<std::string> lines = collectives_of({a.get(), b.get(), c.get()});
  std::erase_if(lines, [](const std::string& line) { return line.find("without an order") != std::string::npos; });
  EXPECT_EQ(text(lines), "");
  expect_defect(collectives_of({a.get(), b.get(), other.get()}),
                {"message 0 from rank 1 to rank 2", "send of 100", "receive of 200"});
  // If a member is not given, pairs are unknown and count as matched.
  lines = collectives_of({a.get(), b.get()});
  std::erase_if(lines, [](const std::string& line) { return line.find("without an order") != std::string::npos; });
  EXPECT_EQ(text(lines), "");
}

TEST(CheckCollectives, FindsSendsThatWaitForOneAnother) {
  Recorder a({"s"}), b({"s"}), c({"s"});
  record_collective(a, 0, note(CollectiveKind::send, "pair", 64, 1));
  record_collective(a, 0, note(CollectiveKind::receive, "pair", 64, 1));
  record_collective(b, 0, note(CollectiveKind::send, "pair", 64, 0));
  record_collective(b, 0, note(CollectiveKind::receive, "pair", 64, 0));
  record_collective(c, 0, note(CollectiveKind::receive, "pair", 64, 0));
  record_collective(c, 0, note(CollectiveKind::send, "pair", 64, 0));
  const auto lines = collectives_of({&a, &b});
  expect_defect(lines, {"deadlock: rank 0", "send of 64 bytes on pair with member 1"});
  expect_defect(lines, {"deadlock: rank 1", "send of 64 bytes on pair with member 0"});
  EXPECT_EQ(text(collectives_of({&a, &c})), "");
  Recorder d({"s"});
  record_collective(d, 0, note(CollectiveKind::receive, "pair", 64, 0));
  expect_defect(collectives_of({&a, &d}), {"message 0 from rank 1 to rank 0", "nothing is sent"});
}

TEST(CheckCollectives, ExchangesOfARingMeet) {
  const auto member = [](int index, int members, std::int64_t bytes) {
    auto r = std::make_unique<Recorder>(std::vector<std::string>{"s"});
    for (int round = 0; round < 2; ++round) {
      CollectiveNote exchange = note(CollectiveKind::exchange, "ring", bytes + round, (index + 1) % members);
      exchange.source = (index + members - 1) % members;
      record_collective(*r, 0, exchange);
    }
    return r;
  };
  const auto labelled = [](std::int64_t label) {
    auto r = std::make_unique<Recorder>(std::vector<std::string>{"s"});
    CollectiveNote exchange = note(CollectiveKind::exchange, "pair", 64, label == 1 ? 1 : 0);
    exchange.source = exchange.peer;
    exchange.label = label;
    record_collective(*r, 0, exchange);
    return r;
  };
  expect_defect(collectives_of({labelled(1).get(), labelled(2).get()}), {"message 0 from rank 0 to rank 1"});
  const auto reduced = [](std::int64_t label) {
    auto r = std::make_unique<Recorder>(std::vector<std::string>{"s"});
    CollectiveNote sum = note(CollectiveKind::all_reduce, "pair", 64);
    sum.label = label;
    record_collective(*r, 0, sum);
    return r;
  };
  EXPECT_EQ(text(collectives_of({reduced(1).get(), reduced(1).get()})), "");
  expect_defect(collectives_of({reduced(0).get(), reduced(1).get()}), {"collective 0 of pair", "label 0.1"});
  const auto a = member(0, 3, 64), b = member(1, 3, 64), c = member(2, 3, 64), wrong = member(2, 3, 32);
  EXPECT_EQ(text(collectives_of({a.get(), b.get(), c.get()})), "");
  expect_defect(collectives_of({a.get(), b.get(), wrong.get()}),
                {"message 0 from rank 1 to rank 2", "exchange of 64", "exchange of 32"});
  // An exchange with a send and a receive of the other member, in either order.
  const auto pair = member(0, 2, 64);
  Recorder sends({"s"}), once({"s"});
  for (int round = 0; round < 2; ++round) {
    record_collective(sends, 0, note(CollectiveKind::receive, "ring", 64 + round, 0));
    record_collective(sends, 0, note(CollectiveKind::send, "ring", 64 + round, 0));
  }
  EXPECT_EQ(text(collectives_of({pair.get(), &sends})), "");
  // The second member never receives: the exchange's own receive does not help.
  record_collective(once, 0, note(CollectiveKind::send, "ring", 64, 0));
  expect_defect(collectives_of({pair.get(), &once}), {"deadlock: rank 0", "exchange of 64 bytes"});
}

TEST(CheckCollectives, ReportsAtMostMaxDefects) {
  Recorder a({"s"});
  const int x = a.buffer("x", "temp", 8);
  (void)x;
  for (int i = 0; i < 100; ++i)
    a.launch(0, {.name = "wild", .kind = OpKind::copy, .accesses = {{.address = 1, .row_bytes = 4}}});
  EXPECT_EQ(memory_of(a).size(), static_cast<std::size_t>(kMaxDefects));
}

}  // namespace checker_test
}  // namespace hawser::program

#include "plan/shared_plan.h"

#include <xxhash.h>

#include <sstream>

namespace hawser::plan {

namespace {

std::uint64_t hash_of(const program::Program& program) {
  const std::string text = program.text();
  return XXH3_64bits(text.data(), text.size());
}

// The lines of a text, in order; InternalError if there is no further one.
class Lines {
 public:
  explicit Lines(const std::string& text) : in_(text) {}
  std::string next() {
    std::string line;
    HAWSER_CHECK(static_cast<bool>(std::getline(in_, line)), "a plan's text ends early");
    return line;
  }
  template <class... Numbers>
  void numbers(Numbers&... out) {
    std::istringstream line(next());
    HAWSER_CHECK(static_cast<bool>((line >> ... >> out)), "a plan's text has a line without numbers");
  }

 private:
  std::istringstream in_;
};

}  // namespace

std::string plan_text(const RankPlan& plan) {
  std::ostringstream out;
  const program::Placement& placement = plan.buffers.placement;
  out << hash_of(plan.program) << ' ' << plan.stage << '\n'
      << plan.parameter_bytes << ' ' << plan.optimizer_bytes << ' ' << plan.kv_cache_bytes << ' '
      << plan.reference_bytes << ' ' << plan.saved_bytes << ' ' << plan.state_bytes << ' ' << plan.scratch_bytes << '\n'
      << placement.bytes << ' ' << placement.live_bytes << ' ' << plan.host_bytes() << ' ' << plan.staging_bytes << ' '
      << plan.host_state_bytes << ' ' << plan.staged_bytes << '\n'
      << plan.buffers.index.size() << '\n';
  for (const auto& [key, index] : plan.buffers.index) {
    const auto i = static_cast<std::size_t>(index);
    out << static_cast<int>(key.role) << ' ' << key.a << ' ' << key.b << ' ' << plan.buffers.buffers[i].bytes << ' '
        << plan.buffers.offset(index) << '\n';
  }
  out << plan.implementations.size() << '\n';
  for (const std::string& line : plan.implementations) out << line << '\n';
  out << plan.offset_hashes.size() << '\n';
  for (const auto& [group, hash] : plan.offset_hashes) out << hash << ' ' << group << '\n';
  return out.str();
}

RankPlan read_plan(const std::string& text, step::Purpose purpose, program::Program program) {
  Lines lines(text);
  RankPlan plan{.purpose = purpose, .program = std::move(program)};
  std::uint64_t hash = 0;
  lines.numbers(hash, plan.stage);
  HAWSER_CHECK(hash == hash_of(plan.program), "the ranks of a pipeline stage run different programs");
  lines.numbers(plan.parameter_bytes, plan.optimizer_bytes, plan.kv_cache_bytes, plan.reference_bytes, plan.saved_bytes,
                plan.state_bytes, plan.scratch_bytes);
  program::Placement& placement = plan.buffers.placement;
  program::Placement& host = plan.buffers.host_placement;
  lines.numbers(placement.bytes, placement.live_bytes, host.bytes, plan.staging_bytes, plan.host_state_bytes,
                plan.staged_bytes);
  placement.placed = host.placed = true;
  std::size_t count = 0;
  lines.numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    int role = 0;
    step::BufferKey key;
    std::int64_t bytes = 0, offset = 0;
    lines.numbers(role, key.a, key.b, bytes, offset);
    key.role = static_cast<step::Role>(role);
    plan.buffers.add(key, bytes, 0);
    const bool on_host = plan.buffers.buffers.back().space == program::Space::host;
    placement.offsets.push_back(on_host ? -1 : offset);
    host.offsets.push_back(on_host ? offset : -1);
  }
  lines.numbers(count);
  for (std::size_t i = 0; i < count; ++i) plan.implementations.push_back(lines.next());
  lines.numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string line = lines.next();
    const std::size_t blank = line.find(' ');
    plan.offset_hashes[line.substr(blank + 1)] = std::stoull(line.substr(0, blank));
  }
  return plan;
}

}  // namespace hawser::plan

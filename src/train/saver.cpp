#include "train/saver.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/paths.h"
#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "engine/host_copy.h"
#include "engine/load_state.h"
#include "engine/rank_sync.h"
#include "io/files.h"

namespace hawser::train {

namespace {

// The strings of all ranks, in order; without other ranks, this one's only.
std::vector<std::string> all_of(comm::Channel* world, const std::string& mine) {
  return world != nullptr ? world->all_gather_strings(mine) : std::vector<std::string>{mine};
}

template <class Bits>
bool all_finite(const TensorView& view, Bits exponent) {
  const Bits* const values = reinterpret_cast<const Bits*>(view.raw());
  bool infinite = false;
  for (std::int64_t i = 0; i < view.elements(); ++i) infinite |= (values[i] & exponent) == exponent;
  return !infinite;
}

// An update can overflow after a finite loss and gradient: the weights after it must not replace a good checkpoint.
void reject_non_finite(const std::vector<NamedState>& states) {
  for (const NamedState& state : states) {
    for (const Box& box : state.boxes) {
      const bool finite = state.dtype == DType::f32    ? all_finite<std::uint32_t>(box.view, 0x7f800000u)
                          : state.dtype == DType::bf16 ? all_finite<std::uint16_t>(box.view, 0x7f80)
                                                       : true;
      if (finite) continue;
      const Problem problem{.what = cat("not saved: ", state.name, " is not finite after the update"),
                            .hint = "a lower optimizer.learning_rate, and --resume from the checkpoint before"};
      throw Error(ExitCode::diverged, problem.line());
    }
  }
}

}  // namespace

std::string save(engine::Session& session, comm::World* world, const SaveTo& to, const engine::RunState& state,
                 engine::StateScope scope) {
  session.synchronize();
  if (!session.owns_states()) return save_states(world, to, state, {}, [] {});
  engine::HostCopy copy(session, scope);
  return save_states(world, to, state, copy.states(), [&copy] { copy.fetch(); });
}

std::string save_states(comm::Channel* ranks, const SaveTo& to, const engine::RunState& state,
                        const std::vector<NamedState>& states, const std::function<void()>& fetch) {
  const int rank = ranks != nullptr ? ranks->rank().value() : 0;
  std::int64_t bytes = 0;
  for (const NamedState& s : states) {
    for (const Box& box : s.boxes) bytes += box.view.bytes();
  }
  checkpoint::SaveOptions options{.root = to.root, .step = state.step, .world = ranks != nullptr ? ranks->size() : 1};
  for (const std::string& text : all_of(ranks, std::to_string(bytes))) options.expected_bytes += std::stoll(text);

  std::optional<checkpoint::SaveSession> saving;
  const std::string ticket = engine::on_rank_zero(ranks, [&] {
    saving.emplace(checkpoint::SaveSession::begin(options));
    return saving->ticket();
  });
  if (rank != 0) saving.emplace(checkpoint::SaveSession::join(options, ticket, rank));
  std::string part;
  engine::take_time(ranks, [&] {
    try {
      fetch();
      reject_non_finite(states);
      part = saving->write(states);
    } catch (const UserError& error) {
      part = checkpoint::SaveSession::failed_part(rank, error.what());
    }
  });
  const std::vector<std::string> parts = all_of(ranks, part);
  return engine::on_rank_zero(ranks, [&] {
    const std::string folder = saving->commit(parts, engine::to_json(state), state.tokenizer_files);
    if (!to.best.empty()) checkpoint::keep_also_as(folder, to.best);
    Problems failed;
    checkpoint::keep_last(to.root, to.keep, folder, &failed);
    if (!failed.empty() && to.not_removed) to.not_removed(failed.all().front().line());
    return folder;
  });
}

namespace {

// How the user can continue if no checkpoint under `root` is complete. RUN/best is a checkpoint of the run like others.
std::string other_ways_on(const std::string& root) {
  const std::string anew = "without --resume to start from step 0 and move this run aside";
  const std::string best = folder_of(root) + "/best";
  // `best` may share files with the corrupt checkpoint of its step; the copy replaces them.
  Problems ignored;
  const auto manifest = io::exists(best) ? checkpoint::read_manifest(best, ignored) : std::nullopt;
  if (!manifest) return anew;
  return cat("`cp -r --remove-destination ", best, "/. ", root, "/", checkpoint::step_name(manifest->step),
             "` and --resume to resume from the best one, or ", anew);
}

}  // namespace

std::optional<Problem> none_is_complete(const std::string& root) {
  constexpr std::size_t kNamed = 5;
  const std::vector<std::string> folders = checkpoint::step_folders(root);
  if (folders.empty()) return std::nullopt;
  std::string names;
  for (std::size_t i = 0; i < std::min(folders.size(), kNamed); ++i) {
    names += cat(i > 0 ? ", " : "", folders[i].substr(root.size() + 1));
  }
  if (folders.size() > kNamed) names += cat(" and ", folders.size() - kNamed, " more");
  return Problem{.file = root, .what = "none of the checkpoints is complete: " + names, .hint = other_ways_on(root)};
}

Problem no_older_checkpoint(const std::string& root) {
  return {.file = root, .what = "no older checkpoint", .hint = other_ways_on(root)};
}

std::optional<checkpoint::Checkpoint> load_newest(engine::Session& session, comm::World* world, const std::string& root,
                                                  const std::function<void(const checkpoint::Checkpoint&)>& judge,
                                                  const std::function<void(const std::string&)>& log) {
  std::set<std::string> reported;
  const auto pass_over = [&](const std::string& lines) {
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
      if (reported.insert(line).second) log("hawser: skipped: " + line);
    }
  };
  // Corruption found by this rank's work, "" for none. Returns the same lines on every rank, each once.
  const auto damage = [&](const std::function<void()>& work) {
    std::string mine;
    engine::take_time(world, [&] {
      try {
        work();
      } catch (const checkpoint::CorruptCheckpoint& error) {
        mine = error.what();
      }
    });
    std::set<std::string> seen;
    std::string all;
    for (const std::string& lines : all_of(world, mine)) {
      std::istringstream in(lines);
      for (std::string line; std::getline(in, line);) {
        if (seen.insert(line).second) all += (all.empty() ? "" : "\n") + line;
      }
    }
    return all;
  };
  for (;;) {
    const std::string folder = engine::on_rank_zero(world, [&]() -> std::string {
      Problems skipped;
      const auto found = checkpoint::Checkpoint::latest(root, skipped);
      pass_over(skipped.lines());
      if (found) return found->folder();
      if (const std::optional<Problem> none = none_is_complete(root)) throw UserError(*none);
      return "";
    });
    if (folder.empty()) return std::nullopt;
    std::optional<checkpoint::Checkpoint> checkpoint;
    std::string lines = damage([&] {
      try {
        checkpoint.emplace(checkpoint::Checkpoint::open(folder));
      } catch (const io::IoError&) {
        throw;  // says nothing about the contents
      } catch (const UserError& error) {
        throw checkpoint::CorruptCheckpoint(error.what());  // rank 0 has just found it complete
      }
    });
    if (lines.empty()) {
      lines = engine::on_rank_zero(world, [&]() -> std::string {
        try {
          judge(*checkpoint);
          return "";
        } catch (const checkpoint::CorruptCheckpoint& error) {
          return error.what();
        }
      });
    }
    if (lines.empty()) {
      lines = damage([&] { engine::load(session, *checkpoint, kSavedByRun); });
    }
    if (lines.empty()) return checkpoint;
    engine::on_rank_zero(world, [&]() -> std::string {
      Problems ignored;
      if (checkpoint::complete_checkpoints(root, ignored).size() < 2) {
        throw UserError(cat(lines, "\n", no_older_checkpoint(root).line()));
      }
      pass_over(lines);
      log("hawser: falling back to the previous checkpoint; the corrupt one was moved to " +
          checkpoint::set_aside_corrupt(folder));
      return "";
    });
  }
}

}  // namespace hawser::train

#include "train/saver.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/json_depth.h"
#include "base/paths.h"
#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "train/host_copy.h"
#include "train/rank_sync.h"

namespace hawser::train {

std::string to_json(const RunState& state) {
  nlohmann::ordered_json json;
  json["step"] = state.step;
  json["sequences"] = state.sequences;
  json["recipe"] = nlohmann::ordered_json::parse(state.recipe);
  json["config"] = state.config;
  json["tokenizer"] = state.tokenizer;
  if (!state.data.empty()) json["data"] = nlohmann::ordered_json::parse(state.data);
  if (!state.compute.empty()) json["compute"] = state.compute;
  json["optimizer"] = state.optimizer;
  if (state.validation_loss) json["validation_loss"] = *state.validation_loss;
  if (state.initial_validation_loss) json["initial_validation_loss"] = *state.initial_validation_loss;
  if (!state.unfinished_evaluation.empty()) json["unfinished_evaluation"] = state.unfinished_evaluation;
  if (!state.validation.empty()) json["validation"] = nlohmann::ordered_json::parse(state.validation);
  if (!state.gemm_algorithms.empty()) json["gemm_algorithms"] = state.gemm_algorithms;
  return json.dump();
}

RunState run_state_of(const std::string& text) {
  const auto rejected = [](std::string why) {
    return UserError(Problem{.what = "the checkpoint was not written by `hawser fit`", .got = std::move(why)});
  };
  constexpr int kDeepest = 32;
  if (deeper_than(text, kDeepest)) throw rejected("JSON nested too deeply");
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    // Accepts integers in the range of a count; rejects numbers such as 1e300.
    const auto count = [&](const char* key) {
      const auto& value = json.at(key);
      if (value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{1} << 60)
        return value.get<std::int64_t>();
      throw rejected(cat(key, " ", value.dump()));
    };
    const auto loss = [&](const char* key) {
      return json.contains(key) ? std::optional(json.at(key).get<double>()) : std::nullopt;
    };
    return {.step = count("step"),
            .sequences = count("sequences"),
            .recipe = json.at("recipe").dump(),
            .config = json.at("config"),
            .tokenizer = json.at("tokenizer"),
            .data = json.contains("data") ? json.at("data").dump() : "",
            .compute = json.value("compute", ""),
            .optimizer = json.value("optimizer", "adamw"),
            .validation_loss = loss("validation_loss"),
            .initial_validation_loss = loss("initial_validation_loss"),
            .unfinished_evaluation = json.value("unfinished_evaluation", ""),
            .validation = json.contains("validation") ? json.at("validation").dump() : "",
            // "products" in checkpoints of version 0.1
            .gemm_algorithms = json.value("gemm_algorithms", json.value("products", ""))};
  } catch (const nlohmann::json::exception& error) {
    throw rejected(error.what());
  }
}

bool same_validation(const std::string& a, const std::string& b) {
  const auto one = nlohmann::json::parse(a, nullptr, /*allow_exceptions=*/false),
             other = nlohmann::json::parse(b, nullptr, /*allow_exceptions=*/false);
  return one.is_object() && one == other;
}

Problems computation_changes(const RunState& state, const models::ModelDescription& description, DType compute,
                             const std::string& file) {
  Problems out;
  Problems unreadable;
  const models::ModelDescription before = models::describe_config(state.config, file, unreadable);
  out.add(unreadable);
  const std::string changes = unreadable.empty() ? models::description_changes(before, description) : "";
  if (!changes.empty()) {
    out.add({.file = file,
             .what = "the model has changed: " + changes,
             .hint = "the config.json that the run was started with, or --set output=... for a new run"});
  }
  // Checkpoints of version 0.1 have the recipe's choice only; "auto" there may be either.
  std::string was = state.compute;
  if (was.empty()) {
    const auto recipe = nlohmann::json::parse(state.recipe, nullptr, /*allow_exceptions=*/false);
    const auto choice = recipe.is_object() ? recipe.value("/precision/compute"_json_pointer, "auto") : "auto";
    if (choice != "auto") was = choice == "bf16" ? to_string(DType::bf16) : choice;
  }
  if (!was.empty() && was != to_string(compute)) {
    out.add({.file = file,
             .what = "the compute dtype has changed",
             .expected = was,
             .got = to_string(compute),
             .at = "precision.compute",
             .hint = cat("--set precision.compute=", was == to_string(DType::bf16) ? "bf16" : was)});
  }
  if (state.optimizer != RunState{}.optimizer) {
    out.add(
        {.file = file, .what = "the optimizer has changed", .expected = state.optimizer, .got = RunState{}.optimizer});
  }
  return out;
}

std::string data_order_changes(const RunState& state, const std::string& recipe) {
  const auto saved = nlohmann::json::parse(state.recipe), now = nlohmann::json::parse(recipe);
  std::string out;
  for (const char* key :
       {"/train/seed", "/data/sequence_length", "/data/pack", "/data/max_documents", "/data/long_documents"}) {
    const nlohmann::json::json_pointer place(key);
    if (!saved.contains(place) || saved.at(place) == now.at(place)) continue;
    std::string name = std::string(key).substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    out += cat(out.empty() ? "" : ", ", name, " was ", saved.at(place).dump(), " and is ", now.at(place).dump());
  }
  return out;
}

std::string data_changes(const RunState& state, const std::string& data) {
  const auto saved = nlohmann::json::parse(state.data, nullptr, false),
             now = nlohmann::json::parse(data, nullptr, false);
  if (!saved.is_object() || !now.is_object() || saved == now) return "";
  const auto size = [](const nlohmann::json& of) {
    const auto count = [&](const char* key) {
      const auto found = of.find(key);
      return found != of.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
    };
    return cat(count("tokens"), " tokens in ", count("documents"), " documents");
  };
  const std::string then = size(saved), today = size(now);
  return "the training data have changed: " +
         (then == today ? cat(today, " with different content") : cat(then, " before, ", today, " now"));
}

std::string tokenizer_changes(const checkpoint::Checkpoint& checkpoint, const std::vector<checkpoint::Attachment>& now,
                              const std::string& besides) {
  std::vector<std::string> then = checkpoint.attached();
  if (then.empty() || now.empty()) return "";  // a checkpoint of an earlier version, or data that contain ids
  std::string out;
  const auto add = [&](const std::string& name, const char* what) {
    if (name == besides) return;
    out += cat(out.empty() ? "" : ", ", name, what);
  };
  for (const checkpoint::Attachment& file : now) {
    const auto saved = std::find(then.begin(), then.end(), file.name);
    if (saved == then.end()) {
      add(file.name, " is new");
      continue;
    }
    if (checkpoint.read_attached(file.name) != file.text) add(file.name, " has changed");
    then.erase(saved);
  }
  for (const std::string& name : then) add(name, " is missing");
  return out;
}

namespace {

// The strings of all ranks, in order; without other ranks, this one's only.
std::vector<std::string> all_of(comm::Channel* world, const std::string& mine) {
  return world != nullptr ? world->all_gather_strings(mine) : std::vector<std::string>{mine};
}

}  // namespace

std::string save(Session& session, comm::World* world, const SaveTo& to, const RunState& state) {
  session.synchronize();
  if (!session.owns_states()) return save_states(world, to, state, {}, [] {});
  HostCopy copy(session, true);
  return save_states(world, to, state, copy.states(), [&copy] { copy.fetch(); });
}

std::string save_states(comm::Channel* ranks, const SaveTo& to, const RunState& state,
                        const std::vector<NamedState>& states, const std::function<void()>& fetch) {
  const int rank = ranks != nullptr ? ranks->rank().value() : 0;
  std::int64_t bytes = 0;
  for (const NamedState& s : states) {
    for (const Box& box : s.boxes) bytes += box.view.bytes();
  }
  checkpoint::SaveOptions options{.root = to.root, .step = state.step, .world = ranks != nullptr ? ranks->size() : 1};
  for (const std::string& text : all_of(ranks, std::to_string(bytes))) options.expected_bytes += std::stoll(text);

  std::optional<checkpoint::SaveSession> saving;
  const std::string ticket = on_rank_zero(ranks, [&] {
    saving.emplace(checkpoint::SaveSession::begin(options));
    return saving->ticket();
  });
  if (rank != 0) saving.emplace(checkpoint::SaveSession::join(options, ticket, rank));
  std::string part;
  take_time(ranks, [&] {
    try {
      fetch();
      part = saving->write(states);
    } catch (const UserError& error) {
      part = checkpoint::SaveSession::failed_part(rank, error.what());
    }
  });
  const std::vector<std::string> parts = all_of(ranks, part);
  return on_rank_zero(ranks, [&] {
    const std::string folder = saving->commit(parts, to_json(state), state.tokenizer_files);
    if (!to.best.empty()) checkpoint::keep_also_as(folder, to.best);
    checkpoint::keep_last(to.root, to.keep, folder);
    return folder;
  });
}

void load(Session& session, checkpoint::Checkpoint& checkpoint, bool optimizer) {
  HostCopy copy(session, optimizer);
  checkpoint.read(copy.states());
  copy.store();
  session.parameters_changed();
}

void load_weights(Session& session, OpenModel& open) {
  if (open.checkpoint) return load(session, *open.checkpoint, false);
  session.load(*open.weights);
}

namespace {

// How the user can continue if no checkpoint under `root` is complete. RUN/best is a checkpoint of the run like others.
std::string other_ways_on(const std::string& root) {
  const std::string anew = "without --resume to start from step 0 and move this run aside";
  const std::string best = folder_of(root) + "/best";
  // `best` may share files with the corrupt checkpoint of its step; the copy replaces them.
  Problems ignored;
  const auto manifest = checkpoint::exists(best) ? checkpoint::read_manifest(best, ignored) : std::nullopt;
  if (!manifest) return anew;
  return cat("`cp -r --remove-destination ", best, "/. ", root, "/", checkpoint::step_name(manifest->step),
             "` and --resume to resume from the best one, or ", anew);
}

// If there are checkpoints but none is complete, the user may want to recover the run: rejects starting over it.
void reject_if_all_are_corrupt(const std::string& root) {
  constexpr std::size_t kNamed = 5;
  const std::vector<std::string> folders = checkpoint::step_folders(root);
  if (folders.empty()) return;
  std::string names;
  for (std::size_t i = 0; i < std::min(folders.size(), kNamed); ++i) {
    names += cat(i > 0 ? ", " : "", folders[i].substr(root.size() + 1));
  }
  if (folders.size() > kNamed) names += cat(" and ", folders.size() - kNamed, " more");
  throw UserError(
      Problem{.file = root, .what = "none of the checkpoints is complete: " + names, .hint = other_ways_on(root)});
}

}  // namespace

std::optional<checkpoint::Checkpoint> load_newest(Session& session, comm::World* world, const std::string& root,
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
    take_time(world, [&] {
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
    const std::string folder = on_rank_zero(world, [&]() -> std::string {
      Problems skipped;
      const auto found = checkpoint::Checkpoint::latest(root, skipped);
      pass_over(skipped.lines());
      if (!found) reject_if_all_are_corrupt(root);
      return found ? found->folder() : "";
    });
    if (folder.empty()) return std::nullopt;
    std::optional<checkpoint::Checkpoint> checkpoint;
    std::string lines = damage([&] {
      try {
        checkpoint.emplace(checkpoint::Checkpoint::open(folder));
      } catch (const UserError& error) {
        throw checkpoint::CorruptCheckpoint(error.what());  // rank 0 has just found it complete
      }
    });
    if (lines.empty()) {
      lines = on_rank_zero(world, [&]() -> std::string {
        try {
          judge(*checkpoint);
          return "";
        } catch (const checkpoint::CorruptCheckpoint& error) {
          return error.what();
        }
      });
    }
    if (lines.empty()) {
      lines = damage([&] { load(session, *checkpoint, true); });
    }
    if (lines.empty()) return checkpoint;
    on_rank_zero(world, [&]() -> std::string {
      Problems ignored;
      if (checkpoint::complete_checkpoints(root, ignored).size() < 2) {
        const Problem none{.file = root, .what = "no older checkpoint", .hint = other_ways_on(root)};
        throw UserError(cat(lines, "\n", none.line()));
      }
      pass_over(lines);
      log("hawser: falling back to the previous checkpoint; the corrupt one was moved to " +
          checkpoint::set_aside_corrupt(folder));
      return "";
    });
  }
}

}  // namespace hawser::train

#include "train/run_folder.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "checkpoint/root.h"
#include "io/files.h"

namespace hawser::train {

using io::File;

std::string stored_gemm_algorithms_path(const plan::RunFiles& files) {
  for (const std::string& path : {files.gemm_algorithms, files.folder + "/products.txt"}) {
    if (io::exists(path)) return path;
  }
  return "";
}

namespace {

bool is_link(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_symlink(path, unknown);
}

// A link whose target is missing (a disk that is not mounted) would look like a run without these files.
void expect_targets_of_links(const std::string& output) {
  Problems problems;
  for (const char* name : {"checkpoints", "best", "metrics.jsonl", "data"}) {
    const std::string path = output + "/" + name;
    if (is_link(path) && !io::exists(path)) {
      problems.add({.file = path,
                    .what = "a link whose target does not exist",
                    .hint = "mounting the disk it leads to, or removing the link"});
    }
  }
  problems.throw_if_any();
}

// A relative link leads elsewhere after a move to another folder: makes it absolute.
void make_link_absolute(const std::string& path) {
  namespace fs = std::filesystem;
  if (!is_link(path) || fs::read_symlink(path).is_absolute()) return;
  const std::string temporary = path + ".link";
  std::error_code left;
  fs::remove(temporary, left);  // of a killed run
  fs::create_symlink(fs::canonical(path), temporary);
  io::rename_path(temporary, path);
}

}  // namespace

OutputHold hold_output(const std::string& folder) {
  constexpr std::chrono::seconds kPatience{10};
  io::make_folders(folder);
  File file = File::open_or_create(folder + "/.lock");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  File::Lock lock = file.try_lock();
  for (; lock == File::Lock::held_elsewhere; lock = file.try_lock()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw UserError(Problem{.file = folder,
                              .what = "another run is writing to this folder",
                              .hint = "waiting for its end, or --set output=..."});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  expect_targets_of_links(folder);
  return {.folder = File::open_folder(folder), .lock = std::move(file), .locked = lock == File::Lock::taken};
}

std::optional<Displaced> displaced(const std::string& output, const OutputHold& hold) {
  const bool locked = hold.lock.still_at(output + "/.lock");
  if (hold.folder.still_at(output) && locked) return std::nullopt;
  const std::string now = hold.folder.path_now();
  if (!now.empty() && hold.lock.still_at(now + "/.lock")) {
    return Displaced{now, cat("the output folder was moved to ", now, " while the run was writing to it")};
  }
  int number = 1;
  const auto rescued = [&] { return cat(output, ".rescued-", number); };
  while (io::exists(rescued())) ++number;
  io::make_folders(rescued());
  const char* what = hold.folder.still_at(output) ? "the lock of the output folder was removed during the run"
                                                  : "the output folder was removed during the run";
  return Displaced{rescued(), what};
}

bool has_earlier_run(const plan::RunFiles& files) {
  return !checkpoint::step_folders(files.checkpoints).empty() ||
         (io::is_file(files.metrics) && io::File::open(files.metrics).bytes() > 0);
}

std::string new_earlier_folder(const std::string& output) {
  int number = 1;
  const auto folder = [&] { return cat(output, "/earlier-", number); };
  while (io::exists(folder())) ++number;
  io::make_folder(folder());
  return folder();
}

namespace {

bool is_text(const std::string& path, const std::string& text) {
  if (!io::is_file(path)) return false;
  const io::File file = io::File::open(path);
  return file.bytes() == static_cast<std::int64_t>(text.size()) && io::read_text(file, file.bytes()) == text;
}

constexpr const char* kMoving = ".moving";  // in OUTPUT/earlier-N, while files are moved there

// Moves what is in `folder` back to the output, and removes the folder.
void move_back(const std::string& folder, const std::string& output) {
  for (const std::string& name : io::list_folder(folder)) {
    const std::string home = output + "/" + name;
    if (name != kMoving && !io::exists(home)) io::rename_path(folder + "/" + name, home);
  }
  io::sync_folder(output);
  std::error_code not_empty;
  std::filesystem::remove(folder + "/" + kMoving, not_empty);
  std::filesystem::remove(folder, not_empty);
}

}  // namespace

void undo_interrupted_move(const std::string& output) {
  for (const std::string& name : io::list_folder(output)) {
    const std::string folder = output + "/" + name;
    if (name.starts_with("earlier-") && io::is_file(folder + "/" + kMoving)) move_back(folder, output);
  }
}

std::string set_aside_earlier(const plan::RunFiles& files, const std::string& recipe) {
  const std::string& output = files.folder;
  const auto has = [&](const char* name) { return io::exists(output + "/" + name); };
  const bool saved = !checkpoint::step_folders(files.checkpoints).empty();
  const bool other_recipe = has("recipe.json") && !is_text(files.recipe, recipe);
  if (!has_earlier_run(files) && !has("best") && !has("report.html") && !other_recipe) return "";
  std::vector<std::string> found;
  for (const char* name :
       {"metrics.jsonl", "report.html", "recipe.json", "tensorboard", "mlflow.json", "wandb", "best"}) {
    if (has(name)) found.push_back(name);
  }
  if (saved) found.push_back("checkpoints");
  const std::string folder = new_earlier_folder(output);
  const std::string mark = folder + "/" + kMoving;
  io::File::create(mark).sync();
  io::sync_folder(folder);
  try {
    for (const std::string& name : found) {
      make_link_absolute(output + "/" + name);
      io::rename_path(output + "/" + name, folder + "/" + name);
    }
  } catch (const UserError&) {
    move_back(folder, output);
    throw;
  } catch (const std::filesystem::filesystem_error& error) {
    move_back(folder, output);
    throw UserError({.file = error.path1().string(), .what = cat("cannot move the link: ", error.code().message())});
  }
  io::sync_folder(folder);
  io::sync_folder(output);
  std::error_code left;  // the next run then moves the files back, and there again
  std::filesystem::remove(mark, left);
  io::sync_folder(folder);
  return folder;
}

}  // namespace hawser::train

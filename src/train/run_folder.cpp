#include "train/run_folder.h"

#include <chrono>
#include <thread>

#include "checkpoint/root.h"
#include "config/config.h"

namespace hawser::train {

using checkpoint::File;

std::string output_folder(const Recipe& recipe) {
  return resolve_path(recipe, recipe.output);
}
std::string checkpoints_folder(const Recipe& recipe) {
  return output_folder(recipe) + "/checkpoints";
}
std::string best_path(const Recipe& recipe) {
  return output_folder(recipe) + "/best";
}
std::string metrics_path(const Recipe& recipe) {
  return output_folder(recipe) + "/metrics.jsonl";
}
std::string tensorboard_folder(const Recipe& recipe) {
  return output_folder(recipe) + "/tensorboard";
}
std::string html_path(const Recipe& recipe) {
  return output_folder(recipe) + "/report.html";
}
std::string gemm_algorithms_path(const Recipe& recipe) {
  return output_folder(recipe) + "/gemm_algorithms.txt";
}
std::string stored_gemm_algorithms_path(const Recipe& recipe) {
  for (const std::string& path : {gemm_algorithms_path(recipe), output_folder(recipe) + "/products.txt"}) {
    if (checkpoint::exists(path)) return path;
  }
  return "";
}

OutputHold hold_output(const Recipe& recipe) {
  constexpr std::chrono::seconds kPatience{10};
  const std::string folder = output_folder(recipe);
  checkpoint::make_folders(folder);
  File file = File::open_or_create(folder + "/.lock");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  // On a file system without locks another run cannot be detected: continue.
  while (file.try_lock() == File::Lock::held_elsewhere) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw UserError(Problem{.file = folder,
                              .what = "another run is writing to this folder",
                              .hint = "waiting for its end, or --set output=..."});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return {.folder = File::open_folder(folder), .lock = std::move(file)};
}

std::optional<Displaced> displaced(const Recipe& recipe, const OutputHold& hold) {
  const std::string output = output_folder(recipe);
  const bool locked = hold.lock.still_at(output + "/.lock");
  if (hold.folder.still_at(output) && locked) return std::nullopt;
  const std::string now = hold.folder.path_now();
  if (!now.empty() && hold.lock.still_at(now + "/.lock")) {
    return Displaced{now, cat("the output folder was moved to ", now, " while the run was writing to it")};
  }
  int number = 1;
  const auto rescued = [&] { return cat(output, ".rescued-", number); };
  while (checkpoint::exists(rescued())) ++number;
  checkpoint::make_folders(rescued());
  const char* what = hold.folder.still_at(output) ? "the lock of the output folder was removed during the run"
                                                  : "the output folder was removed during the run";
  return Displaced{rescued(), what};
}

std::string set_aside_earlier(const Recipe& recipe) {
  const std::string checkpoints = checkpoints_folder(recipe), best = best_path(recipe);
  if (checkpoint::step_folders(checkpoints).empty() && !checkpoint::exists(best)) return "";
  int number = 1;
  const auto folder = [&] { return cat(output_folder(recipe), "/earlier-", number); };
  while (checkpoint::exists(folder())) ++number;
  checkpoint::make_folder(folder());
  if (checkpoint::exists(checkpoints)) checkpoint::rename_path(checkpoints, folder() + "/checkpoints");
  if (checkpoint::exists(best)) checkpoint::rename_path(best, folder() + "/best");
  const std::string output = output_folder(recipe);
  for (const char* name : {"metrics.jsonl", "report.html", "tensorboard", "mlflow.json"}) {
    const std::string path = output + "/" + name;
    if (checkpoint::exists(path)) checkpoint::rename_path(path, folder() + "/" + name);
  }
  checkpoint::sync_folder(folder());
  return folder();
}

}  // namespace hawser::train

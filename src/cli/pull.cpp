// hawser pull: downloads a model or a data set of the Hugging Face Hub into its local cache.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hub_name.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/pull_progress.h"

namespace hawser::cli {
namespace {

// The name in the address of a page: "org/name" of "https://huggingface.co/datasets/org/name".
std::string name_in_address(const std::string& text) {
  const auto scheme = text.find("://");
  const auto slash = scheme == text.npos ? 0 : text.find('/', scheme + 3) + 1;
  std::string path = text.substr(text.starts_with("hf://") ? 5 : slash);
  const bool dataset = path.starts_with("datasets/");
  if (dataset) path = path.substr(path.find('/') + 1);
  return path + (dataset ? " --dataset" : "");
}

Problem not_a_name(const std::string& text) {
  const std::string name = name_in_address(text);
  const bool useful = name != text && parse_hub_name(name.substr(0, name.find(' '))).has_value();
  return {.file = text,
          .what = "not the name of a model or data set",
          .expected = "ORG/NAME or ORG/NAME@REVISION",
          .hint = useful ? "hawser pull " + name : ""};
}

void print_result(const PullOptions& options, const hub::Repo& repo, const hub::Pulled& pulled) {
  std::int64_t bytes = 0;
  for (const hub::PulledFile& file : pulled.files) bytes += file.bytes;
  if (!options.common.json) {
    const bool nothing = std::ranges::none_of(pulled.files, &hub::PulledFile::transferred);
    const std::string what =
        cat(repo.name.text(), ", commit ", pulled.commit, ": ",
            plural(static_cast<std::int64_t>(pulled.files.size()), "file"), ", ", format_bytes(Bytes(bytes)));
    print("", nothing ? "already complete: " + what : "complete: " + what);
    std::puts(pulled.folder.c_str());
    return;
  }
  nlohmann::ordered_json out{
      {"name", repo.name.model},           {"kind", repo.kind == hub::RepoKind::model ? "model" : "dataset"},
      {"revision", repo.revision()},       {"commit", pulled.commit},
      {"folder", pulled.folder},           {"bytes", bytes},
      {"received_bytes", pulled.received}, {"files", nlohmann::json::array()}};
  for (const hub::PulledFile& file : pulled.files) {
    out["files"].push_back(
        nlohmann::ordered_json{{"name", file.name}, {"bytes", file.bytes}, {"transferred", file.transferred}});
  }
  std::puts(out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace

int pull(const PullOptions& options) {
  CommonOptions common = options.common;
  Problems problems = take_unused_keys(common, "pull", {});
  recipe_without_file({}, common, /*runs=*/false, /*keep_relative=*/false, problems);  // for its problems
  const auto name = parse_hub_name(options.name);
  if (!name) problems.add(not_a_name(options.name));
  if (!options.include.empty() && !options.dataset) {
    problems.add({.what = "pull: --include without --dataset", .hint = "hawser pull " + options.name + " --dataset"});
  }
  hub::Settings settings;
  collect(problems, [&] { settings = hub::read_settings(); });
  if (options.common.offline || settings.offline) {
    problems.add({.file = options.common.offline ? "--offline" : "HF_HUB_OFFLINE",
                  .what = "nothing can be pulled without requests",
                  .hint = options.common.offline ? "hawser pull without it" : "HF_HUB_OFFLINE=0"});
  }
  problems.throw_if_any();
  const hub::Repo repo{.kind = options.dataset ? hub::RepoKind::dataset : hub::RepoKind::model, .name = *name};
  print_result(options, repo, pull_and_show({.settings = settings, .repo = repo, .include = options.include}));
  return 0;
}

void add_pull(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<PullOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "pull",
       .what = "download a model or data set of the Hugging Face Hub\n"
               "Downloads what Hawser reads: of a model its config, tokenizer and weights in safetensors; with "
               "--dataset the data files and the README.md. The files are in the Hub's cache, which huggingface_hub "
               "shares: HF_HUB_CACHE, by default ~/.cache/huggingface/hub. Continues an earlier download, verifies "
               "checksums and prints the folder. The token of gated and private repos is HF_TOKEN, or that of "
               "`hf auth login`. HF_ENDPOINT names another server.",
       .examples = {"hawser pull HuggingFaceTB/SmolLM2-135M-Instruct", "hawser pull org/model@v1.0",
                    "hawser pull org/chats --dataset", "hawser pull org/books --dataset --include 'en/*.parquet'"}},
      options->common);
  add_positional(*command, "REPO", options->name, "ORG/NAME, or ORG/NAME@REVISION: a branch, tag or commit");
  add_switch(*command, "--dataset", options->dataset, "a data set; its folder is one for data.train");
  add_texts(*command, "--include", "PATTERN", options->include,
            "only the files of a data set that match, as in 'en/*.parquet'; repeatable");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->name, "REPO"}}, "pull");
    chosen = [options, &commands] { return commands.pull(*options); };
  });
}

}  // namespace hawser::cli

// Parses the command line and runs a command.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "base/build.h"
#include "base/cat.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "cli/build_version.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "config/choices.h"
#include "io/files.h"
#include "launch/launcher_environment.h"
#include "launch/stop.h"

namespace hawser::cli {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

bool is_yaml_name(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

// Command names that users of other tools may type; `next` is the word after it.
std::string our_name(const std::string& word, const std::string& next) {
  static const std::vector<std::pair<const char*, const char*>> kNames = {
      {"version", "hawser --version"}, {"train", "hawser fit"},       {"run", "hawser fit"},
      {"launch", "hawser fit"},        {"start", "hawser fit"},       {"pretrain", "hawser fit"},
      {"sft", "hawser fit"},           {"finetune", "hawser fit"},    {"resume", "hawser fit RECIPE --resume"},
      {"init", "hawser recipe init"},  {"new", "hawser recipe init"}, {"evaluate", "hawser eval"},
      {"tokenize", "hawser prepare"},  {"sample", "hawser generate"}, {"chat", "hawser generate"},
      {"estimate", "hawser plan"},     {"check", "hawser doctor"},    {"benchmark", "hawser bench step"},
      {"convert", "hawser export"},    {"download", "hawser pull"},   {"fetch", "hawser pull"},
      {"show", "hawser inspect"}};
  if (word == "convert" && is_yaml_name(next)) return "hawser recipe convert " + next;
  for (const auto& [name, ours] : kNames) {
    if (word == name) return ours;
  }
  return is_yaml_name(word) && io::exists(word) ? "hawser fit " + word : "";
}

// An option that is a key of the recipe: "--steps" is "--set train.steps=".
std::string as_key(const std::string& option) {
  const std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  for (const KeyChoices& key : key_choices()) {
    const bool leaf = key.name.ends_with("." + name);
    if (key.name == name || leaf) return "--set " + key.name + "=VALUE";
  }
  return "";
}

// Whether the command or a subcommand has the option.
bool has_option(const CLI::App& app, const std::string& name) {
  const auto known = option_names(app);
  if (std::ranges::find(known, name) != known.end()) return true;
  return std::ranges::any_of(commands_of(app), [&](const CLI::App* below) { return has_option(*below, name); });
}

// Checks commands and options before anything else, and suggests the nearest for a mistyped one. Returns the command
// that the words name.
const CLI::App& check_words(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  std::size_t i = 0;
  std::string path = "hawser";
  for (; i < words.size() && !words[i].starts_with("-"); ++i) {
    const auto names = command_names(*command);
    if (names.empty()) break;
    const CLI::App* next = nullptr;
    for (const CLI::App* candidate : commands_of(*command))
      if (candidate->get_name() == words[i]) next = candidate;
    if (next == nullptr) {
      const std::string ours = command == &app ? our_name(words[i], i + 1 < words.size() ? words[i + 1] : "") : "";
      if (!ours.empty()) throw UserError(Problem{.what = "unknown command " + words[i], .hint = ours});
      const std::string hint = nearest(words[i], names);
      const std::string parents = command == &app ? "" : path.substr(std::string("hawser ").size()) + " ";
      throw UserError(Problem{.what = "unknown command " + parents + words[i],
                              .hint = hint.empty() ? path + " --help" : path + " " + hint});
    }
    command = next;
    path += " " + words[i];
  }
  const auto known = option_names(*command);
  for (; i < words.size() && words[i] != "--"; ++i) {
    if (!words[i].starts_with("--")) continue;
    const auto equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    if (std::ranges::find(known, name) != known.end()) {
      const CLI::Option* const option = command->get_option_no_throw(name);
      if (equals == std::string::npos || option == nullptr || option->get_expected_min() > 0) continue;
      throw UserError(
          Problem{.what = name + " takes no value",
                  .got = words[i].substr(equals + 1),
                  .hint = name == "--resume" ? "--resume, which continues the newest checkpoint in output" : name});
    }
    if (!commands_of(*command).empty() && has_option(*command, name)) {
      throw UserError(Problem{.what = name + " must follow the command", .hint = path + " COMMAND " + name});
    }
    std::string hint = nearest(name, known);
    if (const std::string key = as_key(name); !key.empty() && has_option(*command, "--set")) hint = key;
    throw UserError(Problem{.what = "unknown option " + name, .hint = hint.empty() ? path + " --help" : hint});
  }
  return *command;
}

Problem in_our_words(const CLI::ParseError& error, const std::string& command) {
  std::string what = error.what();
  if (const auto line_end = what.find('\n'); line_end != std::string::npos) what.resize(line_end);
  const std::string hint = command + " --help";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const auto colon = what.find(": ");
    const std::string words = colon == std::string::npos ? "" : what.substr(colon + 2);
    const std::string name = words.substr(0, words.find('='));
    const bool is_key = words.find('=') != std::string::npos && !as_key(name).empty() && name.find('.') != name.npos;
    return {.what = cat("unexpected argument", words.empty() ? "" : " ", words),
            .hint = is_key ? "--set " + words : hint};
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const auto colon = what.find(':');
    if (what.find("At Most") != std::string::npos)
      return {.what = what.substr(0, colon) + " given twice", .hint = hint};
    return {.what = what.substr(0, colon) + " needs a value", .hint = hint};
  }
  return {.what = what, .hint = hint};
}

int run_line(int argc, const char* const* argv, const Commands& commands) {
  Chosen chosen;
  CLI::App app("trains transformer language models on long sequences over many devices", "hawser");
  app.set_help_flag("-h,--help", "show this help")->group(kOwnGroup);
  app.set_version_flag("--version", cat("hawser ", build().version))
      ->group(kOwnGroup)
      ->description("show version, build and supported devices");
  app.footer(
      "  hawser doctor                       # check this machine\n"
      "  hawser recipe init --model models/SmolLM2-135M --data books --output recipe.yaml\n"
      "  hawser plan recipe.yaml             # predict memory and time\n"
      "  hawser fit recipe.yaml              # train\n"
      "  hawser COMMAND --help               # options and examples of a command\n");
  add_pull(app, commands, chosen);
  add_recipe(app, commands, chosen);
  add_prepare(app, commands, chosen);
  add_plan(app, commands, chosen);
  add_fit(app, commands, chosen);
  add_eval(app, commands, chosen);
  add_generate(app, commands, chosen);
  add_export(app, commands, chosen);
  add_inspect(app, commands, chosen);
  add_bench(app, commands, chosen);
  add_doctor(app, commands, chosen);
  add_completion(app, chosen);

  std::vector<std::string> words(argv + 1, argv + argc);
  // `hawser` alone prints help; `hawser help fit` is `hawser fit --help`.
  if (words.empty()) words = {"--help"};
  if (words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  const CLI::App& command = check_words(app, words);
  std::string name = command.get_name();
  for (const CLI::App* up = command.get_parent(); up != nullptr; up = up->get_parent())
    name = up->get_name() + " " + name;
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // it takes them from the back
  } catch (const CLI::CallForHelp&) {
    const std::string text = help_text(command, help_width());
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  } catch (const CLI::CallForVersion&) {
    std::fputs(version_text().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    throw UserError(in_our_words(error, name));
  }
  if (!chosen) {
    throw UserError(Problem{
        .what = "no command", .expected = "one of " + joined(command_names(command), ", "), .hint = name + " --help"});
  }
  return chosen();
}

}  // namespace

Commands built_in_commands() {
  return {.fit = fit,
          .prepare = prepare,
          .plan = plan,
          .eval = eval,
          .generate = generate,
          .export_model = export_model,
          .pull = pull,
          .inspect = inspect,
          .recipe_init = recipe_init,
          .recipe_convert = recipe_convert,
          .bench_step = bench_step,
          .doctor = doctor};
}

int run(int argc, const char* const* argv, const Commands& commands) {
  end_when_interrupted();
  keep_stdout_for_rank_zero();
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the size limit is a reported error, not a signal
  const int code = guarded([&] {
    check_launcher();
    return run_line(argc, argv, commands);
  });
  if (code != 0) note_failed(code);
  return code;
}

}  // namespace hawser::cli

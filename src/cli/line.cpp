#include "cli/line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"
#include "cli/takes_path.h"
#include "cli/terminal.h"
#include "config/config.h"

namespace hawser::cli {
namespace {

constexpr std::size_t kMaxWidth = 100, kMinWidth = 40;
constexpr std::size_t kColumn = 26;  // column at which help begins
constexpr std::size_t kNarrow = 60;  // below this width it begins on a line of its own

void put_paragraph(std::string& out, const std::string& text, std::size_t width, const std::string& before = "") {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? before : " ") + word;
  }
  out += line + "\n";
}

// `left`, then `right` from the column of help on, wrapped at `width`.
void put_entry(std::string& out, const std::string& left, const std::string& right, std::size_t width) {
  const std::size_t column = width < kNarrow ? 6 : kColumn;
  std::string line = "  " + left;
  if (line.size() + 2 > column) {
    out += line + "\n";
    line.clear();
  }
  line.resize(column, ' ');
  std::istringstream words(right);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line.assign(column, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  out += line + "\n";
}

// A command line, with ` \` at the end of each line that continues. A comment that does not fit precedes it.
void put_example(std::string& out, const std::string& example, std::size_t width) {
  if (example.size() <= width) {
    out += example + "\n";
    return;
  }
  const std::size_t comment = std::min(example.find(" # "), example.size());
  if (comment < example.size()) put_paragraph(out, example.substr(comment + 3), width, "  # ");
  std::string line = "  ", word;
  bool in_quotes = false;
  const auto put_word = [&] {
    if (line.find_first_not_of(' ') != std::string::npos && line.size() + word.size() + 3 > width) {
      out += line + " \\\n";
      line = "      ";
    }
    line += (line.ends_with("  ") ? "" : " ") + word;
    word.clear();
  };
  for (const char c : example.substr(0, comment)) {
    if (c == '"') in_quotes = !in_quotes;
    if (c != ' ' || in_quotes) {
      word += c;
    } else if (!word.empty()) {
      put_word();
    }
  }
  if (!word.empty()) put_word();
  out += line + "\n";
}

void put_examples(std::string& out, const std::string& examples, std::size_t width) {
  std::istringstream lines(examples);
  for (std::string line; std::getline(lines, line);) put_example(out, line, width);
}

std::string option_name(const CLI::Option& option) {
  std::string name = option.nonpositional() ? "--" + option.get_lnames().front() : option.get_name(true);
  if (!option.get_snames().empty()) name = "-" + option.get_snames().front() + ", " + name;
  const std::string& takes = option.get_option_text();
  return takes.empty() ? name : name + " " + takes;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::string lines_of(const std::vector<std::string>& examples) {
  std::string out;
  for (const std::string& example : examples) out += "  " + example + "\n";
  return out;
}

// CLI11's type name of a text option without one of ours.
constexpr char kAnyText[] = "TEXT";

void read_as_path(CLI::Option* option, const std::string& takes) {
  if (takes_path(takes)) option->transform([](const std::string& value) { return with_home(value); }, "");
}

}  // namespace

std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  // 010 is ambiguous (octal); the recipe rejects it too.
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  if (stop == end && text.size() > first + 1 && text[first] == '0') {
    const std::size_t digits = std::min(text.find_first_not_of('0', first), text.size() - 1);
    throw UserError(Problem{.what = "a number with a leading zero",
                            .expected = cat("a whole number of at least ", min),
                            .got = text,
                            .at = option,
                            .hint = text.substr(digits)});
  }
  // A number that overflows is too large.
  const bool more = (error == std::errc::result_out_of_range && text[0] != '-') || (stop == end && value > max);
  if (error != std::errc() || stop != end || value < min || value > max)
    throw UserError(Problem{.what = "wrong value",
                            .expected = more ? cat("at most ", max) : cat("a whole number of at least ", min),
                            .got = text,
                            .at = option});
  return value;
}

double real_number(const std::string& option, const std::string& text, double min, double max) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= min && value <= max)) {
    throw UserError(
        Problem{.what = "wrong value", .expected = cat("a number from ", min, " to ", max), .got = text, .at = option});
  }
  return value;
}

namespace {

// Reads an option's value: an error of `read` becomes a problem of the command line.
void collect_wrong(CommonOptions& common, const std::string& name, const std::function<void()>& read) {
  try {
    read();
  } catch (const UserError& error) {
    common.problems.add_lines(error.what());
    common.rejected.insert(name);
  }
}

Bytes memory_of(const char* option, const std::string& value) {
  const std::optional<Bytes> bytes = parse_bytes(value);
  if (bytes && bytes->value() > 0) return *bytes;
  throw UserError(Problem{.what = "wrong value",
                          .expected = "bytes with a unit",
                          .got = value,
                          .at = option,
                          .hint = cat(option, " 24GB")});
}

DeviceChoice device_choice_of(const std::string& value) {
  if (value == "auto") return DeviceChoice::automatic;
  if (value == "cpu") return DeviceChoice::cpu;
  if (value == "cuda") return DeviceChoice::cuda;
  throw UserError(Problem{.what = "wrong value", .expected = "auto, cpu or cuda", .got = value, .at = "--device"});
}

}  // namespace

CLI::App* add_command(CLI::App& parent, const CommandText& text, CommonOptions& common) {
  CLI::App* app = parent.add_subcommand(text.name, text.what);
  app->set_help_flag("-h,--help", "show this help")->group(kCommonGroup);
  app->footer(lines_of(text.examples));

  const auto add_common = [&](CLI::Option* option, const char* takes) {
    option->group(kCommonGroup)->option_text(takes);
  };
  const auto add_value = [&](const char* name, const char* takes, const char* help,
                             const std::function<void(const std::string&)>& store) {
    const auto read = [&common, name = std::string(name), store](const std::string& value) {
      collect_wrong(common, name, [&] { store(value); });
    };
    add_common(app->add_option_function<std::string>(name, read, help), takes);
  };
  add_value("--ranks", text.several_ranks ? "N[,N...]" : "N",
            text.several_ranks
                ? "number of ranks to plan for; several: a table of them; default: one per GPU, or on the CPU what the "
                  "recipe's degrees need"
                : "number of ranks to run or to plan for; default: what the recipe's degrees need; for fit and plan "
                  "on GPUs one per GPU; for generate 1",
            [&common, several = text.several_ranks](const std::string& value) {
              std::vector<int> counts;
              std::istringstream list(value);
              for (std::string one; std::getline(list, one, several ? ',' : '\0');) {
                counts.push_back(static_cast<int>(whole_number("--ranks", one, 1, 1 << 20)));
              }
              if (counts.empty()) whole_number("--ranks", value, 1, 1 << 20);
              if (counts.size() == 1) {
                common.ranks = counts.front();
              } else {
                common.rank_counts = counts;
              }
            });
  add_common(
      app->add_option("--set", common.overrides, "override a key of the recipe, as in --set train.steps=10; repeatable")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->allow_extra_args(false),
      "KEY=VALUE");
  add_value("--memory", "BYTES", "device memory that a rank may use, as in 24GB",
            [&common](const std::string& value) { common.memory = memory_of("--memory", value); });
  add_value("--host-memory", "BYTES", "host memory that the ranks of a machine may use together, as in 512GB",
            [&common](const std::string& value) { common.host_memory = memory_of("--host-memory", value); });
  add_value("--device", "DEVICE", "device to run on: auto, cpu or cuda",
            [&common](const std::string& value) { common.device = device_choice_of(value); });
  set_completions(*app, "--device", {"auto", "cpu", "cuda"});
  add_common(
      app->add_flag("--offline", common.offline, "download no model that is named ORG/NAME: the cache must have it"),
      "");
  add_common(app->add_flag("--json", common.json, text.json), "");
  return app;
}

CLI::App* add_family(CLI::App& parent, const char* name, const char* what, const std::vector<std::string>& examples) {
  CLI::App* app = parent.add_subcommand(name, what);
  app->set_help_flag("-h,--help", "show this help")->group(kCommonGroup);
  app->footer(lines_of(examples));
  return app;
}

bool takes_path(const std::string& takes) {
  // --target and --chat-template take a NAME or a file; --device takes only its choices.
  static const std::vector<std::string> kPaths = {"PATH",   "FILE",   "DIR",    "OUT_DIR",
                                                  "RECIPE", "SOURCE", "PREFIX", "NAME"};
  const bool optional = takes.starts_with('[') && takes.ends_with(']');
  return std::ranges::find(kPaths, optional ? takes.substr(1, takes.size() - 2) : takes) != kPaths.end();
}

void add_positional(CLI::App& app, const char* name, std::string& value, const char* help) {
  read_as_path(app.add_option(name, value, help)->group(kOwnGroup), name);
}

void add_text(CLI::App& app, const char* name, const char* takes, std::string& value, const char* help) {
  read_as_path(app.add_option(name, value, help)->group(kOwnGroup)->option_text(takes), takes);
}

void add_texts(CLI::App& app, const char* name, const char* takes, std::vector<std::string>& values, const char* help) {
  read_as_path(app.add_option(name, values, help)
                   ->expected(1)
                   ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                   ->allow_extra_args(false)
                   ->group(kOwnGroup)
                   ->option_text(takes),
               takes);
}

void add_switch(CLI::App& app, const char* name, bool& value, const char* help) {
  app.add_flag(name, value, help)->group(kOwnGroup);
}

void add_hidden_switch(CLI::App& app, const char* name, bool& value) {
  app.add_flag(name, value)->group("");
}

void add_parsed(CLI::App& app, CommonOptions& common, const char* name, const char* takes, const char* help,
                const std::function<void(const std::string&)>& store) {
  const auto read = [&common, name = std::string(name), store, path = takes_path(takes)](const std::string& value) {
    collect_wrong(common, name, [&] { store(path ? with_home(value) : value); });
  };
  app.add_option_function<std::string>(name, read, help)->group(kOwnGroup)->option_text(takes);
}

void add_number(CLI::App& app, CommonOptions& common, const char* name, std::int64_t min, std::int64_t max,
                const char* help, const std::function<void(std::int64_t)>& store) {
  const std::string option = name;
  add_parsed(app, common, name, "N", help,
             [option, min, max, store](const std::string& value) { store(whole_number(option, value, min, max)); });
}

void set_completions(CLI::App& app, const char* name, const std::vector<std::string>& words) {
  app.get_option(name)->type_name(joined(words, " "));  // not shown in our help
}

std::string completions_of(const CLI::Option& option) {
  const std::string words = option.get_type_name();
  return words == kAnyText ? "" : words;
}

void on_chosen(CLI::App& app, const std::function<void()>& then) {
  app.callback(then);
}

void need(const CommonOptions& common, const std::vector<NeededValue>& values, const char* command) {
  Problems missing;
  for (const auto& [value, name] : values) {
    if (!value.empty()) continue;
    missing.add({.what = cat(command, ": ", name, " is missing"), .hint = cat("hawser ", command, " --help")});
  }
  if (missing.empty()) return;
  Problems all = common.problems;
  all.add(missing);
  all.throw_if_any();
}

std::size_t help_width() {
  auto columns = terminal_columns(STDOUT_FILENO);
  if (!columns) columns = terminal_columns(STDERR_FILENO);  // as in `hawser --help | less`
  return columns ? std::clamp(static_cast<std::size_t>(*columns), kMinWidth, kMaxWidth) : kMaxWidth;
}

std::string help_text(const CLI::App& app, std::size_t width) {
  const std::string name = full_name(app);
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::string positionals;
  std::vector<const CLI::Option*> placed;
  std::vector<const CLI::Option*> own;
  std::vector<const CLI::Option*> common;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional()) {
      placed.push_back(option);
      positionals += " " + option->get_name(true);
    } else if (!option->get_group().empty()) {  // options without a group are internal
      (option->get_group() == kCommonGroup ? common : own).push_back(option);
    }
  }
  const std::string about = app.get_description();
  std::string out;
  put_paragraph(out, name + ": " + first_line(about), width);
  out += "\nUsage: " + name + (commands.empty() ? positionals + " [options]" : " COMMAND [options]") + "\n";
  if (about.find('\n') != std::string::npos) put_paragraph(out += "\n", about.substr(about.find('\n') + 1), width);
  const auto put = [&](const std::string& title, const std::vector<const CLI::Option*>& options) {
    if (options.empty()) return;
    out += "\n" + title + ":\n";
    for (const CLI::Option* option : options) put_entry(out, option_name(*option), option->get_description(), width);
  };
  if (!commands.empty()) out += "\nCommands:\n";
  for (const CLI::App* command : commands)
    put_entry(out, command->get_name(), first_line(command->get_description()), width);
  put("Arguments", placed);
  put(kOwnGroup, own);
  put(kCommonGroup, common);
  if (!app.get_footer().empty()) put_examples(out += "\nExamples:\n", app.get_footer(), width);
  return out;
}

}  // namespace hawser::cli

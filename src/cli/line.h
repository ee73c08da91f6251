// Declares commands and options to CLI11: typed options with one-line errors, help in groups. Internal to cli/.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace CLI {  // slow to compile: included only by files that add or read options
class App;
class Option;
}  // namespace CLI

namespace hawser::cli {

inline constexpr char kOwnGroup[] = "Options";
inline constexpr char kCommonGroup[] = "Common options";

// Set by parsing: runs the chosen command.
using Chosen = std::function<int()>;

struct CommandText {
  const char* name;
  const char* what;                   // one line for the list of commands; further lines only in its own help
  std::vector<std::string> examples;  // complete command lines
  const char* json = "print the result as one JSON object";  // what --json does
  bool several_ranks = false;                                // --ranks takes a list
};

// A subcommand with its --help and the common options.
CLI::App* add_command(CLI::App& parent, const CommandText& text, CommonOptions& common);

// A word with subcommands: `bench` of `bench step`.
CLI::App* add_family(CLI::App& parent, const char* name, const char* what,
                     const std::vector<std::string>& examples = {});

// A positional argument. need() checks required ones after parsing, so that a mistyped option is reported first.
void add_positional(CLI::App& app, const char* name, std::string& value, const char* help);
void add_text(CLI::App& app, const char* name, const char* takes, std::string& value, const char* help);
// A repeatable option.
void add_texts(CLI::App& app, const char* name, const char* takes, std::vector<std::string>& values, const char* help);
void add_switch(CLI::App& app, const char* name, bool& value, const char* help);
// An internal option, hidden from help and completion.
void add_hidden_switch(CLI::App& app, const char* name, bool& value);

// An option with a parser of its own; `store` throws UserError for a wrong value, which becomes a problem of `common`.
void add_parsed(CLI::App& app, CommonOptions& common, const char* name, const char* takes, const char* help,
                const std::function<void(const std::string&)>& store);

// An integer from `min` to `max`; anything else is a one-line error.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;
void add_number(CLI::App& app, CommonOptions& common, const char* name, std::int64_t min, std::int64_t max,
                const char* help, const std::function<void(std::int64_t)>& store);

// Shell completions of an option's or argument's value. They affect neither help nor checks.
void set_completions(CLI::App& app, const char* name, const std::vector<std::string>& words);
// The completions, separated by spaces; "" if there are none.
std::string completions_of(const CLI::Option& option);

// Parses an integer, or a real number, from `min` to `max`; UserError of one line that names the option.
std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t min, std::int64_t max);
double real_number(const std::string& option, const std::string& text, double min, double max);

// Throws UserError if required values are missing, with the problems of `common`: neither hides the other.
struct NeededValue {
  const std::string& value;
  const char* name;
};
void need(const CommonOptions& common, const std::vector<NeededValue>& values, const char* command);

// Runs `then` when the command line named this command and all options are parsed. `then` reports the problems of the
// common options, or passes them on to the command.
void on_chosen(CLI::App& app, const std::function<void()>& then);

// Help, wrapped between words at `width` columns.
std::string help_text(const CLI::App& app, std::size_t width);
// That of the user's terminal, at most 100 columns.
std::size_t help_width();

void add_pull(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_fit(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_prepare(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_plan(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_eval(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_generate(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_export(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_inspect(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_recipe(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_recipe_convert(CLI::App& recipe, const Commands& commands, Chosen& chosen);  // to its family
void add_bench(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_doctor(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_completion(CLI::App& app, Chosen& chosen);  // last: it describes the commands added before

}  // namespace hawser::cli

// Describing a command to CLI11 in Hawser's way: typed options that reject with one line of ours, help in groups.
// Internal to cli/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace CLI {  // slow to compile: only what adds or reads options includes it
class App;
class Option;
}  // namespace CLI

namespace hawser::cli {

inline constexpr char kOwnGroup[] = "Options";
inline constexpr char kCommonGroup[] = "Options of every command";

// Set when the command line has been read: runs the chosen command.
using Chosen = std::function<int()>;

struct CommandText {
  const char* name;
  const char* what;                   // one line, for the list of commands; lines behind it are for its own help
  std::vector<std::string> examples;  // whole command lines
  const char* json = "print the result as one JSON object";  // what --json does
};

// A subcommand with its --help and the common options.
CLI::App* add_command(CLI::App& parent, const CommandText& text, CommonOptions& common);

// A word that only stands before subcommands: `bench` of `bench step`.
CLI::App* add_family(CLI::App& parent, const char* name, const char* what,
                     const std::vector<std::string>& examples = {});

// A positional argument; those that are required are checked by us after parsing (need), so that a mistyped option is
// named first.
void add_positional(CLI::App& app, const char* name, std::string& value, const char* help);
void add_text(CLI::App& app, const char* name, const char* takes, std::string& value, const char* help);
// One that may be given again and again.
void add_texts(CLI::App& app, const char* name, const char* takes, std::vector<std::string>& values, const char* help);
void add_switch(CLI::App& app, const char* name, bool& value, const char* help);
// One that the program says to itself: help and completion leave it out.
void add_hidden_switch(CLI::App& app, const char* name, bool& value);

// An option whose text the command reads itself; `store` throws UserError when it is wrong.
void add_parsed(CLI::App& app, const char* name, const char* takes, const char* help,
                const std::function<void(const std::string&)>& store);

// A whole number from `least` to `most`; rejects anything else with one line.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;
void add_number(CLI::App& app, const char* name, std::int64_t min, std::int64_t max, const char* help,
                const std::function<void(std::int64_t)>& store);

// Words that the shell completes as the value of an option or argument; help and checks say them on their own.
void set_completions(CLI::App& app, const char* name, const std::vector<std::string>& words);
// Those, divided by spaces; "" where there are none.
std::string completions_of(const CLI::Option& option);

// A whole number, or any, from `least` to `most`: UserError with one line that names the option.
std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t min, std::int64_t max);
double real_number(const std::string& option, const std::string& text, double min, double max);

// Throws UserError when a value that the command cannot do without is missing.
void need(const std::string& value, const char* name, const char* command);

// `then` runs when the command line named this command and every option was read.
void on_chosen(CLI::App& app, const std::function<void()>& then);

std::string help_text(const CLI::App& app);

void add_fit(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_prepare(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_plan(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_eval(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_generate(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_export(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_inspect(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_recipe(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_bench(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_doctor(CLI::App& app, const Commands& commands, Chosen& chosen);
void add_completion(CLI::App& app, Chosen& chosen);  // the last: it describes all that `app` has

}  // namespace hawser::cli

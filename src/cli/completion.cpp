// hawser completion: completion scripts for shells.
//
// The script has a table, made from the command tree and the recipe's schema, and a few lines that walk over the words
// typed so far. Both are the same in bash and zsh: `case` on quoted words, and nothing that the two read differently.
// Only the last step, which returns the candidates, differs between them. Fish has a syntax of its own.
#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "base/build.h"
#include "base/cat.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "cli/line.h"
#include "cli/takes_path.h"
#include "config/choices.h"

namespace hawser::cli {
namespace {

// The paths that an option or argument takes, as the last word of its kind.
std::string paths_of(const std::string& takes) {
  if (takes == "RECIPE") return "recipes";
  const bool folder = takes == "DIR" || takes == "OUT_DIR" || takes == "SOURCE";
  return folder ? "folders" : takes_path(takes) ? "files" : "";
}

// Kind of a value: "none" (a switch), "keys" (of --set), "any", or the words to complete, separated by spaces. Of the
// words, "models" means the names in the Hugging Face cache, and "files", "folders" and "recipes" (.yaml files) paths.
std::string kind_of(const CLI::Option& option) {
  if (option.nonpositional() && option.get_items_expected_max() == 0) return "none";
  const std::string takes = option.nonpositional() ? option.get_option_text() : option.get_name(true);
  if (takes == "KEY=VALUE") return "keys";
  const std::string words = completions_of(option);
  const std::string paths = paths_of(takes);
  if (words.empty()) return paths.empty() ? "any" : paths;
  return words + (paths.empty() ? "" : " " + paths);
}

struct Tables {
  std::string commands, options, values, arguments;  // lines of `case`
};

// A line of a table, "name:help": zsh shows the help, and so does fish after a tab; bash removes it.
std::string entry(const std::string& name, const std::string& help, Shell shell) {
  std::string out;
  for (const char c : name) out += c == ':' && shell != Shell::fish ? std::string("\\:") : std::string(1, c);
  return out + (shell == Shell::fish ? "\t" : ":") + help.substr(0, help.find_first_of(";\n"));
}

std::string echo_of(const std::string& line) {
  return "echo " + single_quoted(line) + "\n";
}

void put_case(std::string& out, const std::string& word, const std::vector<std::string>& lines, Shell shell) {
  if (lines.empty()) return;
  const bool fish = shell == Shell::fish;
  out += fish ? "    case " + single_quoted(word) + "\n" : "    " + single_quoted(word) + ")\n";
  for (const std::string& line : lines) out += "      " + echo_of(line);
  if (!fish) out += "      ;;\n";
}

void describe(const CLI::App& app, const std::string& path, Shell shell, Tables& tables) {
  std::vector<std::string> commands, options, arguments;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(entry(command->get_name(), command->get_description(), shell));
    describe(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), shell, tables);
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // internal options
    if (!option->nonpositional()) {
      arguments.push_back(kind_of(*option));
      continue;
    }
    for (const std::string& name : option->get_lnames()) {
      options.push_back(entry("--" + name, option->get_description(), shell));
      put_case(tables.values, path + " --" + name, {kind_of(*option)}, shell);
    }
  }
  put_case(tables.commands, path, commands, shell);
  put_case(tables.options, path, options, shell);
  put_case(tables.arguments, path, arguments, shell);
}

// A function that prints what a table has for its first argument.
std::string function(const std::string& name, const std::string& cases, Shell shell) {
  if (shell == Shell::fish) return "function " + name + "\n  switch \"$argv[1]\"\n" + cases + "  end\nend\n\n";
  return name + "() {\n  case \"$1\" in\n" + cases + "    *) ;;\n  esac\n}\n\n";
}

// clang-format off
// Walks over the words before the cursor. Sets _hawser_path, the command that they name, and _hawser_kind, the kind of
// the next word (kind_of); "words": commands, options or the command's arguments.
constexpr char kWalk[] = R"sh(_hawser_walk() {
  _hawser_path='' _hawser_kind='words' _hawser_place=0
  local word known
  for word in "$@"; do
    if [ "$_hawser_kind" != words ]; then
      _hawser_kind='words'
      continue
    fi
    case "$word" in
      --*=*) ;;
      -*)
        known="$(_hawser_value "$_hawser_path $word")"
        case "$known" in '' | none) ;; *) _hawser_kind="$known" ;; esac
        ;;
      *)
        if _hawser_commands "$_hawser_path" | grep -q "^$word:"; then
          _hawser_path="${_hawser_path:+$_hawser_path }$word"
        else
          _hawser_place=$((_hawser_place + 1))
        fi
        ;;
    esac
  done
}

# The names of models in the Hugging Face cache, by the rule of `hawser`.
_hawser_models() {
  ls "${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}" 2> /dev/null |
    sed -n 's/^models--\(.*\)--/\1\//p'
}

# What the next argument of the command may be.
_hawser_argument() {
  _hawser_arguments "$_hawser_path" | sed -n "$((_hawser_place + 1))p"
}

)sh";

constexpr char kBash[] = R"sh(# Adds the candidates of a kind to `list`, and the kind of paths to `paths`.
_hawser_add() {
  local word
  for word in $1; do
    case "$word" in
      any | none) ;;
      files | folders | recipes) paths="$word" ;;
      models) list="$list $(_hawser_models)" ;;
      *) list="$list $word" ;;
    esac
  done
}

_hawser_complete() {
  # Readline takes "=" for the end of a word; put such words together again.
  local IFS=$' \t\n'
  local words=() word i current prefix joined=''
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word="${COMP_WORDS[i]}"
    if [ "$word" = '=' ] && ((${#words[@]} > 0)); then
      words[${#words[@]}-1]+='='
      joined=yes
    elif [ -n "$joined" ]; then
      words[${#words[@]}-1]+="$word"
      joined=''
    else
      words+=("$word")
    fi
  done
  current="${words[${#words[@]}-1]}"
  unset "words[${#words[@]}-1]"
  _hawser_walk "${words[@]}"
  prefix=''
  local kind="$_hawser_kind"
  case "$current" in
    --*=*)
      if [ "$kind" = words ]; then
        prefix="${current%%=*}="
        kind="$(_hawser_value "$_hawser_path ${current%%=*}")"
        current="${current#*=}"
      fi
      ;;
  esac
  local list='' paths=''
  case "$kind" in
    words)
      case "$current" in
        -*) list="$(_hawser_options "$_hawser_path" | sed 's/:.*//')" ;;
        *)
          list="$(_hawser_commands "$_hawser_path" | sed 's/:.*//')"
          _hawser_add "$(_hawser_argument)"
          ;;
      esac
      ;;
    keys)
      case "$current" in
        *=*)
          prefix="$prefix${current%%=*}="
          _hawser_add "$(_hawser_key_values "${current%%=*}")"
          current="${current#*=}"
          ;;
        *)
          list="$(_hawser_keys | sed 's/:.*/=/')"
          compopt -o nospace 2> /dev/null
          ;;
      esac
      ;;
    *) _hawser_add "$kind" ;;
  esac
  COMPREPLY=($(compgen -W "$list" -- "$current"))
  IFS=$'\n'
  if [ -n "$paths" ]; then compopt -o filenames 2> /dev/null; fi
  case "$paths" in
    files) COMPREPLY+=($(compgen -f -- "$current")) ;;
    folders) COMPREPLY+=($(compgen -d -- "$current")) ;;
    recipes)
      COMPREPLY+=($(compgen -d -- "$current"; compgen -f -X '!*.yaml' -- "$current"; compgen -f -X '!*.yml' -- "$current"))
      ;;
  esac
  # What stands before "=" is on the line already, where readline ends words there.
  case "$COMP_WORDBREAKS" in
    *=*) ;;
    *) if [ -n "$prefix" ]; then COMPREPLY=("${COMPREPLY[@]/#/$prefix}"); fi ;;
  esac
}
complete -F _hawser_complete hawser
)sh";

constexpr char kZsh[] = R"sh(_hawser() {
  local current="$PREFIX" kind
  local -a before list
  before=("${(@)words[2,CURRENT-1]}")
  _hawser_walk "${before[@]}"
  kind="$_hawser_kind"
  if [[ "$kind" == words && "$current" == --*=* ]]; then
    kind="$(_hawser_value "$_hawser_path ${current%%=*}")"
    current="${current#*=}"
    compset -P 1 '*='
  fi
  case "$kind" in
    any | none | '') ;;
    words)
      if [[ "$current" == -* ]]; then
        list=("${(@f)$(_hawser_options "$_hawser_path")}")
        _describe -o option list
        return
      fi
      list=("${(@f)$(_hawser_commands "$_hawser_path")}")
      [[ -n "${list[1]}" ]] && _describe command list
      kind="$(_hawser_argument)"
      case "$kind" in any | '') ;; *) _hawser_complete "$kind" ;; esac
      ;;
    keys)
      if [[ "$current" == *=* ]]; then
        kind="$(_hawser_key_values "${current%%=*}")"
        compset -P 1 '*='
        _hawser_complete "$kind"
      else
        list=("${(@f)$(_hawser_keys)}")
        _describe key list -S '='
      fi
      ;;
    *) _hawser_complete "$kind" ;;
  esac
}

# The candidates of a kind.
_hawser_complete() {
  local -a candidates
  local word
  for word in ${=1}; do
    case "$word" in
      files | folders | recipes) ;;
      models) candidates+=($(_hawser_models)) ;;
      *) candidates+=("$word") ;;
    esac
  done
  (( ${#candidates} )) && compadd -a candidates
  case "$1" in
    *files) _files ;;
    *folders) _files -/ ;;
    *recipes) _files -g '*.(yaml|yml)' ;;
  esac
}

if [ "$funcstack[1]" = _hawser ]; then _hawser "$@"; else compdef _hawser hawser; fi
)sh";

// The same steps as _hawser_walk and _hawser_complete above. Fish wants candidates with all of the word typed so far.
constexpr char kFish[] = R"sh(function _hawser_walk
  set -g _hawser_path ''
  set -g _hawser_kind words
  set -g _hawser_place 0
  for word in $argv
    if test "$_hawser_kind" != words
      set _hawser_kind words
      continue
    end
    switch $word
      case '--*=*'
      case '-*'
        set -l known (_hawser_value "$_hawser_path $word")
        if test -n "$known" -a "$known" != none
          set _hawser_kind $known
        end
      case '*'
        if contains -- $word (_hawser_commands "$_hawser_path" | string replace -r '\t.*' '')
          set _hawser_path (string trim -- "$_hawser_path $word")
        else
          set _hawser_place (math $_hawser_place + 1)
        end
    end
  end
end

# The names of models in the Hugging Face cache, by the rule of `hawser`.
function _hawser_models
  set -l cache $HOME/.cache/huggingface/hub
  test -n "$XDG_CACHE_HOME"; and set cache $XDG_CACHE_HOME/huggingface/hub
  test -n "$HF_HOME"; and set cache $HF_HOME/hub
  test -n "$HF_HUB_CACHE"; and set cache $HF_HUB_CACHE
  for folder in $cache/models--*--*
    string replace -r '.*/models--(.*)--' '$1/' -- $folder
  end
end

# The candidates of a kind that begin with a text.
function _hawser_add
  for word in (string split -n ' ' -- $argv[1])
    switch $word
      case any none
      case files
        __fish_complete_path $argv[2]
      case folders
        __fish_complete_directories $argv[2] ''
      case recipes
        __fish_complete_path $argv[2] | string match -r '^[^\t]*(?:/|\.ya?ml)(?:\t.*)?$'
      case models
        _hawser_models
      case '*'
        echo $word
    end
  end
end

function _hawser_complete
  set -l before (commandline -opc)
  set -e before[1]
  _hawser_walk $before
  set -l current (commandline -ct)
  set -l kind $_hawser_kind
  set -l prefix ''
  if test "$kind" = words; and string match -q -- '--*=*' $current
    set kind (_hawser_value "$_hawser_path "(string replace -r '=.*' '' -- $current))
    set prefix (string replace -r '=.*' '=' -- $current)
    set current (string replace -r '^[^=]*=' '' -- $current)
  end
  if test "$kind" = keys; and string match -q -- '*=*' $current
    set kind (_hawser_key_values (string replace -r '=.*' '' -- $current))
    set prefix $prefix(string replace -r '=.*' '=' -- $current)
    set current (string replace -r '^[^=]*=' '' -- $current)
  end
  switch "$kind"
    case words
      if string match -q -- '-*' $current
        _hawser_options "$_hawser_path"
      else
        _hawser_commands "$_hawser_path"
        set -l next (math $_hawser_place + 1)
        set -l arguments (_hawser_arguments "$_hawser_path")
        _hawser_add "$arguments[$next]" $current
      end
    case keys
      _hawser_keys | string replace -r '^' -- $prefix
    case '*'
      _hawser_add "$kind" $current | string replace -r '^' -- $prefix
  end
end

complete -c hawser -f -a '(_hawser_complete)'
)sh";
// clang-format on

}  // namespace

std::string completion_script(const CLI::App& app, Shell shell) {
  Tables tables;
  describe(app, "", shell, tables);
  std::string keys, values;
  for (const KeyChoices& key : key_choices()) {
    // Fish completes a key with its "=".
    keys += "  " + echo_of(entry(key.name + (shell == Shell::fish ? "=" : ""), key.help, shell));
    std::string words = joined(key.values, " ");
    if (key.name == "model.path") words = "models";
    if (key.is_path) words += words.empty() ? "files" : " files";
    if (!words.empty()) put_case(values, key.name, {words}, shell);
  }
  const char* const name = shell == Shell::zsh ? "zsh" : shell == Shell::fish ? "fish" : "bash";
  std::string out = shell == Shell::zsh ? "#compdef hawser\n" : "";
  out +=
      cat("# Completion of hawser ", build().version, " for ", name, "; made by `hawser completion ", name, "`.\n\n");
  out += function("_hawser_commands", tables.commands, shell);
  out += function("_hawser_options", tables.options, shell);
  out += function("_hawser_value", tables.values, shell);
  out += function("_hawser_arguments", tables.arguments, shell);
  out += function("_hawser_key_values", values, shell);
  if (shell == Shell::fish) return cat(out, "function _hawser_keys\n", keys, "end\n\n", kFish);
  return cat(out, "_hawser_keys() {\n", keys, "}\n\n", kWalk, shell == Shell::zsh ? kZsh : kBash);
}

void add_completion(CLI::App& app, Chosen& chosen) {
  static const std::map<std::string, Shell> kShells = {
      {"bash", Shell::bash}, {"zsh", Shell::zsh}, {"fish", Shell::fish}};
  CLI::App* command =
      add_family(app, "completion", "print a completion script for bash, zsh or fish",
                 {"source <(hawser completion bash)                     # this shell; add it to ~/.bashrc for all",
                  "source <(hawser completion zsh)                      # the same in ~/.zshrc, after compinit",
                  "hawser completion zsh > \"${fpath[1]}/_hawser\"        # or once, in a folder that compinit reads",
                  "hawser completion fish > ~/.config/fish/completions/hawser.fish"});
  const auto shell = std::make_shared<std::string>();
  add_positional(*command, "SHELL", *shell, "bash, zsh or fish");
  set_completions(*command, "SHELL", {"bash", "zsh", "fish"});
  on_chosen(*command, [&app, shell, &chosen] {
    need({}, {{*shell, "SHELL"}}, "completion");
    const auto found = kShells.find(*shell);
    if (found == kShells.end()) {
      const std::string hint = nearest(*shell, {"bash", "zsh", "fish"});
      throw UserError(Problem{.what = "unknown shell",
                              .expected = "bash, zsh or fish",
                              .got = *shell,
                              .hint = hint.empty() ? "" : "hawser completion " + hint});
    }
    chosen = [&app, chosen_shell = found->second] {
      const std::string script = completion_script(app, chosen_shell);
      std::fwrite(script.data(), 1, script.size(), stdout);
      return 0;
    };
  });
}

}  // namespace hawser::cli

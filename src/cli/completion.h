// Scripts by which bash and zsh complete command lines of `hawser`.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace hawser::cli {

enum class Shell { bash, zsh };

// All that the tree below `app` has: commands, options, words that options take, files where a path is wanted; and the
// keys of --set with their values.
std::string completion_script(const CLI::App& app, Shell shell);

}  // namespace hawser::cli

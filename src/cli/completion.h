// Completion scripts of `hawser` for bash, zsh and fish.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace hawser::cli {

enum class Shell { bash, zsh, fish };

// Completes everything in the tree below `app`: commands, options and their values, files where a path is expected, and
// the keys of --set with their values.
std::string completion_script(const CLI::App& app, Shell shell);

}  // namespace hawser::cli

// Whether output goes to a terminal, and its width. Internal to cli/.
#pragma once

#include <optional>

namespace hawser::cli {

// The columns of the terminal that the file descriptor writes to, 80 if it does not know them; none if it is no
// terminal.
std::optional<int> terminal_columns(int file);

}  // namespace hawser::cli

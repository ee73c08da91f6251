#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace hawser::cli {

std::optional<int> terminal_columns(int file) {
  if (isatty(file) == 0) return std::nullopt;
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace hawser::cli

// `unread_format`: the problem of a file whose format is not read, with a command that converts it.
#pragma once

#include <string>

#include "base/error.h"

namespace hawser::prepare {

// Describes a file that kind_by_name does not know. The hint is a shell command if one is known for its extension.
Problem unread_format(const std::string& path);

}  // namespace hawser::prepare

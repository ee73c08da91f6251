// For tests of data/: the error of a prepare in a folder.
#pragma once

#include <string>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "prepare/prepare.h"

namespace hawser::prepare {

// The error message without the folder's name; "accepted" if there is none.
inline std::string rejection_of(const PrepareOptions& with, const TemporaryFolder& folder) {
  try {
    prepare(with);
  } catch (const UserError& error) {
    std::string text = error.what();
    const std::string name = folder.path("");
    for (std::size_t at; (at = text.find(name)) != text.npos;) text.erase(at, name.size());
    return text;
  }
  return "accepted";
}

}  // namespace hawser::prepare

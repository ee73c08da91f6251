// For tests of data/: what a prepare in a folder is rejected with.
#pragma once

#include <string>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "data/prepare.h"

namespace hawser::data {

// What the error says, without the folder's name; "accepted" where there is none.
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

}  // namespace hawser::data

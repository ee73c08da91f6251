// `DataIdentity`: identifies a token file. Checkpoints store it, so that a run does not resume on other data unnoticed.
#pragma once

#include <cstdint>
#include <string>

#include "prepare/token_file.h"

namespace hawser::prepare {

struct DataIdentity {
  std::int64_t documents = 0, sequences = 0, tokens = 0;
  std::uint64_t fingerprint = 0;  // of all lengths, and of ids and labels: all of a small file, a sample of a large one

  bool operator==(const DataIdentity&) const = default;
};

DataIdentity identity_of(const TokenFile& file);

// {"documents": 30, "sequences": 30, "tokens": 459, "fingerprint": "0123456789abcdef"}
std::string to_json(const DataIdentity& identity);

}  // namespace hawser::prepare

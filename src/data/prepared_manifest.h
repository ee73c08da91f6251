// prepared.json: what token files were made from. Internal to prepare.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/sources.h"

namespace hawser::data {

// What the token files depend on.
struct PreparedFrom {
  std::vector<Source> train, validation;
  std::uint64_t tokenizer = 0;  // fingerprint; 0: none
  double validation_fraction = 0.0;
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;

  bool operator==(const PreparedFrom&) const = default;
};

void write_manifest(const std::string& path, const PreparedFrom& from, const Prepared& counts);
// nullopt when there is none that this version understands.
std::optional<PreparedFrom> read_manifest(const std::string& path);

}  // namespace hawser::data

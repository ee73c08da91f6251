// `ValidationSet`: held-out files whose loss is computed for itself.
//
//   {.name = "support", .patterns = {"tickets/*.jsonl"}}    // OUTPUT/valid-support.bin and .idx
//   {.patterns = {"held-out.txt"}}                          // OUTPUT/valid.bin and .idx: the only set has no name
#pragma once

#include <string>
#include <vector>

#include "prepare/sources.h"

namespace hawser::prepare {

struct ValidationSet {
  std::string name = {};
  std::vector<std::string> patterns;  // see sources.h
};

// The name of a set's token files without an ending: "valid", "valid-support".
std::string validation_stem(const std::string& name);

// Where the recipe has a set: "data.validation", "data.validation.support".
std::string validation_key(const std::string& name);

// find_sources of each set, in order; Source::set is the index of its set. Adds a problem for a file of two sets.
std::vector<Source> find_validation(const std::vector<ValidationSet>& sets, const std::string& folder,
                                    Problems& problems);

}  // namespace hawser::prepare

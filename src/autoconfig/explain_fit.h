// The reasons of what fit_to() has chosen, for the comments of the recipe that `hawser recipe init` writes.
//
//   explain_fit({.before = recipe, .wanted_batch = 64}, fitted, place, notes);
//   // notes.why["train.micro_batch_size"]: "one micro-batch per rank and step: one sequence at a time ..."
//   summary_of(fitted, place);   // "2 ranks of h200, sequences of 4096 tokens: a rank needs 61.02 GiB of ..."
#pragma once

#include <cstdint>
#include <string>

#include "autoconfig/fit_machine.h"
#include "config/config.h"

namespace hawser::autoconfig {

// What was to fit.
struct Asked {
  const Recipe& before;           // the recipe that fit_to() was called with
  std::int64_t wanted_batch = 0;  // sequences a step; more than the recipe's if it was reduced
};

// Writes into `notes`, for keys that the user has not set (Recipe::places).
void explain_fit(const Asked& asked, const Fitted& fitted, const Place& place, RecipeNotes& notes);

// Memory of a rank and predicted speed, in one line.
std::string summary_of(const Fitted& fitted, const Place& place);

// "9999", "12.3K": a number of tokens.
std::string tokens_text(double tokens);

}  // namespace hawser::autoconfig

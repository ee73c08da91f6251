// `sample_data`: statistics of a recipe's data from a sample. `hawser recipe init` chooses settings by it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"

namespace hawser::autoconfig {

struct DataSample {
  // Kinds of documents found.
  bool text = false;           // plain text
  bool ids = false;            // lines of ids, or token files
  bool conversations = false;  // messages, or prompts and completions that are lists of messages
  bool completions = false;    // prompt and completion as text
  std::string chat_template;   // template to set if the tokenizer has none for these conversations; else ""
  bool drops_calls = false;    // the tokenizer's own does not write their tool calls

  std::vector<std::int64_t> lengths;  // tokens of the sampled documents, sorted
  double documents = 0, tokens = 0;   // of all data; estimated unless `all`
  bool all = false;                   // all data was sampled

  bool empty() const { return lengths.empty(); }
  bool answers_only() const { return conversations || completions; }
  std::int64_t quantile(double share) const;  // quantile of the document lengths
  // Sequences of `length` tokens that all data fill when packed with at most `max_documents` in each, and the share of
  // their tokens that documents cover. `action`: what happens to documents longer than a sequence.
  double sequences(std::int64_t length, std::int64_t max_documents, LongDocuments action) const;
  double fill(std::int64_t length, std::int64_t max_documents, LongDocuments action) const;
};

// Reads a sample of the recipe's data.train, as `prepare` would: at most 16 sources, and 256 KiB of each, or one line
// if that is longer. Throws UserError with all problems that `prepare` would reject in it: a malformed line, text
// without a tokenizer, conversations without a known template. `vocabulary`: the model's.
DataSample sample_data(const Recipe& recipe, std::int64_t vocabulary);

// Sequences of an epoch: those of all data but what is held out of data.train. At least 1.
double epoch_sequences(const Recipe& recipe, const DataSample& sample);
// Optimizer steps of train.epochs. At least 1.
std::int64_t steps_of_epochs(const Recipe& recipe, const DataSample& sample);

}  // namespace hawser::autoconfig

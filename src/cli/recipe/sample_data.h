// What the data of a recipe to be written look like, from a part of them: `hawser recipe init` fits its settings to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"

namespace hawser::cli {

struct DataSample {
  // Kinds of documents that were met.
  bool text = false;           // running text
  bool ids = false;            // lines of ids, token files
  bool conversations = false;  // messages, or prompts and completions that are lists of them
  bool completions = false;    // prompt and completion as texts
  std::string chat_template;   // a name to set where conversations need one and the tokenizer brings none; else ""

  std::vector<std::int64_t> lengths;  // tokens of the documents looked at, sorted
  double documents = 0, tokens = 0;   // of all the data; estimates unless all of it was looked at
  bool all = false;                   // all of it was

  bool empty() const { return lengths.empty(); }
  bool answers_only() const { return conversations || completions; }
  std::int64_t quantile(double share) const;  // a document's length
};

// Reads a little of the recipe's data.train, as `prepare` would: at most 16 sources, 256 KiB of each, or one line where
// that is longer. Throws UserError, all problems together, for what `prepare` would reject in it: a broken line, text
// without a tokenizer, conversations without a template that is known. `vocabulary`: the model's.
DataSample sample_data(const Recipe& recipe, std::int64_t vocabulary);

}  // namespace hawser::cli

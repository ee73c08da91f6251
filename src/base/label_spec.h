// `LabelSpec`: which rows of a document have labels, and what a label is. A model's head asks for one (nn::labels_of),
// data have one (batches::SequenceSet::label_rows).
//
// Labels are those of a row wherever it is: rows without one have prepare::kIgnoredLabel, -100, as in PyTorch. The loss
// is the mean over all labels of a step.
#pragma once

#include <cstdint>

namespace hawser {

enum class LabelRows {
  next_token,  // any row: the next token of its document
  own,         // any row: the token that a mask hides there, or the class of its token
  first,       // the first row of each document: the class of the document
  last,        // the last row of each document: likewise
};

struct LabelSpec {
  LabelRows rows = LabelRows::next_token;
  std::int64_t values = 0;  // labels are below it: tokens, or classes. Not of next_token

  bool operator==(const LabelSpec&) const = default;
};

}  // namespace hawser

// Labels of rows, besides those of next tokens (base/label_spec.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/label_spec.h"
#include "batches/sequence.h"

namespace hawser::batches {

// Sequence::labels from a class of each document, or kIgnoredLabel: it is the label of the document's first or last
// row, and no other row has one. A document of a classification is complete: a piece of one has no class. InternalError
// for other rows, or another number of classes than of documents.
std::vector<std::int32_t> labels_of_documents(const std::vector<std::int32_t>& document_lengths,
                                              const std::vector<std::int32_t>& classes, LabelRows rows);

// UserError unless the data's labels are of the rows that the model reads.
void check_label_rows(LabelRows data, LabelRows model);

// UserError if a label is neither kIgnoredLabel nor below LabelSpec::values, or in a row that must have none. Labels of
// next tokens are not checked: token files do that.
void check_labels(const Sequence& sequence, const LabelSpec& spec);

}  // namespace hawser::batches

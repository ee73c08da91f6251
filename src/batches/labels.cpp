#include "batches/labels.h"

#include "base/error.h"

namespace hawser::batches {
namespace {

const char* text(LabelRows rows) {
  switch (rows) {
    case LabelRows::next_token:
      return "next tokens";
    case LabelRows::own:
      return "labels of rows";
    case LabelRows::first:
      return "classes of documents, at their first rows";
    case LabelRows::last:
      return "classes of documents, at their last rows";
  }
  return "";
}

}  // namespace

std::vector<std::int32_t> labels_of_documents(const std::vector<std::int32_t>& document_lengths,
                                              const std::vector<std::int32_t>& classes, LabelRows rows) {
  HAWSER_CHECK(rows == LabelRows::first || rows == LabelRows::last, "classes of documents as ", text(rows));
  HAWSER_CHECK(classes.size() == document_lengths.size(), classes.size(), " classes of ", document_lengths.size(),
               " documents");
  std::vector<std::int32_t> labels;
  for (std::size_t d = 0; d < classes.size(); ++d) {
    HAWSER_CHECK(document_lengths[d] > 0, "an empty document");
    const std::size_t begin = labels.size(), end = begin + static_cast<std::size_t>(document_lengths[d]);
    labels.resize(end, prepare::kIgnoredLabel);
    labels[rows == LabelRows::first ? begin : end - 1] = classes[d];
  }
  return labels;
}

void check_label_rows(LabelRows data, LabelRows model) {
  if (data == model) return;
  throw UserError(Problem{
      .what = "the data lack the labels that the model's head reads", .expected = text(model), .got = text(data)});
}

void check_labels(const Sequence& sequence, const LabelSpec& spec) {
  if (spec.rows == LabelRows::next_token) return;
  HAWSER_CHECK(sequence.labels.size() == sequence.ids.size(), sequence.labels.size(), " labels of ",
               sequence.ids.size(), " rows");
  std::size_t begin = 0;
  for (const std::int32_t length : sequence.document_lengths) {
    const std::size_t end = begin + static_cast<std::size_t>(length);
    for (std::size_t row = begin; row < end; ++row) {
      const std::int32_t label = sequence.labels[row];
      if (label == prepare::kIgnoredLabel) continue;
      if (label < 0 || label >= spec.values) {
        throw UserError(Problem{.what = "a label that the model's head does not have",
                                .expected = cat("0 to ", spec.values - 1, ", or -100 for none"),
                                .got = cat(label)});
      }
      if (spec.rows == LabelRows::own || row == (spec.rows == LabelRows::first ? begin : end - 1)) continue;
      throw UserError(Problem{.what = "a label in another row of a document than the model's head reads",
                              .expected = text(spec.rows),
                              .got = cat("row ", row - begin, " of ", length)});
    }
    begin = end;
  }
}

}  // namespace hawser::batches

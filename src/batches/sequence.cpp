#include "batches/sequence.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::batches {
namespace {

class ChunkedSequences final : public SequenceSet {
 public:
  ChunkedSequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length, std::int64_t vocab_size)
      : file_(std::move(file)), length_(length), vocab_size_(vocab_size) {
    if (file_->tokens() < 2) {
      throw UserError({.file = file_->prefix() + ".bin",
                       .what = "too few tokens",
                       .expected = "2 or more",
                       .got = cat(file_->tokens())});
    }
  }

  // The last token is only a target: a sequence of it alone would have none.
  std::int64_t size() const override { return ceil_div(file_->tokens() - 1, length_); }
  std::int64_t max_documents() const override { return 1; }

  Sequence get(std::int64_t index) const override {
    const std::int64_t begin = index * length_;
    const std::int64_t count = std::min(length_, file_->tokens() - begin);
    const std::int64_t targets = std::min(count, file_->tokens() - begin - 1);
    Sequence sequence;
    sequence.ids.resize(count);
    file_->read(begin, sequence.ids, vocab_size_);
    sequence.labels.assign(count, prepare::kIgnoredLabel);
    file_->read_labels(begin + 1, std::span(sequence.labels).first(targets), vocab_size_);
    sequence.document_lengths = {static_cast<std::int32_t>(count)};
    sequence.positions = positions_of(sequence.document_lengths);
    return sequence;
  }

  std::int64_t targets(std::int64_t index) const override {
    if (file_->has_labels()) return get(index).targets();
    return std::min(length_, file_->tokens() - index * length_ - 1);
  }

 private:
  std::shared_ptr<const prepare::TokenFile> file_;
  std::int64_t length_, vocab_size_;
};

class ListedSequences final : public SequenceSet {
 public:
  std::int64_t size() const override { return static_cast<std::int64_t>(sequences_.size()); }
  std::int64_t max_documents() const override { return max_documents_; }
  Sequence get(std::int64_t index) const override { return sequences_[index]; }
  std::int64_t targets(std::int64_t index) const override { return sequences_[index].targets(); }

  void add_line(const prepare::Line& line, std::int64_t length) {
    const auto& labels = line.labels.empty() ? line.ids : line.labels;
    std::vector<std::int32_t> lengths = line.document_lengths;
    if (lengths.empty()) lengths = {static_cast<std::int32_t>(line.ids.size())};
    const auto total = static_cast<std::int64_t>(line.ids.size());
    std::size_t document = 0;
    std::int64_t left = lengths[0];  // of `document`
    for (std::int64_t begin = 0; begin < total; begin += length) {
      const std::int64_t count = std::min(length, total - begin);
      Sequence piece;
      piece.ids.assign(line.ids.begin() + begin, line.ids.begin() + begin + count);
      piece.labels.assign(count, prepare::kIgnoredLabel);
      for (std::int64_t at = 0; at < count;) {
        const std::int64_t part = std::min(left, count - at);
        std::copy_n(labels.begin() + begin + at + 1, part - 1, piece.labels.begin() + at);
        piece.document_lengths.push_back(static_cast<std::int32_t>(part));
        at += part;
        left -= part;
        if (left == 0 && ++document < lengths.size()) left = lengths[document];
      }
      piece.positions = positions_of(piece.document_lengths);
      max_documents_ = std::max(max_documents_, static_cast<std::int64_t>(piece.document_lengths.size()));
      sequences_.push_back(std::move(piece));
    }
  }

 private:
  std::vector<Sequence> sequences_;
  std::int64_t max_documents_ = 1;
};

}  // namespace

std::int64_t Sequence::targets() const {
  return static_cast<std::int64_t>(labels.size()) - std::count(labels.begin(), labels.end(), prepare::kIgnoredLabel);
}

std::vector<std::int32_t> positions_of(const std::vector<std::int32_t>& document_lengths) {
  std::vector<std::int32_t> positions;
  for (const std::int32_t length : document_lengths) {
    for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
  }
  return positions;
}

std::unique_ptr<SequenceSet> chunked_sequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length,
                                               std::int64_t vocab_size) {
  return std::make_unique<ChunkedSequences>(std::move(file), length, vocab_size);
}

std::unique_ptr<SequenceSet> listed_sequences(const std::vector<prepare::Line>& lines, const text::Tokenizer* tokenizer,
                                              std::int64_t length, std::int64_t* split) {
  auto set = std::make_unique<ListedSequences>();
  const auto add = [&](const prepare::Line& line) {
    set->add_line(line, length);
    if (split) *split += static_cast<std::int64_t>(line.ids.size()) > length;
  };
  for (const prepare::Line& line : lines) {
    if (!line.text) {
      add(line);
      continue;
    }
    if (!tokenizer) throw UserError(Problem{.what = "lines of text need a tokenizer", .hint = "lines with input_ids"});
    add({.ids = text::encode_framed(*tokenizer, *line.text)});
  }
  return set;
}

std::int64_t default_max_documents(Packing pack, std::int64_t length) {
  return pack == Packing::chunks ? 1 : std::max<std::int64_t>(8, length / 64);
}

std::unique_ptr<SequenceSet> open_sequences(std::shared_ptr<const prepare::TokenFile> file, const PackingPlan& packing,
                                            std::int64_t vocab_size) {
  if (packing.pack == Packing::chunks) return chunked_sequences(std::move(file), packing.sequence_length, vocab_size);
  return packed_sequences(std::move(file), packing.sequence_length, packing.max_documents, packing.seed, vocab_size,
                          packing.long_documents);
}

}  // namespace hawser::batches

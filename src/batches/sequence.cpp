#include "batches/sequence.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::batches {
namespace {

class ChunkedSequences final : public SequenceSet {
 public:
  ChunkedSequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length, std::int64_t vocab_size,
                   FileRange range)
      : file_(std::move(file)),
        length_(length),
        vocab_size_(vocab_size),
        first_(range.begin < file_->sequences() ? file_->begin(range.begin) : file_->tokens()),
        tokens_((range.end < file_->sequences() ? file_->begin(range.end) : file_->tokens()) - first_) {
    if (tokens_ < 2) {
      throw UserError(
          {.file = file_->prefix() + ".bin", .what = "too few tokens", .expected = "2 or more", .got = cat(tokens_)});
    }
  }

  // The last token is only a target: a sequence of it alone would have none.
  std::int64_t size() const override { return ceil_div(tokens_ - 1, length_); }
  std::int64_t max_documents() const override { return 1; }
  std::int64_t tokens() const override { return tokens_; }

  Sequence get(std::int64_t index) const override {
    const std::int64_t begin = index * length_;
    const std::int64_t count = std::min(length_, tokens_ - begin);
    const std::int64_t targets = std::min(count, tokens_ - begin - 1);
    Sequence sequence;
    sequence.ids.resize(count);
    file_->read(first_ + begin, sequence.ids, vocab_size_);
    sequence.labels.assign(count, prepare::kIgnoredLabel);
    file_->read_labels(first_ + begin + 1, std::span(sequence.labels).first(targets), vocab_size_);
    sequence.document_lengths = {static_cast<std::int32_t>(count)};
    sequence.positions = positions_of(sequence.document_lengths);
    return sequence;
  }

  std::int64_t targets(std::int64_t index) const override {
    if (file_->has_labels()) return get(index).targets();
    return std::min(length_, tokens_ - index * length_ - 1);
  }

 private:
  std::shared_ptr<const prepare::TokenFile> file_;
  std::int64_t length_, vocab_size_;
  std::int64_t first_, tokens_;  // of the file
};

class JoinedSequences final : public SequenceSet {
 public:
  explicit JoinedSequences(std::vector<std::shared_ptr<const SequenceSet>> sets) : sets_(std::move(sets)) {
    for (const auto& set : sets_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + set->size());
  }

  std::int64_t size() const override { return ends_.back(); }
  std::int64_t max_documents() const override {
    std::int64_t most = 0;
    for (const auto& set : sets_) most = std::max(most, set->max_documents());
    return most;
  }
  std::int64_t tokens() const override {
    std::int64_t tokens = 0;
    for (const auto& set : sets_) tokens += set->tokens();
    return tokens;
  }
  LabelRows label_rows() const override { return sets_.front()->label_rows(); }
  Sequence get(std::int64_t index) const override { return with_set(index, &SequenceSet::get); }
  std::int64_t targets(std::int64_t index) const override { return with_set(index, &SequenceSet::targets); }
  std::vector<Origin> origins(std::int64_t index) const override { return with_set(index, &SequenceSet::origins); }

 private:
  template <class Result>
  Result with_set(std::int64_t index, Result (SequenceSet::*function)(std::int64_t) const) const {
    const auto set = static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    return (*sets_[set].*function)(index - (set == 0 ? 0 : ends_[set - 1]));
  }

  std::vector<std::shared_ptr<const SequenceSet>> sets_;
  std::vector<std::int64_t> ends_;  // of each set's indices
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

std::int64_t SequenceSet::tokens() const {
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < size(); ++i) tokens += get(i).length();
  return tokens;
}

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

FileRange all_of(const prepare::TokenFile& file) {
  return {0, file.sequences()};
}

std::unique_ptr<SequenceSet> chunked_sequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length,
                                               std::int64_t vocab_size, std::optional<FileRange> range) {
  const FileRange part = range.value_or(all_of(*file));
  return std::make_unique<ChunkedSequences>(std::move(file), length, vocab_size, part);
}

std::unique_ptr<SequenceSet> joined_sequences(std::vector<std::shared_ptr<const SequenceSet>> sets) {
  return std::make_unique<JoinedSequences>(std::move(sets));
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
                                            std::int64_t vocab_size, std::optional<FileRange> range) {
  if (packing.pack == Packing::chunks) {
    return chunked_sequences(std::move(file), packing.sequence_length, vocab_size, range);
  }
  return packed_sequences(std::move(file), packing.sequence_length, packing.max_documents, packing.seed, vocab_size,
                          packing.long_documents, range);
}

}  // namespace hawser::batches

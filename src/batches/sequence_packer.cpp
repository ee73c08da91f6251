#include "batches/sequence_packer.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "batches/sequence.h"
#include "batches/sequence_order.h"

namespace hawser::batches {
namespace {

// Calls use(begin, length, continues) for each piece of the sequences in the range, in file order: its first token, its
// tokens, and whether the document has tokens after it.
template <class Use>
void each_piece(const prepare::TokenFile& file, FileRange range, std::int64_t length, LongDocuments long_documents,
                Use use) {
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    each_piece_of(file.length(i), length, long_documents, [&](std::int64_t at, std::int32_t tokens) {
      use(file.begin(i) + at, tokens, at + length < file.length(i));
    });
  }
}

class PackedSequences final : public SequenceSet {
 public:
  PackedSequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length, std::int64_t max_documents,
                  std::uint64_t seed, std::int64_t vocab_size, LongDocuments long_documents, FileRange range)
      : file_(std::move(file)), max_documents_(max_documents), vocab_size_(vocab_size) {
    std::vector<Piece> cut;
    each_piece(*file_, range, length, long_documents, [&](std::int64_t begin, std::int32_t tokens, bool continues) {
      cut.push_back({begin, tokens, continues});
    });
    if (cut.empty()) {
      const std::string path = file_->prefix() + ".bin";
      bool any = false;
      each_piece(*file_, range, length, LongDocuments::split, [&](auto...) { any = true; });
      if (any) throw UserError(all_dropped(path, ""));
      throw UserError({.file = path, .what = "no document of two tokens or more"});
    }
    const Shuffle shuffle(seed, kPackingName, static_cast<std::int64_t>(cut.size()));
    for (std::size_t from = 0; from < cut.size(); from += kPackingWindow) {
      const std::size_t count = std::min(kPackingWindow, cut.size() - from);
      std::vector<Piece> window(count);
      std::vector<std::int32_t> lengths(count);
      for (std::size_t i = 0; i < count; ++i) {
        window[i] = cut[shuffle.at(static_cast<std::int64_t>(from + i))];
        lengths[i] = window[i].length;
      }
      pack(window, best_fit(lengths, length, max_documents));
    }
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::int64_t max_documents() const override { return max_documents_; }
  std::int64_t tokens() const override {
    std::int64_t tokens = 0;
    for (const Piece& piece : pieces_) tokens += piece.length;
    return tokens;
  }

  Sequence get(std::int64_t index) const override {
    Sequence sequence;
    for (std::int64_t p = first_[index]; p < first_[index + 1]; ++p) {
      const Piece& piece = pieces_[p];
      const std::size_t at = sequence.ids.size();
      sequence.ids.resize(at + piece.length);
      sequence.labels.resize(at + piece.length, prepare::kIgnoredLabel);
      file_->read(piece.begin, std::span(sequence.ids).subspan(at), vocab_size_);
      file_->read_labels(piece.begin + 1, std::span(sequence.labels).subspan(at, piece.length - !piece.continues),
                         vocab_size_);
      sequence.document_lengths.push_back(piece.length);
    }
    sequence.positions = positions_of(sequence.document_lengths);
    return sequence;
  }

  std::vector<Origin> origins(std::int64_t index) const override {
    std::vector<Origin> origins;
    for (std::int64_t p = first_[index]; p < first_[index + 1]; ++p) {
      // The last document that begins at or before the piece.
      std::int64_t low = 0, high = file_->sequences();
      while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (file_->begin(middle) <= pieces_[p].begin ? low : high) = middle;
      }
      origins.push_back({low, pieces_[p].begin - file_->begin(low), file_->length(low)});
    }
    return origins;
  }

  std::int64_t targets(std::int64_t index) const override {
    if (file_->has_labels()) return get(index).targets();
    std::int64_t targets = 0;
    for (std::int64_t p = first_[index]; p < first_[index + 1]; ++p)
      targets += pieces_[p].length - !pieces_[p].continues;
    return targets;
  }

 private:
  struct Piece {
    std::int64_t begin = 0;  // first token in the file
    std::int32_t length = 0;
    bool continues = false;  // the document has tokens after the piece
  };

  // Appends the window's bins as sequences, with pieces in window order.
  void pack(const std::vector<Piece>& window, const std::vector<std::int32_t>& bins) {
    std::vector<std::int32_t> order(window.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return bins[a] < bins[b]; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      pieces_.push_back(window[order[i]]);
      if (i + 1 == order.size() || bins[order[i]] != bins[order[i + 1]]) {
        first_.push_back(static_cast<std::int64_t>(pieces_.size()));
      }
    }
  }

  std::shared_ptr<const prepare::TokenFile> file_;
  std::int64_t max_documents_, vocab_size_;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> first_{0};  // first piece of each sequence, and the number of pieces
};

}  // namespace

std::vector<std::int32_t> best_fit(std::span<const std::int32_t> lengths, std::int64_t capacity,
                                   std::int64_t max_pieces) {
  std::vector<std::int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::int32_t> bins(lengths.size());
  std::vector<std::int64_t> pieces;                      // of each bin
  std::set<std::pair<std::int64_t, std::int32_t>> open;  // (free space, bin) of bins that accept pieces
  for (const std::int32_t piece : order) {
    const std::int64_t length = lengths[piece];
    HAWSER_CHECK(length <= capacity, "piece of ", length, " tokens, capacity ", capacity);
    auto found = open.lower_bound({length, 0});
    std::int64_t space = capacity;
    std::int32_t bin = static_cast<std::int32_t>(pieces.size());
    if (found == open.end()) {
      pieces.push_back(0);
    } else {
      std::tie(space, bin) = *found;
      open.erase(found);
    }
    bins[piece] = bin;
    if (++pieces[bin] < max_pieces && space > length) open.insert({space - length, bin});
  }
  return bins;
}

Problem all_dropped(const std::string& file, const std::string& at) {
  return {.file = file,
          .what = "every document is longer than data.sequence_length, and such ones are dropped",
          .at = at,
          .hint = "a longer data.sequence_length, or data.long_documents: split"};
}

std::vector<std::int32_t> piece_lengths(const prepare::TokenFile& file, std::int64_t length,
                                        LongDocuments long_documents) {
  std::vector<std::int32_t> lengths;
  each_piece(file, all_of(file), length, long_documents,
             [&](std::int64_t /*begin*/, std::int32_t tokens, bool /*continues*/) { lengths.push_back(tokens); });
  return lengths;
}

std::unique_ptr<SequenceSet> packed_sequences(std::shared_ptr<const prepare::TokenFile> file, std::int64_t length,
                                              std::int64_t max_documents, std::uint64_t seed, std::int64_t vocab_size,
                                              LongDocuments long_documents, std::optional<FileRange> range) {
  const FileRange part = range.value_or(all_of(*file));
  return std::make_unique<PackedSequences>(std::move(file), length, max_documents, seed, vocab_size, long_documents,
                                           part);
}

}  // namespace hawser::batches

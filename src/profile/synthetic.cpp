#include "profile/synthetic.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace hawser::profile {

std::string DocumentMix::text() const {
  switch (kind) {
    case Kind::one:
      break;
    case Kind::mean:
      return cat("mean=", length);
    case Kind::long_one:
      return cat("long=", length);
  }
  return "one";
}

DocumentMix parse_documents(const std::string& text) {
  for (const auto& [prefix, kind] :
       {std::pair{"mean=", DocumentMix::Kind::mean}, std::pair{"long=", DocumentMix::Kind::long_one}}) {
    if (!text.starts_with(prefix)) continue;
    DocumentMix mix{.kind = kind};
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + std::string_view(prefix).size(), end, mix.length);
    if (error == std::errc() && at == end && mix.length > 0) return mix;
  }
  throw UserError(
      Problem{.what = "wrong value", .expected = "mean=TOKENS or long=TOKENS", .got = text, .at = "--documents"});
}

std::vector<std::int32_t> document_lengths(const DocumentMix& mix, std::int64_t sequence_length, std::int64_t max,
                                           std::int64_t index) {
  if (mix.kind == DocumentMix::Kind::one) return {static_cast<std::int32_t>(sequence_length)};
  const bool long_one = mix.kind == DocumentMix::Kind::long_one;
  if (mix.length > sequence_length) {
    throw UserError(Problem{.what = long_one ? "a document longer than a sequence" : "documents longer than a sequence",
                            .expected = cat(long_one ? "" : "a mean of ", "at most ", sequence_length),
                            .got = cat(mix.length),
                            .at = "--documents",
                            .hint = cat("--sequence-length ", mix.length)});
  }
  const RandomStream random(2, static_cast<std::uint64_t>(index));
  const auto mean = static_cast<double>(long_one ? kSmallDocuments : mix.length);
  std::int64_t left = sequence_length - (long_one ? mix.length : 0);
  // Number of tokens in small documents before the long one.
  const auto before = long_one ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(left + 1), 0)) : -1;
  std::vector<std::int32_t> out;
  bool placed = !long_one;
  for (std::uint64_t draw = 1; left > 0 || !placed; ++draw) {
    const std::int64_t small = sequence_length - (long_one ? mix.length : 0) - left;
    const auto space = max - static_cast<std::int64_t>(out.size());
    if (!placed && (small >= before || left == 0 || space <= 2)) {
      out.push_back(static_cast<std::int32_t>(mix.length));
      placed = true;
      continue;
    }
    const double u = (static_cast<double>(random.below(std::uint64_t{1} << 53, draw)) + 0.5) / 9007199254740992.0;
    std::int64_t size = std::min(left, 1 + static_cast<std::int64_t>(-std::log(u) * mean));
    if (space == 1) size = left;
    out.push_back(static_cast<std::int32_t>(size));
    left -= size;
  }
  return out;
}

void set_packing(Recipe& recipe, const DocumentMix& mix) {
  const bool packed = mix.kind != DocumentMix::Kind::one;
  recipe.data.pack = packed ? Packing::documents : Packing::chunks;
  if (!packed) recipe.data.max_documents = 1;
}

namespace {

class Synthetic : public batches::SequenceSet {
 public:
  Synthetic(const DocumentMix& mix, std::int64_t count, std::int64_t length, std::int64_t max, std::int64_t vocabulary)
      : mix_(mix), count_(count), length_(length), max_(max), vocabulary_(vocabulary) {}
  std::int64_t size() const override { return count_; }
  std::int64_t max_documents() const override { return max_; }
  std::int64_t targets(std::int64_t) const override { return length_; }
  batches::Sequence get(std::int64_t index) const override {
    const RandomStream random(1, static_cast<std::uint64_t>(index));
    batches::Sequence sequence{.document_lengths = document_lengths(mix_, length_, max_, index)};
    for (std::int64_t i = 0; i <= length_; ++i) {
      const auto id = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(vocabulary_), static_cast<std::uint64_t>(i)));
      if (i < length_) sequence.ids.push_back(id);
      if (i > 0) sequence.labels.push_back(id);
    }
    sequence.positions = batches::positions_of(sequence.document_lengths);
    return sequence;
  }

 private:
  DocumentMix mix_;
  std::int64_t count_, length_, max_, vocabulary_;
};

}  // namespace

std::shared_ptr<const batches::SequenceSet> synthetic_sequences(const DocumentMix& mix, std::int64_t count,
                                                                std::int64_t length, std::int64_t max_documents,
                                                                std::int64_t vocabulary) {
  return std::make_shared<Synthetic>(mix, count, length, max_documents, vocabulary);
}

}  // namespace hawser::profile

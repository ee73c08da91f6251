#include "prepare/token_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "io/files.h"
#include "prepare/token_index.h"

namespace hawser::prepare {
namespace {

using namespace token_index;

// The value at a byte offset, which may be unaligned.
template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

TokenFile::TokenFile(const std::string& prefix) : prefix_(prefix), index_(prefix + ".idx"), ids_(prefix + ".bin") {
  const std::string index_name = prefix + ".idx";
  const auto reject = [&](std::string what, std::string expected, std::string got, std::string at = "") {
    throw UserError({.file = index_name,
                     .what = std::move(what),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .at = std::move(at)});
  };
  const auto index = index_.bytes();
  if (index.size() < kHeader) reject("token index cut short", cat(kHeader, " bytes or more"), cat(index.size()));
  if (std::memcmp(index.data(), kMagic, sizeof kMagic) != 0)
    reject("not a token index", "MMIDIDX", "other bytes", "byte 0");
  if (const auto version = load<std::uint64_t>(index, 9); version != 1) {
    reject("unknown version of token index", "1", cat(version), "byte 9");
  }
  const auto code = load<std::uint8_t>(index, 17);
  if (code != kInt32 && code != kUint16) {
    reject("token type not supported", "4 (int32) or 8 (uint16)", cat(int{code}), "byte 17");
  }
  id_bytes_ = code == kInt32 ? 4 : 2;
  const auto sequences = load<std::uint64_t>(index, 18), bounds = load<std::uint64_t>(index, 26);
  // Divides before multiplying: the counts are untrusted and may overflow.
  const std::uint64_t space = index.size() - kHeader;
  if (sequences > space / 12 || bounds > space / 8 || sequences * 12 + bounds * 8 != space) {
    reject("token index has the wrong size", cat(sequences, " sequences and ", bounds, " document bounds"),
           cat(index.size(), " bytes"));
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(bounds) - 1;

  const std::uint64_t size = ids_.bytes().size();
  std::uint64_t at = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const auto count = load<std::int32_t>(index, kHeader + 4 * i);
    const auto offset = load<std::int64_t>(index, kHeader + 4 * sequences_ + 8 * i);
    if (count < 0) reject("negative length of a sequence", "0 or more", cat(count), cat("sequence ", i));
    if (offset != static_cast<std::int64_t>(at)) {
      reject(offset < static_cast<std::int64_t>(at) ? "sequences overlap" : "gap between sequences", cat("offset ", at),
             cat(offset), cat("sequence ", i));
    }
    at += static_cast<std::uint64_t>(count) * id_bytes_;
    if (at > size) {
      throw UserError({.file = prefix + ".bin",
                       .what = "token file cut short",
                       .expected = cat(at, " bytes or more"),
                       .got = cat(size),
                       .at = cat("sequence ", i)});
    }
  }
  if (at != size) {
    throw UserError({.file = prefix + ".bin",
                     .what = "token file longer than its index",
                     .expected = cat(at, " bytes"),
                     .got = cat(size)});
  }
  tokens_ = static_cast<std::int64_t>(size) / id_bytes_;
  for (std::int64_t i = 0; i <= documents_; ++i) {
    const std::int64_t bound = first_sequence(i), before = i == 0 ? 0 : first_sequence(i - 1);
    const std::int64_t min = i == documents_ ? sequences_ : before, max = i == 0 ? 0 : sequences_;
    if (bound < min || bound > max) {
      reject("document bounds do not add up", cat(min, " to ", max), cat(bound), cat("document ", i));
    }
  }
  if (documents_ < 0) reject("document bounds do not add up", "1 or more", "0");

  const std::string labels = prefix + ".labels.bin";
  if (io::exists(labels)) {
    has_labels_ = true;
    labels_ = io::MappedFile(labels);
    if (labels_.bytes().size() != static_cast<std::uint64_t>(tokens_) * 4) {
      throw UserError({.file = labels,
                       .what = "label file has the wrong size",
                       .expected = cat(tokens_ * 4, " bytes"),
                       .got = cat(labels_.bytes().size())});
    }
  }
}

std::int64_t TokenFile::length(std::int64_t sequence) const {
  return load<std::int32_t>(index_.bytes(), kHeader + 4 * sequence);
}

std::int64_t TokenFile::begin(std::int64_t sequence) const {
  if (sequence == sequences_) return tokens_;
  return load<std::int64_t>(index_.bytes(), kHeader + 4 * sequences_ + 8 * sequence) / id_bytes_;
}

std::int64_t TokenFile::first_sequence(std::int64_t document) const {
  return load<std::int64_t>(index_.bytes(), kHeader + 12 * sequences_ + 8 * document);
}

void TokenFile::read(std::int64_t from, std::span<std::int32_t> out, std::int64_t vocab_size) const {
  const auto count = static_cast<std::int64_t>(out.size());
  HAWSER_CHECK(from >= 0 && from + count <= tokens_, "tokens ", from, " to ", from + count, " of ", tokens_);
  if (id_bytes_ == 4) {
    if (count > 0) std::memcpy(out.data(), ids_.bytes().data() + from * 4, out.size_bytes());
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = load<std::uint16_t>(ids_.bytes(), (from + i) * 2);
  }
  check(from, out, vocab_size, false);
}

void TokenFile::read_labels(std::int64_t from, std::span<std::int32_t> out, std::int64_t vocab_size) const {
  if (!has_labels_) return read(from, out, vocab_size);
  HAWSER_CHECK(from >= 0 && from + static_cast<std::int64_t>(out.size()) <= tokens_, "labels from ", from);
  if (!out.empty()) std::memcpy(out.data(), labels_.bytes().data() + from * 4, out.size_bytes());
  check(from, out, vocab_size, true);
}

void TokenFile::release_labels(std::int64_t from, std::int64_t count) const {
  if (has_labels_) labels_.release(static_cast<std::size_t>(from) * 4, static_cast<std::size_t>(count) * 4);
}

void TokenFile::check(std::int64_t from, std::span<const std::int32_t> values, std::int64_t vocab_size,
                      bool labels) const {
  const std::int64_t limit = vocab_size == 0 ? std::numeric_limits<std::int64_t>::max() : vocab_size;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((values[i] >= 0 && values[i] < limit) || (labels && values[i] == kIgnoredLabel)) continue;
    expect_unchanged();
    throw UserError({.file = prefix_ + (labels ? ".labels.bin" : ".bin"),
                     .what = cat(labels ? "label" : "id", " outside the vocabulary"),
                     .expected = vocab_size == 0 ? "0 or more" : cat("0 to ", vocab_size - 1),
                     .got = cat(values[i]),
                     .at = cat("token ", from + static_cast<std::int64_t>(i))});
  }
}

void TokenFile::expect_unchanged() const {
  const std::pair<const io::MappedFile*, const char*> files[] = {
      {&index_, ".idx"}, {&ids_, ".bin"}, {&labels_, ".labels.bin"}};
  for (const auto& [file, suffix] : files) {
    if (!file->changed()) continue;
    throw UserError({.file = prefix_ + suffix,
                     .what = "the file has changed while it was read",
                     .hint = "again, without another process that writes to it"});
  }
}

void TokenFile::check_ids(std::int64_t vocab_size) const {
  std::vector<std::int32_t> block(std::size_t{1} << 16);
  for (std::int64_t from = 0; from < tokens_; from += static_cast<std::int64_t>(block.size())) {
    const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(block.size()), tokens_ - from);
    read(from, std::span(block).first(count), vocab_size);
    if (has_labels_) read_labels(from, std::span(block).first(count), vocab_size);
  }
}

}  // namespace hawser::prepare

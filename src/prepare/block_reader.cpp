#include "prepare/block_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/error.h"
#include "base/utf8.h"

namespace hawser::prepare {
namespace {

constexpr std::size_t kRead = std::size_t{256} << 10;
// Text compared on both sides of a candidate: longer than any word or token of ordinary text.
constexpr std::size_t kContext = 1024;
constexpr int kMaxRejected = 1000;
// Bounds memory: a line or a part that cannot be split is one block, and an archive may unpack to any size.
constexpr std::size_t kLargestBlock = std::size_t{256} << 20;

// The last `max` bytes or slightly less, from the start of a character.
std::string tail(std::string_view text, std::size_t max) {
  std::size_t from = text.size() - std::min(max, text.size());
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  return std::string(text.substr(from));
}

}  // namespace

BlockReader::BlockReader(const Source& source, const text::Tokenizer* tokenizer, SourcePlace start,
                         std::int64_t block_bytes, const LineNames* names)
    : source_(source),
      tokenizer_(tokenizer),
      block_bytes_(static_cast<std::size_t>(block_bytes)),
      reader_(source.kind == SourceKind::text ? Lines{open_bytes(source.path)}
                                              : open_lines(source.path, /*training=*/true, names)),
      at_(start) {
  if (start.byte == 0) return;
  any_ = true;
  // Reading a part also needs the text before it.
  const std::int64_t before =
      source.kind == SourceKind::text ? std::min<std::int64_t>(start.byte, kContext) : std::int64_t{0};
  if (source.kind == SourceKind::text) {
    reader_.bytes->skip(start.byte - before);
  } else {
    reader_.bytes->skip_lines(start.line - 1, start.byte);
  }
  if (before > 0) {
    context_.resize(static_cast<std::size_t>(before));
    context_.resize(reader_.bytes->read(context_));
    context_ = tail(context_, kContext);
  }
  read_ = start.byte;
  file_bytes_ = file_bytes_until(start.byte);
}

// For bytes read ahead, a proportional share; at the end, the size of the file.
std::int64_t BlockReader::file_bytes_until(std::int64_t byte) const {
  if (ended_ && buffer_.empty()) return source_.bytes;
  const double share = static_cast<double>(byte) / static_cast<double>(std::max<std::int64_t>(1, read_));
  return static_cast<std::int64_t>(share * static_cast<double>(reader_.bytes->file_bytes()));
}

bool BlockReader::more() {
  if (ended_) return false;
  const std::size_t at = buffer_.size();
  buffer_.resize(at + kRead);
  const std::size_t got = reader_.bytes->read(std::span(buffer_).subspan(at));
  buffer_.resize(at + got);
  read_ += static_cast<std::int64_t>(got);
  ended_ = got < kRead;
  return got > 0;
}

bool BlockReader::next(Block& block) {
  block = {.kind = source_.kind, .file = source_.path, .unit = reader_.unit, .start = at_};
  const bool any = source_.kind == SourceKind::text ? next_part(block) : next_lines(block);
  if (!any) return false;
  at_.byte += static_cast<std::int64_t>(block.text.size());
  at_.line += std::count(block.text.begin(), block.text.end(), '\n');
  block.end = at_;
  block.file_bytes = std::max<std::int64_t>(0, file_bytes_until(at_.byte) - file_bytes_);
  file_bytes_ += block.file_bytes;
  any_ = true;
  if (source_.kind == SourceKind::text && block.first) remove_byte_order_mark(block.text);
  return true;
}

bool BlockReader::next_lines(Block& block) {
  std::size_t looked_at = 0;
  while (true) {
    const std::size_t from = std::max(looked_at, block_bytes_ - 1);
    const std::size_t end = from < buffer_.size() ? buffer_.find('\n', from) : std::string::npos;
    if (end != std::string::npos) {
      block.text = buffer_.substr(0, end + 1);
      buffer_.erase(0, end + 1);
      // Detects the last block here, so that it accounts for the rest of the file.
      if (buffer_.empty()) more();
      return true;
    }
    looked_at = buffer_.size();
    if (looked_at > kLargestBlock) {
      throw UserError({.file = source_.path,
                       .what = cat(reader_.unit, " too long"),
                       .expected = cat("at most ", kLargestBlock >> 20, " MiB"),
                       .at = cat(reader_.unit, " ", at_.line + std::count(buffer_.begin(), buffer_.end(), '\n')),
                       .hint = "shorter documents"});
    }
    if (!more()) break;
  }
  block.text = std::exchange(buffer_, {});
  return !block.text.empty();
}

bool BlockReader::next_part(Block& block) {
  block.first = at_.byte == 0;
  std::size_t looked_at = block_bytes_;
  std::size_t cut = std::string::npos;
  while (cut == std::string::npos) {
    cut = find_cut(looked_at);
    if (cut == std::string::npos && buffer_.size() > kLargestBlock) {
      throw UserError({.file = source_.path,
                       .what = "text cannot be split",
                       .expected = cat("a line or word boundary within ", kLargestBlock >> 20, " MiB"),
                       .at = cat("line ", at_.line),
                       .hint = "several files"});
    }
    if (cut == std::string::npos && !more()) break;
  }
  if (cut == std::string::npos) {
    if (buffer_.empty() && any_) return false;
    if (buffer_.empty()) throw UserError({.file = source_.path, .what = "empty file"});
    block.text = std::exchange(buffer_, {});
  } else {
    block.text = buffer_.substr(0, cut);
    buffer_.erase(0, cut);
    block.last = false;
  }
  hasher_.add(block.text);
  if (block.last) block.content = hasher_.hash();
  block.context = context_;
  context_ = tail(context_ + tail(block.text, kContext), kContext);
  return true;
}

std::size_t BlockReader::find_cut(std::size_t& looked_at) {
  // A candidate needs kContext bytes after it: the check encodes them, and the last part must not be empty.
  while (looked_at + kContext < buffer_.size()) {
    if (is_cut(looked_at)) return looked_at;
    ++looked_at;
  }
  return std::string::npos;
}

bool BlockReader::is_cut(std::size_t at) {
  if (rejected_ >= kMaxRejected) return false;
  const char before = buffer_[at - 1], after = buffer_[at];
  const bool line = before == '\n' && !is_space(after) && !is_space(buffer_[at - 2]);
  const bool word = after == ' ' && !is_space(before) && !is_space(buffer_[at + 1]);
  if (!line && !word) return false;
  if (!tokenizer_) return true;
  const std::string left = tail(std::string_view(buffer_).substr(0, at), kContext);
  // Ends at a character boundary on the right too.
  std::size_t end = std::min(buffer_.size(), at + kContext);
  while (end < buffer_.size() && (static_cast<unsigned char>(buffer_[end]) & 0xC0) == 0x80) --end;
  std::vector<std::int32_t> apart, together;
  tokenizer_->encode(left, apart, false);
  tokenizer_->encode(left + buffer_.substr(at, end - at), together, false);
  const bool same = together.size() >= apart.size() && std::equal(apart.begin(), apart.end(), together.begin());
  rejected_ = same ? 0 : rejected_ + 1;
  return same;
}

}  // namespace hawser::prepare

#include "prepare/block_encoder.h"

#include <algorithm>
#include <span>

#include "base/utf8.h"
#include "prepare/jsonl.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::prepare {
namespace {

using Ids = std::vector<std::int32_t>;

bool begins_with(std::span<const std::int32_t> ids, std::span<const std::int32_t> start) {
  return ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
}

}  // namespace

BlockEncoder::BlockEncoder(Options options)
    : tokenizer_(options.tokenizer), vocab_size_(options.vocab_size), hashes_(options.hashes), names_(options.names) {
  if (!tokenizer_) return;
  frame_ = tokenizer_->frame();
  answers_.emplace(*tokenizer_, std::move(options.chat_template), std::move(options.without), options.time);
}

EncodedBlock BlockEncoder::encode(const Block& block) const {
  EncodedBlock out{.first = block.first, .last = block.last, .end = block.end, .file_bytes = block.file_bytes};
  if (block.kind == SourceKind::text) {
    encode_part(block, out);
  } else {
    encode_lines(block, out);
  }
  return out;
}

std::vector<std::int32_t> BlockEncoder::encode_text(std::string_view text) const {
  if (text.empty()) return {};
  Ids ids = text::encode_framed(*tokenizer_, text);
  const auto end = tokenizer_->eos();
  if (end && !ids.empty() && ids.back() != *end) ids.push_back(*end);
  return ids;
}

void BlockEncoder::encode_part(const Block& block, EncodedBlock& out) const {
  if (!tokenizer_) {
    if (block.first) out.problems.add({.file = block.file, .what = "text needs a tokenizer", .hint = "data.tokenizer"});
    return;
  }
  if (const std::size_t bad = find_invalid_utf8(block.text); bad != std::string_view::npos) {
    out.problems.add({.file = block.file,
                      .what = "not UTF-8",
                      .at = cat("byte ", block.start.byte + static_cast<std::int64_t>(bad)),
                      .hint = "iconv -c -t utf-8"});
    return;
  }
  if (block.first && block.last) {
    out.documents.push_back({.ids = encode_text(block.text), .content = block.content});
    return;
  }
  Ids context, ids;
  tokenizer_->encode(block.context, context, false);
  tokenizer_->encode(block.context + block.text, ids, false);
  if (!begins_with(ids, context)) {
    out.problems.add({.file = block.file,
                      .what = "text cannot be split for this tokenizer",
                      .at = cat("byte ", block.start.byte),
                      .hint = "smaller files"});
    return;
  }
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(context.size()));
  const text::MissingFrame missing = text::missing_frame(frame_, ids);
  if (block.first) ids.insert(ids.begin(), missing.before.begin(), missing.before.end());
  if (block.last) {
    ids.insert(ids.end(), missing.after.begin(), missing.after.end());
    const auto end = tokenizer_->eos();
    if (end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
  }
  out.documents.push_back({.ids = std::move(ids), .content = block.content});
}

void BlockEncoder::encode_lines(const Block& block, EncodedBlock& out) const {
  LinePlace place{
      .file = block.file, .number = block.start.line, .vocab_size = vocab_size_, .unit = block.unit, .names = names_};
  const std::string_view all = block.text;
  for (std::size_t at = 0; at < all.size(); ++place.number) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view text = all.substr(at, end - at);
    place.byte = block.start.byte + static_cast<std::int64_t>(at);
    at = end + 1;
    if (is_blank(text)) continue;
    auto line = parse_line(text, place, out.problems);
    if (!line) continue;
    const bool answered = line->chat || line->completion;
    if (answered && tokenizer_ && !answers_->encode(*line, place, out.problems)) continue;
    out.unread.merge(line->unread);
    out.names.merge(line->names);
    out.asked_time = out.asked_time || line->asked_time;
    out.no_turn_end = out.no_turn_end || line->no_turn_end;
    if (!line->text && (!answered || tokenizer_)) {
      out.documents.push_back({std::move(line->ids), std::move(line->labels), std::move(line->document_lengths)});
      EncodedDocument& last = out.documents.back();
      if (hashes_) last.content = hash_of_ids(last.ids, last.labels, last.document_lengths);
    } else if (tokenizer_) {
      out.documents.push_back({.ids = encode_text(*line->text)});
      if (hashes_) out.documents.back().content = hash_of_text(*line->text);
    } else {
      out.problems.add(
          {.file = block.file, .what = "text needs a tokenizer", .at = place.at(), .hint = "data.tokenizer"});
    }
  }
}

}  // namespace hawser::prepare

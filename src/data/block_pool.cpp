#include "data/block_pool.h"

#include "data/jsonl.h"
#include "data/utf8.h"

namespace hawser::data {
namespace {

std::vector<std::int32_t> encode_text(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  if (text.empty()) return ids;
  tokenizer.encode(text, ids, true);
  const auto end = tokenizer.eos();
  if (end && !ids.empty() && ids.back() != *end) ids.push_back(*end);
  return ids;
}

}  // namespace

EncodedBlock encode_block(const Block& block, const Tokenizer* tokenizer, std::int64_t vocab_size) {
  EncodedBlock out;
  out.bytes = static_cast<std::int64_t>(block.text.size());
  const auto add_text = [&](std::string_view text, const std::string& at) {
    if (!tokenizer) {
      out.problems.add({.file = block.file, .what = "text needs a tokenizer", .at = at, .hint = "data.tokenizer"});
      return;
    }
    out.documents.push_back({.ids = encode_text(text, *tokenizer)});
  };
  if (block.kind == SourceKind::text) {
    if (const std::size_t bad = find_invalid_utf8(block.text); bad != std::string_view::npos) {
      out.problems.add({.file = block.file, .what = "not UTF-8", .at = cat("byte ", bad), .hint = "iconv -c -t utf-8"});
    } else {
      add_text(block.text, "");
    }
    return out;
  }
  LinePlace place{.file = block.file, .number = block.first_line, .vocab_size = vocab_size};
  for (std::size_t at = 0; at < block.text.size(); ++place.number) {
    const std::size_t end = std::min(block.text.find('\n', at), block.text.size());
    const std::string_view text = block.text.substr(at, end - at);
    place.byte = block.first_byte + static_cast<std::int64_t>(at);
    at = end + 1;
    if (is_blank(text)) continue;
    auto line = parse_line(text, place, out.problems);
    if (!line) continue;
    if (line->text) {
      add_text(*line->text, cat("line ", place.number));
    } else {
      out.documents.push_back({std::move(line->ids), std::move(line->labels), std::move(line->document_lengths)});
    }
  }
  return out;
}

BlockPool::BlockPool(int threads, const Tokenizer* tokenizer, std::int64_t vocab_size)
    : tokenizer_(tokenizer), vocab_size_(vocab_size) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

BlockPool::~BlockPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockPool::put(Block block) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(put_++, std::move(block));
  }
  changed_.notify_all();
}

EncodedBlock BlockPool::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.contains(taken_); });
  Result result = std::move(done_.extract(taken_++).mapped());
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.block);
}

void BlockPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const auto [number, block] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Result result;
    try {
      result.block = encode_block(block, tokenizer_, vocab_size_);
    } catch (...) {
      result.error = std::current_exception();
    }
    lock.lock();
    done_.emplace(number, std::move(result));
    changed_.notify_all();
  }
}

}  // namespace hawser::data

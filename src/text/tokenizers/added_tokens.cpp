#include "text/tokenizers/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "text/tokenizers/unicode.h"

namespace hawser::text {
namespace {

// Start of the last character of `text`, which is valid UTF-8 and not empty.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

void AddedTokens::Search::add(std::string_view content, int token) {
  starts[static_cast<unsigned char>(content[0])] = true;
  int node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    int next = child(node, byte);
    if (next < 0) {
      next = static_cast<int>(nodes.size());
      nodes.emplace_back();
      auto& children = nodes[node].children;
      children.insert(std::lower_bound(children.begin(), children.end(), std::pair(byte, 0)), {byte, next});
    }
    node = next;
  }
  if (nodes[node].token < 0) nodes[node].token = token;
  only_start = std::count(std::begin(starts), std::end(starts), true) == 1
                   ? static_cast<int>(std::find(std::begin(starts), std::end(starts), true) - std::begin(starts))
                   : -1;
}

int AddedTokens::Search::child(int node, unsigned char byte) const {
  const auto& children = nodes[node].children;
  const auto at = std::lower_bound(children.begin(), children.end(), std::pair(byte, 0));
  return at != children.end() && at->first == byte ? at->second : -1;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, FunctionRef<std::string(const std::string&)> normalize,
                         bool split_special)
    : tokens_(std::move(tokens)), split_special_(split_special) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string content = tokens_[i].normalized ? normalize(tokens_[i].content) : tokens_[i].content;
    if (!content.empty()) (tokens_[i].normalized ? normalized_ : plain_).add(content, static_cast<int>(i));
  }
}

void AddedTokens::find_in(const Search& trie, std::string_view text, Visit visit) const {
  std::size_t done = 0;
  std::size_t at = trie.nodes.size() == 1 ? text.size() : 0;
  while (at < text.size()) {
    if (trie.only_start >= 0) {
      const void* hit = std::memchr(text.data() + at, trie.only_start, text.size() - at);
      if (!hit) break;
      at = static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
    } else if (!trie.starts[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    int token = -1;
    std::size_t end = at;
    int node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      node = trie.child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) break;
      if (trie.nodes[node].token >= 0) {
        token = trie.nodes[node].token;
        end = i + 1;
      }
    }
    if (token < 0) {
      ++at;
      continue;
    }
    const AddedToken& added = tokens_[token];
    std::size_t begin = at;
    at = end;  // even if the match is discarded below: the search continues after it
    if (split_special_ && added.special) continue;
    if (added.single_word && !is_whole_word(text, begin, end)) continue;
    // White space between two tokens that both strip it belongs to the first.
    begin = std::max(begin, done);
    while (added.lstrip && begin > done) {
      const std::size_t before = last_character(text.substr(0, begin));
      if (before < done || !is_white_space(utf8_step(text.substr(before)).character)) break;
      begin = before;
    }
    while (added.rstrip && end < text.size()) {
      const Utf8Step step = utf8_step(text.substr(end));
      if (!is_white_space(step.character)) break;
      end += step.bytes;
    }
    if (begin > done) visit(text.substr(done, begin - done), -1);
    visit(text.substr(begin, end - begin), added.id);
    done = std::max(done, end);
  }
  if (done < text.size()) visit(text.substr(done), -1);
}

bool AddedTokens::is_whole_word(std::string_view text, std::size_t begin, std::size_t end) {
  const auto is_word = [&](std::size_t at) { return character_of(utf8_step(text.substr(at)).character).word(); };
  return (begin == 0 || !is_word(last_character(text.substr(0, begin)))) && (end == text.size() || !is_word(end));
}

}  // namespace hawser::text

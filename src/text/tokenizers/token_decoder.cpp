#include "text/tokenizers/token_decoder.h"

#include <array>

#include "base/text.h"
#include "base/utf8.h"
#include "text/tokenizers/byte_level.h"

namespace hawser::text {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

struct ApplyDecoder {
  Tokens& tokens;

  void operator()(const Decoder::ByteLevel&) const {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of_byte_level(token).value_or(token);
    tokens = {std::move(bytes)};
  }

  void operator()(const Decoder::ByteFallback&) const {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (find_invalid_utf8(bytes) == std::string_view::npos) {
        out.push_back(bytes);
      } else {
        for (std::size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = value_of_byte_token(token); byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }

  void operator()(const Decoder::Fuse&) const { tokens = {joined(tokens, "")}; }

  void operator()(const Decoder::Replace& step) const {
    Regex::Scratch scratch;
    for (std::string& token : tokens) {
      if (!step.pattern) {
        replace_all(token, step.string, step.content);
        continue;
      }
      std::string out;
      scratch.look_at(token);
      std::size_t done = 0, from = 0, last_end = std::string::npos;
      while (from <= token.size()) {
        const auto match = step.pattern->find(token, from, scratch);
        if (!match) break;
        if (match->begin == match->end && match->end == last_end) {  // an empty match after a match does not count
          if (from == token.size()) break;
          from += utf8_step(std::string_view(token).substr(from)).bytes;
          continue;
        }
        out += token.substr(done, match->begin - done);
        out += step.content;
        done = from = last_end = match->end;
      }
      out += token.substr(done);
      token = out;
    }
  }

  void operator()(const Decoder::Strip& step) const {
    const std::size_t width = step.content.size();
    for (std::string& token : tokens) {
      std::size_t begin = 0, end = token.size();
      for (int i = 0; i < step.start && end - begin >= width && token.compare(begin, width, step.content) == 0; ++i) {
        begin += width;
      }
      for (int i = 0; i < step.stop && end - begin >= width && token.compare(end - width, width, step.content) == 0;
           ++i) {
        end -= width;
      }
      token = token.substr(begin, end - begin);
    }
  }

  void operator()(const Decoder::WordPiece& step) const {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCleanup = {{{" .", "."},
                                                                                                {" ?", "?"},
                                                                                                {" !", "!"},
                                                                                                {" ,", ","},
                                                                                                {" ' ", "'"},
                                                                                                {" n't", "n't"},
                                                                                                {" 'm", "'m"},
                                                                                                {" do not", " don't"},
                                                                                                {" 's", "'s"},
                                                                                                {" 've", "'ve"},
                                                                                                {" 're", "'re"}}};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) token = token.starts_with(step.prefix) ? token.substr(step.prefix.size()) : " " + token;
      if (!step.cleanup) continue;
      for (const auto& [from, to] : kCleanup) replace_all(token, from, to);
    }
  }

  void operator()(const Decoder::Metaspace& step) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], step.mark, i == 0 && step.drop_first ? "" : " ");
    }
  }

  void operator()(const Decoder::Bpe& step) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!step.suffix.empty()) replace_all(tokens[i], step.suffix, i + 1 == tokens.size() ? "" : " ");
    }
  }
};

}  // namespace

int value_of_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string Decoder::surface(std::string token) const {
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteFallback>(step)) {
      if (const int byte = value_of_byte_token(token); byte >= 0) return std::string(1, static_cast<char>(byte));
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      replace_all(token, metaspace->mark, " ");
    } else if (const auto* bpe = std::get_if<Bpe>(&step)) {
      if (!bpe->suffix.empty()) replace_all(token, bpe->suffix, " ");
    } else if (std::holds_alternative<WordPiece>(step)) {
      Tokens two{"", std::move(token)};  // the first token of a text has no space before it
      ApplyDecoder{two}(std::get<WordPiece>(step));
      token = std::move(two[1]);
    } else if (!std::holds_alternative<Strip>(step)) {  // Strip removes the space before a text
      Tokens one{std::move(token)};
      std::visit(ApplyDecoder{one}, step);
      token = joined(one, "");
    }
  }
  return token;
}

std::string Decoder::run(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) std::visit(ApplyDecoder{tokens}, step);
  return joined(tokens, space_between_ ? " " : "");
}

}  // namespace hawser::text

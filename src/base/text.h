// Helpers for text printed to users.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace hawser {

// The first line, without its newline.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// joined({"a", "b"}, ", ") == "a, b".
template <class Texts>
std::string joined(const Texts& texts, std::string_view between) {
  std::string out;
  bool first = true;
  for (const auto& text : texts) {
    if (!first) out += between;
    out += text;
    first = false;
  }
  return out;
}

// "1 document", "2 documents".
inline std::string plural(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// 'text', for a POSIX shell.
inline std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// The same, without quotes if the shell needs none.
inline std::string shell_quoted(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=,:@%+-";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos;
  return plain ? std::string(text) : single_quoted(text);
}

// "+3.8%" of 0.038.
inline std::string signed_percent(double fraction) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%+.1f%%", 100 * fraction);
  return text.data();
}

}  // namespace hawser

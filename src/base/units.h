// Strong types for numbers that must not be mixed up; parsing and formatting of units.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/cat.h"

namespace hawser {

// A number with a unit tag. Arithmetic only within one tag; value() removes it.
template <class Tag, class Number>
class Strong {
 public:
  constexpr Strong() = default;
  constexpr explicit Strong(Number value) : value_(value) {}
  constexpr Number value() const { return value_; }
  explicit operator CatPart() const { return value_; }
  friend constexpr auto operator<=>(Strong, Strong) = default;
  friend constexpr Strong operator+(Strong a, Strong b) { return Strong(a.value_ + b.value_); }
  friend constexpr Strong operator-(Strong a, Strong b) { return Strong(a.value_ - b.value_); }
  constexpr Strong& operator+=(Strong b) { return value_ += b.value_, *this; }
  template <class Out>
  friend Out& operator<<(Out& out, Strong a) {
    return out << a.value_, out;
  }

 private:
  Number value_{};
};

using Rank = Strong<struct RankTag, int>;  // index in the complete run
using Bytes = Strong<struct BytesTag, std::int64_t>;
using Tokens = Strong<struct TokensTag, std::int64_t>;

// "80 GB", "141GB", "24GiB", "1500 MB", "123456" (bytes); decimal and binary units. None for anything else.
std::optional<Bytes> parse_bytes(std::string_view text);
std::string format_bytes(Bytes bytes);        // "1.25 GiB", up to PiB
std::string format_bytes_flag(Bytes bytes);   // "300MiB", "1.03TiB": rounded up, for a command line
std::string format_count(double count);       // "135M", "8.03B", "1.2K"
std::string with_commas(std::int64_t value);  // "16,384"; not negative
std::string format_flops(double flops);       // "984 TFLOP", "1.22 EFLOP"
std::string format_seconds(double seconds);   // "0.8 ms", "5.16 s", "3m 05s", "2h 10m", "41d 16h", "170K years"
std::string format_estimate(double seconds);  // about: "0.8 ms", "19 s", "6.3 min", "2.5 h", "41 days"

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace hawser

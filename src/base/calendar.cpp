#include "base/calendar.h"

#include <array>
#include <charconv>
#include <chrono>

namespace hawser {

std::optional<std::tm> parse_day(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
  std::array<int, 3> parts{};
  const char* const begin = text.data();
  const std::array<std::pair<int, int>, 3> places{{{0, 4}, {5, 7}, {8, 10}}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [from, to] = places[i];
    const auto [end, error] = std::from_chars(begin + from, begin + to, parts[i]);
    if (error != std::errc() || end != begin + to || parts[i] < 1) return std::nullopt;
  }
  namespace ch = std::chrono;
  const ch::year_month_day day{ch::year(parts[0]), ch::month(static_cast<unsigned>(parts[1])),
                               ch::day(static_cast<unsigned>(parts[2]))};
  if (!day.ok()) return std::nullopt;
  const ch::sys_days at(day), new_year(ch::year_month_day(day.year(), ch::January, ch::day(1)));
  return std::tm{.tm_mday = parts[2],
                 .tm_mon = parts[1] - 1,
                 .tm_year = parts[0] - 1900,
                 .tm_wday = static_cast<int>(ch::weekday(at).c_encoding()),
                 .tm_yday = static_cast<int>((at - new_year).count())};
}

}  // namespace hawser

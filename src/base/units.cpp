#include "base/units.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace hawser {

std::optional<Bytes> parse_bytes(std::string_view text) {
  std::string number;
  std::size_t i = 0;
  while (i < text.size() && (std::isdigit(static_cast<unsigned char>(text[i])) || text[i] == '.')) number += text[i++];
  while (i < text.size() && text[i] == ' ') ++i;
  const std::string_view unit = text.substr(i);
  static constexpr std::array<std::pair<std::string_view, double>, 16> kUnits{{{"", 1.0},
                                                                               {"B", 1.0},
                                                                               {"kB", 1e3},
                                                                               {"KB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9},
                                                                               {"TB", 1e12},
                                                                               {"KiB", 1024.0},
                                                                               {"MiB", 1048576.0},
                                                                               {"GiB", 1073741824.0},
                                                                               {"TiB", 1099511627776.0},
                                                                               {"PB", 1e15},
                                                                               {"PiB", 1125899906842624.0},
                                                                               {"K", 1e3},
                                                                               {"M", 1e6},
                                                                               {"G", 1e9}}};
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0') return std::nullopt;
  for (const auto& [name, factor] : kUnits) {
    const double bytes = value * factor;
    if (unit == name && bytes < 9.2e18) return Bytes(static_cast<std::int64_t>(std::llround(bytes)));
  }
  return std::nullopt;
}

namespace {

std::string print(const char* format, double value, const char* unit) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value, unit);
  return buffer.data();
}

}  // namespace

std::string format_bytes(Bytes bytes) {
  const double b = static_cast<double>(bytes.value());
  if (std::abs(b) < 1024.0) return print("%.0f %s", b, "B");
  if (std::abs(b) < 1024.0 * 1024) return print("%.1f %s", b / 1024, "KiB");
  if (std::abs(b) < 1024.0 * 1024 * 1024) return print("%.1f %s", b / (1024.0 * 1024), "MiB");
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (std::abs(b) < 1024 * kGiB) return print("%.2f %s", b / kGiB, "GiB");
  if (std::abs(b) < 1024 * 1024 * kGiB) return print("%.2f %s", b / (1024 * kGiB), "TiB");
  return print("%.2f %s", b / (1024 * 1024 * kGiB), "PiB");
}

std::string format_count(double count) {
  const double a = std::abs(count);
  if (a < 1e3) return print("%.4g%s", count, "");
  if (a < 1e6) return print("%.3g%s", count / 1e3, "K");
  if (a < 1e9) return print("%.3g%s", count / 1e6, "M");
  if (a < 1e12) return print("%.3g%s", count / 1e9, "B");
  return print("%.4g%s", count / 1e12, "T");
}

std::string format_seconds(double seconds) {
  constexpr double kHour = 3600, kDay = 24 * kHour, kYear = 365.25 * kDay;
  if (seconds >= 2 * kYear) return format_count(seconds / kYear) + " years";
  if (seconds < 60) return print(seconds < 10 ? "%.2f %s" : "%.1f %s", seconds, "s");
  const auto whole = static_cast<long long>(seconds + 0.5);
  std::array<char, 64> buffer{};
  if (seconds >= 100 * kHour) {
    std::snprintf(buffer.data(), buffer.size(), "%lldd %02lldh", whole / 86400, whole / 3600 % 24);
  } else if (whole < 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%lldm %02llds", whole / 60, whole % 60);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%lldh %02lldm", whole / 3600, whole / 60 % 60);
  }
  return buffer.data();
}

}  // namespace hawser

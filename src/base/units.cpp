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

constexpr double kMinute = 60, kHour = 3600, kDay = 24 * kHour, kYear = 365.25 * kDay;

std::string print(const char* format, double value, const char* unit) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value, unit);
  return buffer.data();
}

// The value with three digits, scaled so that fewer than four are before the point, and the unit of that scale. Above
// the last unit more digits are before the point.
template <std::size_t N>
std::string scaled(double value, const std::array<const char*, N>& units) {
  std::size_t unit = 0;
  for (; unit + 1 < N && std::abs(value) >= 999.5; ++unit) value /= 1e3;
  const bool long_number = std::abs(value) >= 999.5 && std::abs(value) < 1e6;
  return print(long_number ? "%.0f%s" : "%.3g%s", value, units[unit]);
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

std::string format_bytes_flag(Bytes bytes) {
  constexpr double kMiB = 1024.0 * 1024, kGiB = 1024 * kMiB, kTiB = 1024 * kGiB;
  const double b = static_cast<double>(bytes.value());
  const auto hundredths = [&](double unit) { return std::ceil(100 * b / unit) / 100; };
  if (b <= kGiB) return print("%.0f%s", std::ceil(b / kMiB), "MiB");
  if (b <= kTiB) return print("%.2f%s", hundredths(kGiB), "GiB");
  return print("%.2f%s", hundredths(kTiB), "TiB");
}

std::string with_commas(std::int64_t value) {
  std::string out = std::to_string(value);
  for (int at = static_cast<int>(out.size()) - 3; at > 0; at -= 3) out.insert(static_cast<std::size_t>(at), 1, ',');
  return out;
}

std::string format_count(double count) {
  if (std::abs(count) < 1e3) return print("%.4g%s", count, "");
  return scaled(count, std::array{"", "K", "M", "B", "T"});
}

std::string format_flops(double flops) {
  return scaled(flops, std::array{" FLOP", " KFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP", " ZFLOP"});
}

std::string format_seconds(double seconds) {
  if (seconds >= 2 * kYear) return format_count(seconds / kYear) + " years";
  if (seconds < 0) return "-" + format_seconds(-seconds);
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-4) return print("%.3g %s", 1e6 * seconds, "us");
  if (seconds < 0.9995) return print("%.3g %s", 1e3 * seconds, "ms");
  if (seconds < kMinute) return print(seconds < 10 ? "%.2f %s" : "%.1f %s", seconds, "s");
  const auto whole = std::llround(seconds);
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

std::string format_estimate(double seconds) {
  if (seconds >= 2 * kYear) return format_count(seconds / kYear) + " years";
  const auto in = [&](double unit, const char* name) {
    return print(seconds < 9.95 * unit ? "%.2g %s" : "%.0f %s", seconds / unit, name);
  };
  if (seconds < 0.9995) return in(1e-3, "ms");
  if (seconds < 90) return in(1, "s");
  if (seconds < 90 * kMinute) return in(kMinute, "min");
  if (seconds < 2 * kDay) return in(kHour, "h");
  return in(kDay, "days");
}

}  // namespace hawser

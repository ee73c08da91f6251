// `parse_day`: days of the calendar as text.
#pragma once

#include <ctime>
#include <optional>
#include <string>

namespace hawser {

// The beginning of a day "2026-11-29", with its day of the week and of the year; nullopt for any other text.
std::optional<std::tm> parse_day(const std::string& text);

}  // namespace hawser

// The time that `strftime_now` gives a template.
#pragma once

#include <ctime>
#include <string>

namespace hawser::text::chat {

// 26 July 2024, which Llama 3.1's template writes where no date is known. The default of `data.template_date`: the same
// data give the same ids on every day.
inline constexpr std::tm kTemplateDate{.tm_mday = 26, .tm_mon = 6, .tm_year = 124, .tm_wday = 5, .tm_yday = 207};

// The time now, in the local time zone.
std::tm time_now();

// As Python's datetime.strftime.
std::string format_time(const std::string& format, const std::tm& time);

}  // namespace hawser::text::chat

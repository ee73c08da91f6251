#include "text/chat/template_date.h"

#include <array>

#include "text/chat/value.h"

namespace hawser::text::chat {

std::tm time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

std::string format_time(const std::string& format, const std::tm& time) {
  constexpr std::size_t kLongest = 4096;
  if (format.empty()) return "";
  std::array<char, kLongest> text{};
  // A space, so that an empty result can be told from one that is too long.
  const std::size_t bytes = std::strftime(text.data(), text.size(), (format + " ").c_str(), &time);
  if (bytes == 0) throw TemplateError("strftime_now: the text is too long");
  return {text.data(), bytes - 1};
}

}  // namespace hawser::text::chat

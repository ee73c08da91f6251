// String operations of the filters and methods of templates. Internal to chat/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/chat/value.h"

namespace hawser::text::chat {

// The argument at position `place` or named `name`. Throws TemplateError, which names `of`, if it is missing.
const Value& need(const Arguments& arguments, std::size_t place, const char* name, const char* of);

// `characters` null or None: strips white space as Python defines it.
Text strip(const Text& text, const Value* characters, bool left, bool right);
// Maximum length of a text searched for from the right: such a search takes time proportional to the product of both
// lengths.
inline constexpr std::size_t kLongestFromRight = 256;

// Splits at a separator, or at runs of white space without one. `max`: maximum number of splits; negative: no limit.
List split(const Text& text, const Value* separator, std::int64_t max, bool from_right);
Text replace(const Text& text, const std::string& from, const std::string& to, std::int64_t max);
Text join(const List& items, const Text& by);
// Indents the lines after the first. Arguments: width, first, blank.
Text indented(const Text& text, const Arguments& arguments);

// std::string::find in time linear in the sum of both lengths.
std::size_t find_in(std::string_view text, std::string_view what, std::size_t from = 0);

// Changes the case of ASCII text. Throws TemplateError, which names `name`, for other text: that needs Python's tables.
Text recased(const Text& text, const char* name, std::string (*change)(std::string));
std::string uppercase(std::string text);
std::string lowercase(std::string text);
std::string capitalized(std::string text);
std::string titled(std::string text);        // of the method: a word is a run of letters
std::string titled_words(std::string text);  // of the filter: words end at spaces, hyphens and opening brackets

}  // namespace hawser::text::chat

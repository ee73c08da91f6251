// What filters and methods of templates do to texts. Internal to chat/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/chat/value.h"

namespace hawser::data::chat {

// The argument at a place or of a name; TemplateError where `of` is called without it.
const Value& need(const Arguments& arguments, std::size_t place, const char* name, const char* of);

// Without `characters`: white space as Python knows it.
Text strip(const Text& text, const Value* characters, bool left, bool right);
// The longest text that is looked for from the right, which takes the product of both lengths.
inline constexpr std::size_t kLongestFromRight = 256;

// At a separator, or without one at runs of white space; `most` cuts, or all where it is negative.
List split(const Text& text, const Value* separator, std::int64_t max, bool from_right);
Text replace(const Text& text, const std::string& from, const std::string& to, std::int64_t max);
Text join(const List& items, const Text& by);
// Lines after the first moved to the right: arguments width, first, blank.
Text indented(const Text& text, const Arguments& arguments);

// As std::string::find, but in time that grows with the sum of both lengths alone.
std::size_t find_in(std::string_view text, std::string_view what, std::size_t from = 0);

// Upper and lower case, of ASCII alone: more would need Python's tables.
Text recased(const Text& text, const char* name, std::string (*change)(std::string));
std::string uppercase(std::string text);
std::string lowercase(std::string text);
std::string capitalized(std::string text);
std::string titled(std::string text);

}  // namespace hawser::data::chat

#include "text/chat/texts.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/cat.h"
#include "base/utf8.h"

namespace hawser::text::chat {
namespace {

constexpr std::size_t kMaxStripped = 1024;  // searched for each character of a text

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

char up(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
}
char down(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

}  // namespace

const Value& need(const Arguments& arguments, std::size_t place, const char* name, const char* of) {
  const Value* value = arguments.get(place, name);
  if (!value) throw TemplateError(cat(of, " needs `", name, "`"));
  return *value;
}

std::size_t find_in(std::string_view text, std::string_view what, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

Text strip(const Text& text, const Value* characters, bool left, bool right) {
  const auto starts = character_starts(text.bytes);
  const auto at = [&](std::size_t i) {
    return std::string_view(text.bytes).substr(starts[i], starts[i + 1] - starts[i]);
  };
  const bool given = characters && !characters->is_none();
  if (given && characters->text().bytes.size() > kMaxStripped) throw TemplateError("strip argument too long");
  const auto drops = [&](std::size_t i) {
    if (!given) return is_python_space(utf8_step(at(i)).character);
    return characters->text().bytes.find(at(i)) != std::string::npos;
  };
  std::size_t begin = 0, end = starts.size() - 1;
  while (left && begin < end && drops(begin)) ++begin;
  while (right && end > begin && drops(end - 1)) --end;
  return text.part(starts[begin], starts[end]);
}

List split(const Text& text, const Value* separator, std::int64_t max, bool from_right) {
  List out;
  if (!separator || separator->is_none()) {
    if (from_right && max >= 0) throw TemplateError("rsplit at white space is not supported");
    const auto starts = character_starts(text.bytes);
    std::size_t i = 0;
    const std::size_t count = starts.size() - 1;
    const auto space = [&](std::size_t k) {
      return is_python_space(utf8_step(std::string_view(text.bytes).substr(starts[k])).character);
    };
    while (true) {
      while (i < count && space(i)) ++i;
      if (i == count) break;
      std::size_t end = i;
      if (max >= 0 && static_cast<std::int64_t>(out.size()) == max) {
        end = count;  // as in Python, the rest keeps the white space at its end
      } else {
        while (end < count && !space(end)) ++end;
      }
      out.emplace_back(text.part(starts[i], starts[end]));
      i = end;
    }
    return out;
  }
  const std::string& by = separator->text().bytes;
  if (by.empty()) throw TemplateError("empty separator");
  if (from_right && by.size() > kLongestFromRight) throw TemplateError("rsplit separator too long");
  std::vector<std::size_t> cuts;
  if (from_right) {
    for (std::size_t at = text.bytes.size(); max < 0 || static_cast<std::int64_t>(cuts.size()) < max;) {
      if (at < by.size()) break;
      const std::size_t found = text.bytes.rfind(by, at - by.size());
      if (found == std::string::npos) break;
      cuts.push_back(found);
      at = found;
    }
    std::ranges::reverse(cuts);
  } else {
    for (std::size_t at = 0; max < 0 || static_cast<std::int64_t>(cuts.size()) < max;) {
      const std::size_t found = find_in(text.bytes, by, at);
      if (found == std::string::npos) break;
      cuts.push_back(found);
      at = found + by.size();
    }
  }
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    out.emplace_back(text.part(begin, cut));
    begin = cut + by.size();
  }
  out.emplace_back(text.part(begin, text.bytes.size()));
  return out;
}

Text replace(const Text& text, const std::string& from, const std::string& to, std::int64_t max) {
  if (from.empty()) throw TemplateError("replacing an empty text is not supported");
  Text out;
  std::size_t begin = 0;
  for (std::int64_t done = 0; max < 0 || done < max; ++done) {
    const std::size_t found = find_in(text.bytes, from, begin);
    if (found == std::string::npos) break;
    out.append(text.part(begin, found));
    // The replacement gets the marks of the replaced text.
    const Text old = text.part(found, found + from.size());
    out.append(old.marks.empty() ? Text{to, {}} : old.remade(to));
    begin = found + from.size();
  }
  out.append(text.part(begin, text.bytes.size()));
  return out;
}

Text recased(const Text& text, const char* name, std::string (*change)(std::string)) {
  if (std::ranges::any_of(text.bytes, [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    throw TemplateError(cat(name, " of text beyond ASCII is not supported"));
  }
  return text.remade(change(text.bytes));
}

std::string uppercase(std::string text) {
  std::ranges::transform(text, text.begin(), up);
  return text;
}
std::string lowercase(std::string text) {
  std::ranges::transform(text, text.begin(), down);
  return text;
}
std::string capitalized(std::string text) {
  text = lowercase(std::move(text));
  if (!text.empty()) text[0] = up(text[0]);
  return text;
}
std::string titled(std::string text) {
  bool first = true;
  for (char& c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    c = first ? up(c) : down(c);
    first = !letter;
  }
  return text;
}

std::string titled_words(std::string text) {
  bool first = true;
  for (char& c : text) {
    c = first ? up(c) : down(c);
    first = is_python_space(static_cast<unsigned char>(c)) || std::string_view("-({[<").find(c) != std::string::npos;
  }
  return text;
}

Text join(const List& items, const Text& by) {
  Text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(by);
    out.append(items[i].str());
  }
  return out;
}

namespace {

// As Python's (text + "\n").splitlines().
std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const Utf8Step step = utf8_step(std::string_view(text.bytes).substr(at));
    const char32_t c = step.character;
    const std::size_t end = at;
    at += static_cast<std::size_t>(step.bytes);
    if (!((c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    if (c == '\r' && text.bytes.compare(at, 1, "\n") == 0) ++at;
    lines.push_back(text.part(begin, end));
    begin = at;
  }
  lines.push_back(text.part(begin, text.bytes.size()));
  return lines;
}

}  // namespace

Text indented(const Text& text, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  const Value* first = arguments.get(1, "first");
  const Value* blank = arguments.get(2, "blank");
  std::string space = "    ";
  if (width && width->is_text()) {
    space = width->text().bytes;
  } else if (width) {
    if (width->integer() > 1000) throw TemplateError("indent width too large");
    space.assign(static_cast<std::size_t>(std::max<std::int64_t>(width->integer(), 0)), ' ');
  }
  const std::vector<Text> lines = split_lines(text);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append({"\n", {}});
    const bool wanted = i == 0 ? first && first->truth() : (blank && blank->truth()) || !lines[i].bytes.empty();
    if (wanted) out.append({space, {}});
    out.append(lines[i]);
  }
  return out;
}

}  // namespace hawser::text::chat

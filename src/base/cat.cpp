#include "base/cat.h"

#include <array>
#include <charconv>

namespace hawser {

void CatPart::append_to(std::string& out) const {
  std::array<char, 32> digits;  // 20 of an integer with its sign; -1.23457e-308
  const auto append = [&](auto... number) {
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number...).ptr;
    out.append(digits.data(), end);
  };
  switch (kind_) {
    case Kind::text:
      out.append(text_, size_);
      break;
    case Kind::character:
      out += character_;
      break;
    case Kind::integer:
      append(integer_);
      break;
    case Kind::natural:
      append(natural_);
      break;
    case Kind::real:
      append(real_, std::chars_format::general, 6);
      break;
  }
}

std::string joined_parts(const CatPart* parts, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) parts[i].append_to(out);
  return out;
}

}  // namespace hawser

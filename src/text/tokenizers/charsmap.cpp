#include "text/tokenizers/charsmap.h"

#include <cstring>
#include <stdexcept>

namespace hawser::text {
namespace {

// Fields of a unit of the double array.
bool has_value(std::uint32_t unit) {
  return unit >> 8 & 1;
}
std::uint32_t value(std::uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
std::uint32_t label(std::uint32_t unit) {
  return unit & (0x80000000u | 0xFF);
}
std::uint32_t offset(std::uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.empty()) return;
  std::uint32_t size = 0;
  if (bytes.size() > sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size % 4 != 0 || size >= bytes.size() - sizeof size) {
    throw std::invalid_argument("broken precompiled_charsmap: wrong table size");
  }
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data() + sizeof size, size);
  texts_ = bytes.substr(sizeof size + size);
  if (texts_.back() != '\0')
    throw std::invalid_argument("broken precompiled_charsmap: last replacement is not NUL-terminated");
}

// Checks every index: those of a broken file can have any value.
template <class Visit>
void Charsmap::walk(std::string_view text, Visit visit) const {
  if (units_.empty()) return;
  std::uint32_t node = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) return;
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (node >= units_.size()) return;
    if (has_value(unit) && !visit(match(i + 1, value(units_[node])))) return;
  }
}

Charsmap::Match Charsmap::match(std::size_t length, std::uint32_t at) const {
  return {length, at < texts_.size() ? std::string_view(texts_.data() + at) : std::string_view()};
}

std::optional<Charsmap::Match> Charsmap::longest(std::string_view text) const {
  std::optional<Match> found;
  walk(text, [&](Match match) {
    found = match;
    return true;
  });
  return found;
}

std::optional<Charsmap::Match> Charsmap::shortest(std::string_view text) const {
  std::optional<Match> found;
  walk(text, [&](Match match) {
    found = match;
    return false;
  });
  return found;
}

}  // namespace hawser::text

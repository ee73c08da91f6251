// String building for headers that device code may include (fmt does not compile under nvcc with C++20).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hawser {

// An argument of cat: a text, which it refers to, or a number.
class CatPart {
 public:
  CatPart(const char* text) : CatPart(std::string_view(text)) {}
  // No std::string, which would be a temporary of what converts to one: a path, JSON.
  CatPart(std::string_view text) : kind_(Kind::text), size_(text.size()), text_(text.data()) {}
  CatPart(char character) : kind_(Kind::character), character_(character) {}
  CatPart(std::signed_integral auto number) : kind_(Kind::integer), integer_(number) {}
  CatPart(std::unsigned_integral auto number) : kind_(Kind::natural), natural_(number) {}
  CatPart(std::floating_point auto number) : kind_(Kind::real), real_(static_cast<double>(number)) {}
  CatPart(signed char) = delete;  // neither a character nor a number
  CatPart(unsigned char) = delete;

 private:
  friend std::string joined_parts(const CatPart* parts, std::size_t count);
  void append_to(std::string& out) const;

  enum class Kind { text, character, integer, natural, real };
  Kind kind_;
  std::size_t size_ = 0;  // of a text
  union {
    const char* text_;
    char character_;
    std::int64_t integer_;
    std::uint64_t natural_;
    double real_;
  };
};

std::string joined_parts(const CatPart* parts, std::size_t count);

// Concatenates the arguments as operator<< of a stream prints them: real numbers have up to 6 digits, true is 1.
//
//   cat("step ", 7, ": ", loss) == "step 7: 3.5"
//
// Over a thousand places call it, so a call must be small: no stream, no template with code.
template <class... Parts>
std::string cat(const Parts&... parts) {
  const CatPart all[] = {CatPart(parts)...};
  return joined_parts(all, sizeof...(parts));
}

}  // namespace hawser

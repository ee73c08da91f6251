// `Message`: encodes protocol buffers, as the files of TensorBoard and Weights & Biases contain. Messages are not read,
// so no library is needed.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace hawser::report {

template <class Number>
void put_little_endian(std::string& out, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

// An encoded message, built field by field. Field numbers are those of the .proto file.
class Message {
 public:
  Message& whole(int field, std::int64_t value) {
    tag(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real64(int field, double value) {
    tag(field, 1);
    put_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real32(int field, float value) {
    tag(field, 5);
    put_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& inner(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void tag(int field, unsigned kind) { varint(static_cast<unsigned>(field) << 3 | kind); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

}  // namespace hawser::report

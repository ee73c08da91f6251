// A decoder of protocol buffers for tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace hawser::report {

inline std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

// Fields of a message by number, in order; numbers as encoded bytes.
inline std::multimap<int, std::string> fields(std::string_view bytes) {
  std::multimap<int, std::string> out;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0; !bytes.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(bytes[0]);
      bytes.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (!bytes.empty()) {
    const std::uint64_t tag = varint();
    std::string value;
    if ((tag & 7) == 0) {
      const std::uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const std::size_t size = (tag & 7) == 1 ? 8 : (tag & 7) == 5 ? 4 : varint();
      value = bytes.substr(0, size);
      bytes.remove_prefix(size);
    }
    out.emplace(static_cast<int>(tag >> 3), value);
  }
  return out;
}

inline std::string field(std::string_view bytes, int number) {
  const auto all = fields(bytes);
  const auto found = all.find(number);
  return found != all.end() ? found->second : "";
}

}  // namespace hawser::report

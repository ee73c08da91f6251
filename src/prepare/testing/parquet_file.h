// For tests: writes Parquet files of any size, with one column of texts, without Arrow. One of pyarrow is in
// tests/golden/parquet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::prepare {

// Thrift's compact protocol, in which Parquet describes pages and the file.
class ThriftText {
 public:
  ThriftText& number(int field, std::int64_t value, int type = 5) {  // 5: 32 bits, 6: 64 bits
    begin(field, type);
    varint(static_cast<std::uint64_t>(value) << 1);
    return *this;
  }
  ThriftText& text(int field, std::string_view value) {
    begin(field, 8);
    bytes(value);
    return *this;
  }
  // A struct, or a list of structs (type 12), numbers (5) or texts (8), by the bytes of its items.
  ThriftText& structure(int field, const ThriftText& value) {
    begin(field, 12);
    text_ += value.text_ + '\0';
    return *this;
  }
  ThriftText& list(int field, int type, std::int64_t count, std::string_view items) {
    begin(field, 9);
    if (count < 15) {
      text_ += static_cast<char>(count << 4 | type);
    } else {
      text_ += static_cast<char>(0xF0 | type);
      varint(static_cast<std::uint64_t>(count));
    }
    text_ += items;
    return *this;
  }
  std::string ended() const { return text_ + '\0'; }
  static std::string item(std::int64_t value) {
    ThriftText out;
    out.varint(static_cast<std::uint64_t>(value) << 1);
    return out.text_;
  }
  static std::string item(std::string_view value) {
    ThriftText out;
    out.bytes(value);
    return out.text_;
  }

 private:
  void begin(int field, int type) {
    text_ += static_cast<char>((field - field_) << 4 | type);
    field_ = field;
  }
  void bytes(std::string_view value) {
    varint(value.size());
    text_ += value;
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(0x80 | (value & 0x7F));
    text_ += static_cast<char>(value);
  }

  std::string text_;
  int field_ = 0;
};

// A file with the required column `text` of `count` rows, `rows` of them in a row group. Not compressed; a page has
// about 64 KiB.
inline void write_parquet(const std::string& path, std::int64_t count, std::int64_t rows,
                          const std::function<std::string(std::int64_t)>& text) {
  std::ofstream out(path, std::ios::binary);
  std::int64_t at = 0;
  const auto write = [&](std::string_view bytes) {
    out << bytes;
    at += static_cast<std::int64_t>(bytes.size());
  };
  write("PAR1");
  std::string groups;
  std::int64_t group_count = 0;
  for (std::int64_t row = 0; row < count; ++group_count) {
    const std::int64_t begin = at, first = row, end = std::min(count, row + rows);
    while (row < end) {
      std::string page;
      std::int64_t values = 0;
      for (; row < end && page.size() < 65536; ++row, ++values) {
        const std::string value = text(row);
        for (int shift = 0; shift < 32; shift += 8) page += static_cast<char>(value.size() >> shift & 255);
        page += value;
      }
      const auto size = static_cast<std::int64_t>(page.size());
      ThriftText header, data;
      data.number(1, values).number(2, 0).number(3, 3).number(4, 3);
      header.number(1, 0).number(2, size).number(3, size).structure(5, data);
      write(header.ended());
      write(page);
    }
    ThriftText column, chunk, group;
    column.number(1, 6).list(2, 5, 1, ThriftText::item(0)).list(3, 8, 1, ThriftText::item("text")).number(4, 0);
    column.number(5, row - first, 6).number(6, at - begin, 6).number(7, at - begin, 6).number(9, begin, 6);
    chunk.number(2, begin, 6).structure(3, column);
    group.list(1, 12, 1, chunk.ended()).number(2, at - begin, 6).number(3, row - first, 6);
    groups += group.ended();
  }
  ThriftText root, field, file;
  root.text(4, "schema").number(5, 1);
  field.number(1, 6).number(3, 0).text(4, "text").number(6, 0);
  file.number(1, 1).list(2, 12, 2, root.ended() + field.ended()).number(3, count, 6).list(4, 12, group_count, groups);
  const std::string footer = file.ended();
  write(footer);
  std::string size;
  for (int shift = 0; shift < 32; shift += 8) size += static_cast<char>(footer.size() >> shift & 255);
  write(size + "PAR1");
}

}  // namespace hawser::prepare

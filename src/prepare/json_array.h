// `JsonArrayReader`: reads a JSON array as lines, one item a line. Internal to open_lines.
#pragma once

#include <memory>
#include <string>

#include "prepare/byte_reader.h"

namespace hawser::prepare {

// Replaces the brackets of the array by spaces, the commas between its items by line feeds, and line breaks inside an
// item by spaces. So every byte keeps its offset. Items are not parsed: a line is an item only if it is valid JSON.
// Throws UserError, with item and byte, for an array that ends early or has an empty item.
class JsonArrayReader final : public ByteReader {
 public:
  JsonArrayReader(std::string path, std::unique_ptr<ByteReader> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}

  std::size_t read(std::span<char> out) override;
  void skip(std::int64_t bytes) override { skip_by_reading(*this, path_, bytes); }
  std::int64_t file_bytes() const override { return bytes_->file_bytes(); }

 private:
  // Where the next byte is: before "[", before an item, in an item, in a text of an item, after "]".
  enum class In { start, first_item, item_wanted, item, text, end };

  std::size_t skip_text(std::span<char> bytes, std::size_t at);
  void convert(char& byte);
  void begin_item(char& byte);
  [[noreturn]] void reject(const char* what) const;

  std::string path_;
  std::unique_ptr<ByteReader> bytes_;
  In in_ = In::start;
  bool escaped_ = false;  // in a text, after a backslash
  int depth_ = 0;         // open brackets inside the item
  std::int64_t item_ = 1, byte_ = 0;
};

}  // namespace hawser::prepare

#include "prepare/json_array.h"

#include "base/error.h"

namespace hawser::prepare {
namespace {

bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

std::size_t JsonArrayReader::read(std::span<char> out) {
  const std::size_t size = bytes_->read(out);
  const std::int64_t begin = byte_;
  for (std::size_t at = 0; at < size;) {
    byte_ = begin + static_cast<std::int64_t>(at);
    if (in_ == In::text) {
      at = skip_text(out.first(size), at);
    } else {
      convert(out[at++]);
    }
  }
  byte_ = begin + static_cast<std::int64_t>(size);
  if (size < out.size() && in_ != In::end) reject("JSON array cut short");
  return size;
}

// The place after the text's closing quote, or the end of the bytes.
std::size_t JsonArrayReader::skip_text(std::span<char> bytes, std::size_t at) {
  for (; at < bytes.size(); ++at, ++byte_) {
    const char c = bytes[at];
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_ = In::item;
      return at + 1;
    } else if (c == '\n' || c == '\r') {
      reject("broken JSON array: a line break in a text");
    }
  }
  return at;
}

void JsonArrayReader::convert(char& byte) {
  switch (in_) {
    case In::start:  // a byte-order mark, white space, then "["
      if (byte == '[') in_ = In::first_item;
      byte = ' ';
      return;
    case In::first_item:
    case In::item_wanted:
      begin_item(byte);
      return;
    case In::item:
      if (byte == '"') {
        in_ = In::text;
      } else if (byte == '{' || byte == '[') {
        ++depth_;
      } else if ((byte == '}' || byte == ']') && depth_ > 0) {
        --depth_;
      } else if (byte == ']') {
        in_ = In::end;
        byte = ' ';
      } else if (byte == '}') {
        reject("broken JSON array: unexpected }");
      } else if (byte == ',' && depth_ == 0) {
        in_ = In::item_wanted;
        ++item_;
        byte = '\n';
      } else if (byte == '\n' || byte == '\r') {
        byte = ' ';
      }
      return;
    case In::end:
      if (!is_json_space(byte)) reject("broken JSON array: text after its end");
      byte = ' ';
      return;
    case In::text:
      return;
  }
}

void JsonArrayReader::begin_item(char& byte) {
  if (is_json_space(byte)) {
    byte = ' ';
  } else if (byte == ']' && in_ == In::first_item) {
    in_ = In::end;
    byte = ' ';
  } else if (byte == ',' || byte == ']') {
    reject("broken JSON array: an item is missing");
  } else {
    in_ = In::item;
    convert(byte);
  }
}

void JsonArrayReader::reject(const char* what) const {
  throw UserError({.file = path_, .what = what, .at = cat("item ", item_, ", byte ", byte_)});
}

}  // namespace hawser::prepare

#include "prepare/table_reader.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "prepare/json_output.h"

namespace hawser::prepare {
namespace {

constexpr std::size_t kInput = std::size_t{256} << 10;
constexpr std::size_t kLargestRow = std::size_t{256} << 20;

}  // namespace

TableReader::TableReader(std::string path, std::unique_ptr<ByteReader> bytes, char separator,
                         std::function<void(const std::vector<std::string>&)> check)
    : path_(std::move(path)),
      bytes_(std::move(bytes)),
      separator_(separator),
      check_(std::move(check)),
      compressed_(compression_of(path_) != Compression::none) {}

std::size_t TableReader::read(std::span<char> out) {
  while (lines_.size() - lines_at_ < out.size() && (input_at_ < input_.size() || fill())) take(input_[input_at_++]);
  const std::size_t size = std::min(out.size(), lines_.size() - lines_at_);
  std::memcpy(out.data(), lines_.data() + lines_at_, size);
  lines_at_ += size;
  if (lines_at_ == lines_.size()) lines_.clear(), lines_at_ = 0;
  return size;
}

std::int64_t TableReader::file_bytes() const {
  return bytes_->file_bytes() - (compressed_ ? 0 : static_cast<std::int64_t>(input_.size() - input_at_));
}

// False at the end of the table.
bool TableReader::fill() {
  if (ended_) return false;
  input_.resize(kInput);
  input_.resize(bytes_->read(input_));
  ended_ = input_.size() < kInput;
  input_at_ = !any_input_ && input_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  any_input_ = true;
  // The rest of the lines, before those of the new input, so that `lines_` does not grow.
  lines_.erase(0, lines_at_);
  lines_at_ = 0;
  if (input_at_ < input_.size()) return true;
  end();
  return false;
}

void TableReader::take(char c) {
  const bool breaks = c == '\n' || c == '\r';
  const bool second = c == '\n' && after_return_;  // of CRLF
  after_return_ = c == '\r' && in_ != In::quoted;
  if (second && in_ == In::row_start) return;
  if (in_ == In::quoted) {
    if (c == '"') {
      in_ = In::after_quote;
    } else {
      field_ += c;
    }
  } else if (in_ == In::after_quote && c == '"') {
    field_ += c;
    in_ = In::quoted;
  } else if (c == separator_) {
    end_field();
    in_ = In::field_start;
  } else if (breaks) {
    if (in_ != In::row_start) end_field();
    end_row();
  } else if (in_ == In::after_quote) {
    reject("text after a closing quote", "a separator, a line break, or a quote written twice");
  } else if (c == '"' && in_ != In::plain) {
    in_ = In::quoted;
  } else {
    field_ += c;
    in_ = In::plain;
  }
  if (field_.size() + row_bytes_ > kLargestRow) {
    reject("row too long", cat("at most ", kLargestRow >> 20, " MiB"), "", "a closing quote that is missing");
  }
  if (ended_ && input_at_ == input_.size()) end();
}

void TableReader::end_field() {
  if (find_invalid_utf8(field_) != std::string::npos) {
    reject("not UTF-8", "", "", cat("iconv -f windows-1252 -t utf-8, or the encoding that it has"));
  }
  row_bytes_ += field_.size();
  row_.push_back(std::move(field_));
  field_.clear();
}

void TableReader::end_row() {
  in_ = In::row_start;
  if (!row_.empty() && header_.empty()) {
    read_header();
  } else if (!row_.empty()) {
    write_row();
  }
  lines_ += '\n';
  row_.clear();
  row_bytes_ = 0;
  ++number_;
}

void TableReader::end() {
  if (in_ == In::quoted) reject("a quote without its end", "a closing quote");
  if (in_ == In::row_start) return;
  end_field();
  end_row();
}

void TableReader::read_header() {
  header_ = row_;
  std::set<std::string> seen;
  for (const std::string& name : header_) {
    if (!seen.insert(name).second) reject("column named twice", "once", name);
    append_json_text(name, keys_.emplace_back());
  }
  check_(header_);
}

void TableReader::write_row() {
  if (row_.size() != header_.size()) {
    reject("row has another number of fields than the header", cat(header_.size()), cat(row_.size()),
           "quotes around fields with a separator or line break");
  }
  for (std::size_t i = 0; i < row_.size(); ++i) {
    lines_ += i == 0 ? '{' : ',';
    lines_ += keys_[i];
    lines_ += ':';
    append_json_text(row_[i], lines_);
  }
  lines_ += '}';
}

void TableReader::reject(const char* what, std::string expected, std::string got, std::string hint) const {
  throw UserError({.file = path_,
                   .what = what,
                   .expected = std::move(expected),
                   .got = std::move(got),
                   .at = cat("row ", number_),
                   .hint = std::move(hint)});
}

}  // namespace hawser::prepare

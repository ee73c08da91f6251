// `TableReader`: reads a table with a header, such as CSV, as lines of JSON. Internal to open_lines.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "prepare/byte_reader.h"

namespace hawser::prepare {

// RFC 4180 with any one-character separator: a field in quotes may contain separators, line breaks and doubled quotes.
// A quote inside a field that does not begin with one is part of the text. Rows end with LF, CRLF or CR; a UTF-8
// byte-order mark is skipped.
//
// Line N is row N, where the header is row 1, as in a spreadsheet: {"column": "text", ...} with every column. The
// header and rows without any character are empty lines. Throws UserError, with the row, for a row with another number
// of fields than the header, a quote without its end, text after a closing quote, text that is not UTF-8, and a row of
// more than 256 MiB.
class TableReader final : public ByteReader {
 public:
  // `check` may throw for the columns of the header.
  TableReader(std::string path, std::unique_ptr<ByteReader> bytes, char separator,
              std::function<void(const std::vector<std::string>&)> check);

  std::size_t read(std::span<char> out) override;
  void skip(std::int64_t bytes) override { skip_by_reading(*this, path_, bytes); }
  std::int64_t file_bytes() const override;

 private:
  // Where the next character is.
  enum class In { row_start, field_start, plain, quoted, after_quote };

  bool fill();
  void take(char c);
  void end_field();
  void end_row();
  void end();
  void read_header();
  void write_row();
  [[noreturn]] void reject(const char* what, std::string expected = "", std::string got = "",
                           std::string hint = "") const;

  std::string path_;
  std::unique_ptr<ByteReader> bytes_;
  char separator_;
  std::function<void(const std::vector<std::string>&)> check_;
  bool compressed_;

  std::string input_;
  std::size_t input_at_ = 0;
  bool any_input_ = false, ended_ = false;
  In in_ = In::row_start;
  bool after_return_ = false;  // after CR, whose LF is part of the same line break
  std::string field_;
  std::vector<std::string> row_;
  std::size_t row_bytes_ = 0;
  std::int64_t number_ = 1;          // of the row
  std::vector<std::string> header_;  // empty: not read yet
  std::vector<std::string> keys_;    // of the header, as JSON
  std::string lines_;                // converted and not yet returned, from lines_at_
  std::size_t lines_at_ = 0;
};

}  // namespace hawser::prepare

// `ParquetReader`: reads a Parquet file as lines of JSON, one row a line. Internal to open_lines.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "prepare/byte_reader.h"
#include "prepare/parquet_plugin.h"

namespace hawser::prepare {

class ArrowJson;

// Whether the name is one of a Parquet file: it ends in .parquet, .parq or .pq, optionally followed by .gz or .zst.
bool is_parquet_name(const std::string& path);

// Whether the file is Parquet by its name, or by its first bytes. False for a file that cannot be read.
bool is_parquet(const std::string& path);

// What the first and the last bytes of a Parquet file show: no Parquet, cut short, encrypted, or in an archive, which
// cannot be read from its end. nullopt if they are those of a complete file.
std::optional<Problem> parquet_problem(const std::string& path);

// Line N is row N: an object of the columns that are read, with the JSON of arrow_json.h. A row that has only nulls is
// "{}".
//
// Threads decode row groups ahead of the reader, each a row group of its own, in parts of about 1 MiB. What they have
// decoded takes at most kAhead bytes, and kAheadOfNext more of the row group that is read next, so a file of one large
// row group is decoded on one thread. Results do not depend on the number of threads.
//
// Throws UserError for a file that is not Parquet, corrupt, encrypted or has an unknown codec, and with the row and the
// place in it for a value that has no JSON.
class ParquetReader final : public ByteReader {
 public:
  static constexpr std::int64_t kAhead = std::int64_t{8} << 20;
  static constexpr std::int64_t kAheadOfNext = std::int64_t{2} << 20;

  // Reads the columns of the file that are in `columns`.
  ParquetReader(std::string path, const std::vector<std::string_view>& columns, int threads);
  ~ParquetReader() override;

  std::vector<std::string> columns() const;  // of the file, read or not

  std::size_t read(std::span<char> out) override;
  void skip(std::int64_t bytes) override { skip_by_reading(*this, path_, bytes); }
  // Decodes nothing of the row groups before the one in which the next line is.
  void skip_lines(std::int64_t lines, std::int64_t bytes) override;
  std::int64_t file_bytes() const override;

 private:
  struct Part {
    std::string lines;
    std::int64_t rows = 0;
  };
  // Decoded and not yet read.
  struct RowGroup {
    std::deque<Part> parts;
    std::int64_t bytes = 0;
    bool complete = false;
    std::exception_ptr error;  // what ended it, after the parts
  };

  void start();
  void decode();
  void decode_row_group(int index);
  void append_row(const ArrowJson& json, const ArrowArray& rows, std::int64_t i, std::int64_t row, Part& part) const;
  bool put(int index, Part part);
  bool next_part();
  std::int64_t first_row(int index) const { return first_rows_[static_cast<std::size_t>(index)]; }
  int row_groups() const { return static_cast<int>(file_->row_groups().size()); }

  std::string path_;
  int max_threads_;
  std::unique_ptr<ParquetFile> file_;
  std::vector<int> read_columns_;
  std::vector<std::int64_t> first_rows_;  // of each row group; the last is the number of rows
  std::int64_t size_ = 0;                 // of the file

  // The reader's.
  Part part_;
  std::size_t part_at_ = 0;     // bytes of the part that are read
  std::int64_t rows_read_ = 0;  // of the complete parts
  std::int64_t start_row_ = 0;

  // Shared with the threads.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, RowGroup> decoded_;  // by index
  int next_ = 0;                     // row group that is decoded next
  int reading_ = 0;                  // row group that is read
  std::int64_t ahead_ = 0;           // bytes of `decoded_`
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace hawser::prepare

#include "prepare/parquet_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "io/files.h"
#include "prepare/arrow_json.h"
#include "prepare/parquet_library.h"

namespace hawser::prepare {
namespace {

constexpr std::string_view kParquetMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr std::size_t kLargestLine = std::size_t{256} << 20;
constexpr std::size_t kPartText = std::size_t{256} << 10;  // of JSON, or one row

std::string bytes_at(const io::File& file, std::int64_t begin, std::int64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  file.read_at(begin, reinterpret_cast<std::byte*>(bytes.data()), count);
  return bytes;
}

// The first bytes of a file, not decompressed, as many as the magic has.
std::string magic_of(const std::string& path) {
  const io::File file = io::File::open(path);
  return bytes_at(file, 0, std::min<std::int64_t>(file.bytes(), kParquetMagic.size()));
}

Problem problem_of(const ParquetFailure& failure, const std::string& path) {
  switch (failure.kind()) {
    case ParquetFailure::Kind::encrypted:
      return {.file = path, .what = "encrypted Parquet file", .hint = "a copy without encryption"};
    case ParquetFailure::Kind::unsupported:
      return {.file = path, .what = cat("Parquet file that Arrow does not read: ", failure.what())};
    case ParquetFailure::Kind::system:
      return {.file = path, .what = cat("cannot read: ", failure.what())};
    case ParquetFailure::Kind::corrupt:
      break;
  }
  return {.file = path, .what = cat("corrupt Parquet file: ", failure.what())};
}

}  // namespace

bool is_parquet_name(const std::string& path) {
  const std::string name = without_compression(path);
  return name.ends_with(".parquet") || name.ends_with(".parq") || name.ends_with(".pq");
}

bool is_parquet(const std::string& path) {
  if (is_parquet_name(path)) return true;
  try {
    return io::is_file(path) && magic_of(path) == kParquetMagic;
  } catch (const UserError&) {
    return false;
  }
}

std::optional<Problem> parquet_problem(const std::string& path) {
  const std::string begin = magic_of(path);
  if (begin.empty()) return Problem{.file = path, .what = "empty file"};
  if (compressed_ending(begin) != nullptr || compression_of(path) != Compression::none) {
    return Problem{.file = path,
                   .what = "Parquet file in an archive",
                   .expected = "a Parquet file, which is compressed in itself",
                   .hint = "gunzip or unzstd"};
  }
  if (begin == kEncryptedMagic) return problem_of({ParquetFailure::Kind::encrypted, ""}, path);
  if (begin != kParquetMagic) {
    return Problem{.file = path, .what = "not a Parquet file", .expected = cat(kParquetMagic, " as its first bytes")};
  }
  constexpr std::int64_t kSmallest = 12;  // the magic twice, and the size of what describes the columns
  const auto magic_bytes = static_cast<std::int64_t>(kParquetMagic.size());
  const io::File file = io::File::open(path);
  const bool long_enough = file.bytes() >= kSmallest;
  if (long_enough && bytes_at(file, file.bytes() - magic_bytes, magic_bytes) == kParquetMagic) return std::nullopt;
  return Problem{.file = path,
                 .what = "Parquet file cut short",
                 .expected = cat(kParquetMagic, " as its last bytes"),
                 .hint = "another download"};
}

ParquetReader::ParquetReader(std::string path, const std::vector<std::string_view>& columns, int threads)
    : path_(std::move(path)), max_threads_(std::max(1, threads)) {
  if (const auto problem = parquet_problem(path_)) throw UserError(*problem);
  const ParquetPlugin& plugin = parquet_plugin();
  try {
    file_ = plugin.open(path_);
  } catch (const ParquetFailure& failure) {
    throw UserError(problem_of(failure, path_));
  }
  for (std::size_t i = 0; i < file_->columns().size(); ++i) {
    const bool wanted = std::ranges::find(columns, file_->columns()[i].name) != columns.end();
    if (wanted) read_columns_.push_back(static_cast<int>(i));
  }
  first_rows_.push_back(0);
  for (const ParquetFile::RowGroup& group : file_->row_groups()) {
    first_rows_.push_back(first_rows_.back() + group.rows);
  }
  size_ = io::File::open(path_).bytes();
}

ParquetReader::~ParquetReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::string> ParquetReader::columns() const {
  std::vector<std::string> names;
  for (const ParquetFile::Column& column : file_->columns()) names.push_back(column.name);
  return names;
}

void ParquetReader::start() {
  if (!threads_.empty()) return;
  const int count = std::min(max_threads_, row_groups() - next_);
  for (int i = 0; i < count; ++i) threads_.emplace_back([this] { decode(); });
}

// Of each thread.
void ParquetReader::decode() {
  while (true) {
    int index = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || next_ >= row_groups() || next_ == reading_ || ahead_ < kAhead; });
      if (stop_ || next_ >= row_groups()) return;
      index = next_++;
      decoded_[index];
    }
    std::exception_ptr error;
    try {
      decode_row_group(index);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      decoded_[index].complete = true;
      decoded_[index].error = error;
      if (error) next_ = row_groups();  // nothing after it is read
    }
    changed_.notify_all();
  }
}

void ParquetReader::decode_row_group(int index) {
  std::int64_t row = first_row(index);
  const std::int64_t begin = std::max(row, start_row_), end = first_row(index + 1);
  Part part;
  const auto reject = [&](Problem problem) {
    put(index, std::exchange(part, {}));  // what is before it is read
    problem.file = path_;
    throw UserError(problem);
  };
  try {
    const std::unique_ptr<ParquetRows> rows = file_->rows(index, read_columns_);
    std::optional<ArrowJson> json;
    for (ArrowRows some; rows->next(some);) {
      if (!json) json.emplace(some.schema);
      for (std::int64_t i = 0; i < some.array.length; ++i, ++row) {
        if (row < begin) continue;
        append_row(*json, some.array, i, row, part);
        if (part.lines.size() >= kPartText && !put(index, std::exchange(part, {}))) return;
      }
    }
  } catch (const ParquetFailure& failure) {
    Problem problem = problem_of(failure, path_);
    problem.at = cat("row ", row + 1);
    reject(problem);
  } catch (const ArrowValueError& error) {
    reject(error.problem);
  }
  put(index, std::move(part));
  if (row == end) return;
  throw UserError({.file = path_,
                   .what = "corrupt Parquet file: a row group has another number of rows than recorded",
                   .expected = cat(end - first_row(index)),
                   .got = cat(row - first_row(index))});
}

// Row `i` of an array, which is that of the file. The part is unchanged if the row is rejected.
void ParquetReader::append_row(const ArrowJson& json, const ArrowArray& rows, std::int64_t i, std::int64_t row,
                               Part& part) const {
  const std::size_t before = part.lines.size();
  try {
    json.append(rows, i, part.lines);
    if (part.lines.size() - before > kLargestLine) {
      throw ArrowValueError{{.what = "row too long",
                             .expected = cat("at most ", kLargestLine >> 20, " MiB"),
                             .hint = "shorter documents"}};
    }
  } catch (ArrowValueError& error) {
    const std::string place = cat("row ", row + 1);
    part.lines.resize(before);
    error.problem.at = error.problem.at.empty() ? place : cat(place, ", ", error.problem.at);
    throw;
  }
  part.lines += '\n';
  ++part.rows;
}

// Waits until the part may be stored. False if the reader is destroyed.
bool ParquetReader::put(int index, Part part) {
  if (part.rows == 0) return true;
  std::unique_lock lock(mutex_);
  RowGroup& group = decoded_[index];
  changed_.wait(lock, [&] { return stop_ || ahead_ < kAhead || (index == reading_ && group.bytes < kAheadOfNext); });
  if (stop_) return false;
  const auto bytes = static_cast<std::int64_t>(part.lines.size());
  group.bytes += bytes;
  ahead_ += bytes;
  group.parts.push_back(std::move(part));
  lock.unlock();
  changed_.notify_all();
  return true;
}

// Moves the next part to part_; false at the end.
bool ParquetReader::next_part() {
  rows_read_ += part_.rows;
  part_ = {};
  part_at_ = 0;
  start();
  std::unique_lock lock(mutex_);
  while (reading_ < row_groups()) {
    changed_.wait(lock, [&] {
      const auto found = decoded_.find(reading_);
      return found != decoded_.end() && (found->second.complete || !found->second.parts.empty());
    });
    RowGroup& group = decoded_[reading_];
    if (!group.parts.empty()) {
      part_ = std::move(group.parts.front());
      group.parts.pop_front();
      const auto bytes = static_cast<std::int64_t>(part_.lines.size());
      group.bytes -= bytes;
      ahead_ -= bytes;
      lock.unlock();
      changed_.notify_all();
      return true;
    }
    if (group.error) std::rethrow_exception(group.error);
    decoded_.erase(reading_++);
    changed_.notify_all();  // the next row group may exceed kAhead
  }
  return false;
}

std::size_t ParquetReader::read(std::span<char> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (part_at_ == part_.lines.size() && !next_part()) break;
    const std::size_t size = std::min(out.size() - done, part_.lines.size() - part_at_);
    std::memcpy(out.data() + done, part_.lines.data() + part_at_, size);
    part_at_ += size;
    done += size;
  }
  return done;
}

void ParquetReader::skip_lines(std::int64_t lines, std::int64_t bytes) {
  if (!threads_.empty() || lines > first_rows_.back()) return skip(bytes);
  start_row_ = rows_read_ = lines;
  while (next_ < row_groups() && first_row(next_ + 1) <= lines) ++next_;
  reading_ = next_;
}

// The share of the rows that are read, in proportion to the bytes of a part.
std::int64_t ParquetReader::file_bytes() const {
  const double rows = static_cast<double>(rows_read_) +
                      (part_.lines.empty() ? 0.0
                                           : static_cast<double>(part_.rows) * static_cast<double>(part_at_) /
                                                 static_cast<double>(part_.lines.size()));
  return static_cast<std::int64_t>(static_cast<double>(size_) * rows /
                                   static_cast<double>(std::max<std::int64_t>(1, first_rows_.back())));
}

}  // namespace hawser::prepare

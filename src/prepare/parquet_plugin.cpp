// libhawser_parquet.so: the only source that sees Arrow's headers, and no part of the module's library.
#include <arrow/c/bridge.h>
#include <arrow/config.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>
#include <parquet/size_statistics.h>

#include <algorithm>
#include <new>
#include <string_view>

#include "prepare/parquet_plugin.h"

#if !_GLIBCXX_USE_CXX11_ABI
#error "Arrow's libraries of PyPI have the C++11 ABI of std::string: compile without -D_GLIBCXX_USE_CXX11_ABI=0"
#endif

namespace hawser::prepare {
namespace {

constexpr std::int64_t kPartBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxPartRows = 1024;  // values of a dictionary may take more bytes in memory than in the file
constexpr std::int64_t kReadBytes = std::int64_t{256} << 10;  // of a column at a time

// The first line of a reason.
std::string first_line(std::string text) {
  return text.substr(0, text.find('\n'));
}

ParquetFailure failure_of(const arrow::Status& status) {
  const std::string reason = first_line(status.message());
  const auto has = [&](std::string_view text) { return reason.find(text) != std::string::npos; };
  const bool unsupported = status.IsNotImplemented() || has("not supported") || has("not implemented");
  using Kind = ParquetFailure::Kind;
  return {has("ncrypt") || has("ecrypt")                         ? Kind::encrypted
          : unsupported                                          ? Kind::unsupported
          : status.IsOutOfMemory() || status.detail() != nullptr ? Kind::system  // the detail is an errno
                                                                 : Kind::corrupt,
          reason};
}

void expect_ok(const arrow::Status& status) {
  if (status.IsOutOfMemory()) throw std::bad_alloc();
  if (!status.ok()) throw failure_of(status);
}

template <class Value>
Value value_of(arrow::Result<Value> result) {
  expect_ok(result.status());
  return std::move(result).ValueUnsafe();
}

// Calls a function of Arrow, which throws or returns a status.
template <class Function>
auto checked_call(const Function& function) {
  try {
    return function();
  } catch (const parquet::ParquetStatusException& error) {
    expect_ok(error.status());
    throw ParquetFailure(ParquetFailure::Kind::corrupt, first_line(error.what()));
  } catch (const parquet::ParquetException& error) {
    throw failure_of(arrow::Status::Invalid(error.what()));
  } catch (const ParquetFailure&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw ParquetFailure(ParquetFailure::Kind::corrupt, first_line(error.what()));
  }
}

// Memory of malloc: what is freed goes back to the system.
arrow::MemoryPool* pool() {
  return arrow::system_memory_pool();
}

std::unique_ptr<parquet::ParquetFileReader> open_file(const std::string& path,
                                                      std::shared_ptr<parquet::FileMetaData> metadata = nullptr) {
  parquet::ReaderProperties properties(pool());
  properties.enable_buffered_stream();  // else a column of a row group is read at once
  properties.set_buffer_size(kReadBytes);
  auto file = value_of(arrow::io::ReadableFile::Open(path, pool()));
  return parquet::ParquetFileReader::Open(std::move(file), properties, std::move(metadata));
}

parquet::ArrowReaderProperties arrow_properties(std::int64_t part_rows) {
  parquet::ArrowReaderProperties properties(/*use_threads=*/false);
  properties.set_batch_size(part_rows);
  properties.set_pre_buffer(false);
  properties.set_arrow_extensions_enabled(true);  // JSON columns are marked as such
  return properties;
}

// About the bytes of a column's values in memory.
std::int64_t memory_of(const parquet::ColumnChunkMetaData& chunk) {
  const auto statistics = chunk.size_statistics();
  const std::int64_t texts = statistics ? statistics->unencoded_byte_array_data_bytes.value_or(0) : 0;
  return std::max(texts, chunk.total_uncompressed_size());
}

class Rows final : public ParquetRows {
 public:
  Rows(const std::string& path, std::shared_ptr<parquet::FileMetaData> metadata, int row_group,
       const std::vector<int>& leaves, std::int64_t part_rows)
      : file_(value_of(parquet::arrow::FileReader::Make(pool(), open_file(path, std::move(metadata)),
                                                        arrow_properties(part_rows)))),
        reader_(value_of(file_->GetRecordBatchReader({row_group}, leaves))) {}

  bool next(ArrowRows& out) override {
    return checked_call([&] {
      out.release();
      std::shared_ptr<arrow::RecordBatch> rows;
      expect_ok(reader_->ReadNext(&rows));
      if (rows == nullptr) return false;
      expect_ok(rows->Validate());
      expect_ok(arrow::ExportRecordBatch(*rows, &out.array, &out.schema));
      return true;
    });
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::unique_ptr<arrow::RecordBatchReader> reader_;
};

class File final : public ParquetFile {
 public:
  explicit File(const std::string& path) : path_(path) {
    auto reader = value_of(parquet::arrow::FileReader::Make(pool(), open_file(path), arrow_properties(1)));
    metadata_ = reader->parquet_reader()->metadata();
    if (metadata_->is_encryption_algorithm_set()) {
      throw ParquetFailure(ParquetFailure::Kind::encrypted, "columns are encrypted");
    }
    std::shared_ptr<arrow::Schema> schema;
    expect_ok(reader->GetSchema(&schema));
    for (const auto& field : schema->fields()) columns_.push_back({field->name(), field->type()->ToString()});
    for (int i = 0; i < metadata_->num_row_groups(); ++i) {
      const std::int64_t rows = metadata_->RowGroup(i)->num_rows();
      if (rows < 0) throw ParquetFailure(ParquetFailure::Kind::corrupt, "negative number of rows");
      row_groups_.push_back({rows});
    }
  }

  const std::vector<Column>& columns() const override { return columns_; }
  const std::vector<RowGroup>& row_groups() const override { return row_groups_; }

  std::int64_t bytes(int row_group, const std::vector<int>& columns) const override {
    return checked_call([&] {
      std::int64_t bytes = 0;
      const auto group = metadata_->RowGroup(row_group);
      for (const int leaf : leaves(columns)) bytes += group->ColumnChunk(leaf)->total_compressed_size();
      return bytes;
    });
  }

  std::unique_ptr<ParquetRows> rows(int row_group, const std::vector<int>& columns) const override {
    return checked_call([&]() -> std::unique_ptr<ParquetRows> {
      const std::vector<int> read = leaves(columns);
      const auto group = metadata_->RowGroup(row_group);
      std::int64_t bytes = 0;
      for (const int leaf : read) bytes += memory_of(*group->ColumnChunk(leaf));
      const std::int64_t row_bytes = std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, group->num_rows()));
      return std::make_unique<Rows>(path_, metadata_, row_group, read,
                                    std::clamp<std::int64_t>(kPartBytes / row_bytes, 1, kMaxPartRows));
    });
  }

 private:
  // The leaves of some columns, in the order of the columns.
  std::vector<int> leaves(const std::vector<int>& columns) const {
    const parquet::SchemaDescriptor& schema = *metadata_->schema();
    std::vector<int> out;
    for (const int column : columns) {
      for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
        if (schema.GetColumnRoot(leaf) == schema.group_node()->field(column).get()) out.push_back(leaf);
      }
    }
    return out;
  }

  std::string path_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<Column> columns_;
  std::vector<RowGroup> row_groups_;
};

std::unique_ptr<ParquetFile> open_parquet_file(const std::string& path) {
  return checked_call([&]() -> std::unique_ptr<ParquetFile> { return std::make_unique<File>(path); });
}

}  // namespace
}  // namespace hawser::prepare

extern "C" __attribute__((visibility("default"))) const hawser::prepare::ParquetPlugin* HAWSER_PARQUET_ENTRY() {
  using namespace hawser::prepare;
  static const ParquetPlugin plugin{.interface = kParquetInterface,
                                    .string_abi = kStringAbi,
                                    .arrow_built = ARROW_VERSION_MAJOR,
                                    .arrow_loaded = arrow::GetBuildInfo().version_major,
                                    .open = open_parquet_file};
  return &plugin;
}

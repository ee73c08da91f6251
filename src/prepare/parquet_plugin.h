// `ParquetPlugin`: the interface of the library libhawser_parquet.so. It reads Parquet files with Arrow's C++
// libraries, and is loaded when the first such file is read (parquet_library.h), so that `hawser` starts without Arrow.
//
//   const auto file = parquet_plugin().open("train.parquet");
//   const auto rows = file->rows(0, {2, 3});                    // two columns of the first row group
//   for (ArrowRows part; rows->next(part);) ...                 // rows as the struct array of arrow_c.h
//
// The plug-in and `hawser` are built together. No type of Arrow's C++ interface is in between.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "prepare/arrow_c.h"

namespace hawser::prepare {

// A file that cannot be read, with the reason of Arrow.
class ParquetFailure : public std::runtime_error {
 public:
  enum class Kind { corrupt, encrypted, unsupported, system };

  ParquetFailure(Kind kind, const std::string& reason) : std::runtime_error(reason), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// Owns an array and its schema.
struct ArrowRows {
  ArrowSchema schema{};
  ArrowArray array{};

  ArrowRows() = default;
  ~ArrowRows() { release(); }
  ArrowRows(const ArrowRows&) = delete;
  ArrowRows& operator=(const ArrowRows&) = delete;

  void release() {
    if (schema.release != nullptr) schema.release(&schema);
    if (array.release != nullptr) array.release(&array);
  }
};

// The rows of one row group, from the first to the last. Used by one thread.
class ParquetRows {
 public:
  virtual ~ParquetRows() = default;

  // Replaces `out` by the next rows, about a MiB of them; false at the end. Throws ParquetFailure.
  virtual bool next(ArrowRows& out) = 0;
};

// An open file. Its functions may be called by several threads.
class ParquetFile {
 public:
  struct Column {
    std::string name, type;  // of the first level: "messages", "list<element: struct<role: string>>"
  };
  struct RowGroup {
    std::int64_t rows = 0;
  };

  virtual ~ParquetFile() = default;
  virtual const std::vector<Column>& columns() const = 0;
  virtual const std::vector<RowGroup>& row_groups() const = 0;
  // Compressed bytes of some columns in a row group.
  virtual std::int64_t bytes(int row_group, const std::vector<int>& columns) const = 0;
  // Opens the file again. Throws ParquetFailure.
  virtual std::unique_ptr<ParquetRows> rows(int row_group, const std::vector<int>& columns) const = 0;
};

// The first members are the same in all versions: the others may be used if these are equal to those of this header.
struct ParquetPlugin {
  int interface;     // kParquetInterface
  int string_abi;    // kStringAbi
  int arrow_built;   // major version of Arrow whose headers the plug-in was built with
  int arrow_loaded;  // major version of the library that is loaded
  // Throws ParquetFailure.
  std::unique_ptr<ParquetFile> (*open)(const std::string& path);
};

inline constexpr int kParquetInterface = 1;  // raised with every change of this header
inline constexpr int kStringAbi = _GLIBCXX_USE_CXX11_ABI;

}  // namespace hawser::prepare

// Name of the function of libhawser_parquet.so that returns the plug-in: const ParquetPlugin* ().
#define HAWSER_PARQUET_ENTRY hawser_parquet_plugin

// `TableSpec`: a table of a micro-batch that a model declares by name, beside those that every micro-batch has (type
// ids of tokens, labels or spans of sequences). `TableValues`: its contents on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace hawser {

struct TableSpec {
  enum class Entry { token, sequence };

  std::string name;
  DType dtype = DType::i32;    // float32, bfloat16, int32, int64 or uint8
  Entry entry = Entry::token;  // what has an entry of the table
  std::int64_t width = 1;      // elements of an entry
  // Every element of an entry without data: that of a row of padding, or of a sequence that a micro-batch lacks.
  double padding = 0;

  // Of `entries` entries: [entries], or [entries, width] if the width is not 1.
  Shape shape(std::int64_t entries) const { return width == 1 ? Shape{entries} : Shape{entries, width}; }
  std::int64_t entry_bytes() const { return width * size_of(dtype); }
  bool operator==(const TableSpec&) const = default;
};

// InternalError unless every name is there and once, and dtype, width and padding are possible.
void check_tables(const std::vector<TableSpec>& tables);

// Elements of one dtype, those of one entry after another.
class TableValues {
 public:
  TableValues() = default;
  template <class T>
  explicit TableValues(const std::vector<T>& values) : dtype_(dtype_of<T>()), bytes_(values.size() * sizeof(T)) {
    if (!values.empty()) std::memcpy(bytes_.data(), values.data(), bytes_.size());
  }
  // Entries of padding.
  TableValues(const TableSpec& table, std::int64_t entries);

  DType dtype() const { return dtype_; }
  const std::byte* data() const { return bytes_.data(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  std::int64_t elements() const { return bytes() / size_of(dtype_); }
  // Entries [first, first + count) of `from` become this table's from `to` on. Both are of `table`.
  void copy(const TableSpec& table, const TableValues& from, std::int64_t first, std::int64_t count, std::int64_t to);

 private:
  DType dtype_ = DType::i32;
  std::vector<std::byte> bytes_;
};

using Tables = std::map<std::string, TableValues>;  // by name

}  // namespace hawser

// `open_lines`: the documents of a .jsonl, .ndjson, .json, .csv, .tsv or .parquet file as lines of JSON, one document a
// line.
//
// An array of JSON objects, a table and Parquet are converted as they are read: memory does not depend on the size of
// the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "prepare/byte_reader.h"
#include "prepare/line_names.h"

namespace hawser::prepare {

struct Lines {
  std::unique_ptr<ByteReader> bytes;      // lines of JSON; the number of a line is that of its `unit`
  const char* unit = "line";              // what a line is in the file: "line", "item" of an array, or "row"
  std::vector<std::string> columns = {};  // of a Parquet file, read or not
};

// JSON that begins with "[" is an array, whatever the file is called; every other JSON file has lines. A table is a
// file whose name ends in .csv or .tsv; its columns must be the keys of a training document (jsonl.h), unless
// `training` is false. Of a Parquet file (is_parquet of parquet_reader.h), the columns that a line may have are read;
// if `training`, they must have the keys of a document. Throws UserError for a table, a .json or a Parquet file that
// cannot be read so, and so does every read. `names`: what the file calls its columns; null: as jsonl.h.
Lines open_lines(const std::string& path, bool training = true, const LineNames* names = nullptr);

// Whether the file's name is one of a table: .csv or .tsv, optionally followed by .gz or .zst.
bool is_table(const std::string& path);

}  // namespace hawser::prepare

// `ArrowSchema`, `ArrowArray`: the Arrow C data interface. A schema describes a type, an array holds values of that
// type. Both are a stable ABI, so code that reads them needs no header and no library of Arrow:
// https://arrow.apache.org/docs/format/CDataInterface.html
//
// Example: the column `text` of type string with the rows "ab" and null is
//
//   schema: {format "u", name "text"}
//   array:  {length 2, offset 0, buffers {bits 01, int32 offsets 0 2 2, bytes "ab"}}
//
// Whoever receives one calls its `release` once.
#pragma once

#include <cstdint>

#ifndef ARROW_C_DATA_INTERFACE  // Arrow's own header has the same definitions
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

extern "C" {

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;  // int32 count, then pairs of int32 length and bytes, for keys and values
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;  // of a dictionary: the type of the values; `format` is that of the indices
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;  // in values, of all buffers
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
}

#endif

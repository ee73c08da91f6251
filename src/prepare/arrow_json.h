// `ArrowJson`: rows of an Arrow table (arrow_c.h) as JSON objects. Internal to ParquetReader.
//
//   const ArrowJson rows(schema);          // struct<id: int64, messages: list<struct<role: string, weight: int64>>>
//   rows.append(array, 0, line);           // {"id":7,"messages":[{"role":"user"},{"role":"assistant","weight":1}]}
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "prepare/arrow_c.h"
#include "prepare/arrow_type.h"

namespace hawser::prepare {

// JSON of each type:
//
//   string, binary     a text; it must be UTF-8. Also large, fixed-size and view
//   integers           a number; also bool
//   floats             the shortest number that is read as the same value, 1.0 and 1e+22; NaN counts as null
//   decimal            a text, "12.30"
//   date, time         a text, "2024-01-31", "23:59:59.250000"
//   timestamp          a text, "2024-01-31T23:59:59.250000", with a final Z if the type has a time zone
//   struct             an object without its null fields
//   list               an array, in which null stays null. Also large, fixed-size and view
//   map                an object; its keys must be texts
//   dictionary         its values
//   arrow.json         the JSON that the text is
//
// A field that is null does not exist: Arrow gives every struct of a column the fields of all, so whether a field was
// absent or null in the data is not known. Throws ArrowValueError for all other types, infinite numbers, texts that are
// not UTF-8 and dates outside of the years 1 to 9999.
class ArrowJson {
 public:
  // `schema`: of a struct, whose fields are the columns.
  explicit ArrowJson(const ArrowSchema& schema);

  // Appends the object of a row without a line break.
  void append(const ArrowArray& rows, std::int64_t row, std::string& out) const;

 private:
  std::shared_ptr<const ArrowType> row_;
};

}  // namespace hawser::prepare

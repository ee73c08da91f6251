#include "tensor/batch_table.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>

namespace hawser {

namespace {

// Calls use(T{}) with the C++ type of a table's elements; false if a table cannot have this dtype.
template <class Use>
bool with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::f32:
      use(float{});
      return true;
    case DType::bf16:
      use(Bf16{});
      return true;
    case DType::i32:
      use(std::int32_t{});
      return true;
    case DType::i64:
      use(std::int64_t{});
      return true;
    case DType::u8:
      use(std::uint8_t{});
      return true;
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::nf4:
    case DType::nf4_double:
      return false;
  }
  return false;
}

// Whether T has the value. Whole numbers up to 2^53: those that are exact in a double.
template <class T>
bool has_value(double value) {
  if constexpr (std::is_integral_v<T>) {
    constexpr double kExact = 9007199254740992.0;
    const double low = std::max(-kExact, static_cast<double>(std::numeric_limits<T>::min()));
    const double high = std::min(kExact, static_cast<double>(std::numeric_limits<T>::max()));
    return value >= low && value <= high && static_cast<double>(static_cast<T>(value)) == value;
  } else {
    return true;
  }
}

}  // namespace

void check_tables(const std::vector<TableSpec>& tables) {
  std::set<std::string> names;
  for (const TableSpec& table : tables) {
    HAWSER_CHECK(!table.name.empty(), "a table without a name");
    HAWSER_CHECK(names.insert(table.name).second, "two tables ", table.name);
    HAWSER_CHECK(table.width > 0, "table ", table.name, " has entries of ", table.width, " elements");
    bool has_padding = true;
    const auto check = [&]<class T>(T) { has_padding = has_value<T>(table.padding); };
    HAWSER_CHECK(with_type(table.dtype, check), "table ", table.name, " cannot be ", to_string(table.dtype));
    HAWSER_CHECK(has_padding, "table ", table.name, ": padding ", table.padding, " in ", to_string(table.dtype));
  }
}

TableValues::TableValues(const TableSpec& table, std::int64_t entries)
    : dtype_(table.dtype), bytes_(static_cast<std::size_t>(entries * table.entry_bytes())) {
  with_type(dtype_, [&]<class T>(T) {
    const auto value =
        static_cast<T>(static_cast<std::conditional_t<std::is_integral_v<T>, double, float>>(table.padding));
    for (std::size_t at = 0; at < bytes_.size(); at += sizeof(T)) std::memcpy(bytes_.data() + at, &value, sizeof(T));
  });
}

void TableValues::copy(const TableSpec& table, const TableValues& from, std::int64_t first, std::int64_t count,
                       std::int64_t to) {
  const std::int64_t entry = table.entry_bytes();
  HAWSER_CHECK(from.dtype_ == dtype_ && dtype_ == table.dtype && first >= 0 && count >= 0 && to >= 0 &&
                   (first + count) * entry <= from.bytes() && (to + count) * entry <= bytes(),
               "table ", table.name, ": entries [", first, ", ", first + count, ") to ", to);
  if (count == 0) return;
  std::memcpy(bytes_.data() + to * entry, from.bytes_.data() + first * entry, static_cast<std::size_t>(count * entry));
}

}  // namespace hawser

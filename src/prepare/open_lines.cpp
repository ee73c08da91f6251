#include "prepare/open_lines.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "prepare/json_array.h"
#include "prepare/jsonl.h"
#include "prepare/parquet_reader.h"
#include "prepare/table_reader.h"

namespace hawser::prepare {
namespace {

constexpr std::size_t kLongestBeginning = std::size_t{64} << 10;

// Where a value that begins with "{" is cut by a line break; npos if the first line has all of it or has no end here.
std::size_t broken_object(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return text.npos;
    } else if (c == '\n') {
      return at;
    }
  }
  return text.npos;
}

// The beginning of a file without byte-order mark and white space; "" for a file of white space only.
std::string beginning_of(ByteReader& reader) {
  std::string text;
  while (text.size() < kLongestBeginning) {
    const std::size_t at = text.size();
    text.resize(kLongestBeginning);
    const std::size_t size = reader.read(std::span(text).subspan(at));
    text.resize(at + size);
    if (at == 0 && text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (size < kLongestBeginning - at) break;
  }
  return text;
}

// Names for a message.
std::string names_of(const std::vector<std::string>& columns) {
  std::string found;
  for (const std::string& name : columns) found += cat(found.empty() ? "" : ", ", name.empty() ? "\"\"" : name);
  if (found.size() > 300) found = found.substr(0, 300) + "...";
  return found;
}

// Whether the columns of a file have a key.
std::function<bool(std::string_view)> keys_of(const std::vector<std::string>& columns, const LineNames& names) {
  return [&](std::string_view key) {
    return names.has([&](std::string_view column) { return std::ranges::find(columns, column) != columns.end(); }, key);
  };
}

void expect_training_columns(const std::string& path, char separator, const std::vector<std::string>& columns,
                             const LineNames& names) {
  const auto has = keys_of(columns, names);
  const std::vector<std::string> forms = choose_form(has);
  const bool lists = has("messages") || has("conversations") || has("input_ids");
  if (forms.size() == 1 && !lists) return;
  if (forms.empty() && has("chosen") && has("rejected")) return;  // the first row says what to do
  const std::string found = names_of(columns);
  const char other = separator == ',' ? ';' : ',';
  const bool other_separator = columns.size() == 1 && found.find_first_of(std::string("\t") + other) != found.npos;
  throw UserError({.file = path,
                   .what = lists              ? "a table cannot hold lists"
                           : forms.size() > 1 ? "columns of several forms"
                           : has("prompt")    ? "prompt without completion"
                                              : "no column to train on",
                   .expected = "the columns text; prompt, completion; instruction, output; or question, answer",
                   .got = found,
                   .at = "row 1",
                   .hint = lists              ? ".jsonl for messages and ids"
                           : other_separator  ? separator == ',' ? "commas between columns, or tabs and the name .tsv"
                                                                 : "tabs between columns, or commas and the name .csv"
                           : forms.size() > 1 ? "only the columns of one form"
                                              : "columns with these names, or data.columns"});
}

// Columns may be null in some rows, so rows of several forms are reported when they are read.
void expect_document_columns(const std::string& path, const std::vector<std::string>& columns, const LineNames& names) {
  const auto has = keys_of(columns, names);
  if (!choose_form(has).empty()) return;
  if (has("chosen") && has("rejected")) return;  // the first row says what to do
  throw UserError({.file = path,
                   .what = has("prompt") ? "prompt without completion" : "no column to train on",
                   .expected = "the columns messages; conversations; text; input_ids; prompt, completion; instruction, "
                               "output; or question, answer",
                   .got = names_of(columns),
                   .hint = "columns with these names, or data.columns"});
}

Lines open_parquet(const std::string& path, bool training, const LineNames& names) {
  constexpr unsigned kMaxThreads = 4;  // tokenizing takes more time than decoding
  auto reader = std::make_unique<ParquetReader>(
      path, names.line_columns(), static_cast<int>(std::min(kMaxThreads, std::thread::hardware_concurrency())));
  std::vector<std::string> columns = reader->columns();
  if (training) expect_document_columns(path, columns, names);
  return {std::move(reader), "row", std::move(columns)};
}

}  // namespace

bool is_table(const std::string& path) {
  const std::string name = without_compression(path);
  return name.ends_with(".csv") || name.ends_with(".tsv");
}

Lines open_lines(const std::string& path, bool training, const LineNames* given) {
  const LineNames names = given ? *given : LineNames();
  if (is_table(path)) {
    const char separator = without_compression(path).ends_with(".tsv") ? '\t' : ',';
    const auto check = [path, separator, training, names](const std::vector<std::string>& columns) {
      if (training) expect_training_columns(path, separator, columns, names);
    };
    return {std::make_unique<TableReader>(path, open_bytes(path), separator, check), "row"};
  }
  if (is_parquet(path)) return open_parquet(path, training, names);
  const std::string beginning = beginning_of(*open_bytes(path));
  if (beginning.starts_with('[')) return {std::make_unique<JsonArrayReader>(path, open_bytes(path)), "item"};
  if (without_compression(path).ends_with(".json") && beginning.starts_with('{') &&
      broken_object(beginning) != std::string::npos) {
    throw UserError({.file = path,
                     .what = "one JSON object over several lines",
                     .expected = "an array of objects, [{...}, ...], or one object a line",
                     .hint = cat("python3 -c 'import json; [print(json.dumps(x)) for x in json.load(open(\"", path,
                                 "\"))[\"KEY\"]]' > FILE.jsonl, for the list under a key")});
  }
  return {open_bytes(path)};
}

}  // namespace hawser::prepare

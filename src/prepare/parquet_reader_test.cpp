#include "prepare/parquet_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/jsonl.h"
#include "prepare/open_lines.h"
#include "prepare/parquet_library.h"
#include "prepare/prepare.h"
#include "prepare/testing/archives.h"
#include "prepare/testing/parquet_file.h"
#include "prepare/testing/prepare_fixture.h"

namespace hawser::prepare {
namespace parquet_reader_test {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return cat(testing::kSourceFolder, "/tests/golden/parquet/", name);
}

// Everything that is left in a reader, in reads of `size` bytes.
std::string rest_of(ByteReader& reader, std::size_t size = 1000) {
  std::string text, part(size, '\0');
  for (std::size_t got = size; got == size;) {
    got = reader.read(part);
    text.append(part, 0, got);
  }
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class Parquet : public PrepareFixture {
 protected:
  void SetUp() override {
    if (!testing::kParquet) GTEST_SKIP() << "a build with -DHAWSER_PARQUET=OFF";
  }

  // All columns of a file.
  static std::string lines(const std::string& name, int threads = 2, std::size_t size = 1000) {
    const std::vector<std::string> names = ParquetReader(golden(name), {}, 1).columns();
    ParquetReader reader(golden(name), {names.begin(), names.end()}, threads);
    return rest_of(reader, size);
  }
  // The error of a file that is opened as training data and read; "" if there is none.
  static std::string error(const std::string& path) {
    try {
      rest_of(*open_lines(path).bytes);
    } catch (const UserError& error) {
      std::string text = error.what();
      const std::string folder = fs::path(path).parent_path().string() + "/";
      for (std::size_t at; (at = text.find(folder)) != text.npos;) text.erase(at, folder.size());
      return text;
    }
    return "";
  }
};

// The golden lines are pyarrow's values. Numbers keep their kind: 1.0 is no integer.
TEST_F(Parquet, EveryTypeIsWhatArrowSays) {
  for (const char* name : {"types", "views", "texts", "ids"}) {
    const std::vector<std::string> found = split(lines(cat(name, ".parquet")));
    const std::vector<std::string> expected = split(read_file(golden(cat(name, ".jsonl"))));
    ASSERT_EQ(found.size(), expected.size()) << name;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto row = nlohmann::ordered_json::parse(found[i], nullptr, false);
      ASSERT_TRUE(row.is_object()) << found[i];
      const auto wanted = nlohmann::ordered_json::parse(expected[i]);
      for (const auto& [key, value] : wanted.items()) {
        ASSERT_TRUE(row.contains(key)) << name << ", row " << i + 1 << ": " << key;
        EXPECT_EQ(row[key].dump(), value.dump()) << name << ", row " << i + 1 << ": " << key;
      }
      EXPECT_EQ(row.size(), wanted.size()) << name << ", row " << i + 1 << ": " << found[i];
    }
  }
}

TEST_F(Parquet, MessagesHaveNoKeysThatOnlyNullsAdd) {
  for (const char* name : {"chats", "pandas_tools"}) {
    const std::string expected = read_file(golden(cat(name, ".jsonl")));
    EXPECT_GT(expected.size(), 1000u);
    EXPECT_EQ(rest_of(*open_lines(golden(cat(name, ".parquet"))).bytes), expected) << name;
  }
  EXPECT_STREQ(open_lines(golden("chats.parquet")).unit, "row");
}

TEST_F(Parquet, EveryCodec) {
  const std::string expected = read_file(golden("texts.jsonl"));
  for (const char* codec : {"none", "snappy", "gzip", "brotli", "zstd", "lz4"}) {
    const std::string found = lines(cat("codec_", codec, ".parquet"));
    EXPECT_EQ(split(found).size(), 3u) << codec;
    EXPECT_TRUE(expected.starts_with(found)) << codec << ": " << found;
  }
  EXPECT_EQ(lines("empty.parquet"), "");
}

TEST_F(Parquet, ThreadsAndReadsChangeNothing) {
  const std::string expected = read_file(golden("texts.jsonl"));
  for (const int threads : {1, 2, 7}) {
    for (const std::size_t size : {1, 100, 100000}) {
      EXPECT_TRUE(lines("texts.parquet", threads, size) == expected) << threads << " threads, reads of " << size;
    }
  }
  // A reader that is not read to its end, with threads that wait.
  write_parquet(folder_.path("big.parquet"), 3000, 300, [](std::int64_t) { return std::string(10000, 'x'); });
  std::string some(100, '\0');
  EXPECT_EQ(ParquetReader(folder_.path("big.parquet"), {"text"}, 3).read(some), 100u);
}

// Row groups that are larger than what is decoded ahead, and small ones, as another program writes them.
TEST_F(Parquet, LargeAndSmallRowGroups) {
  const auto text = [](std::int64_t row) {
    return cat(row, std::string(static_cast<std::size_t>(row * 7919 % 20000), 'x'), "\"\n");
  };
  for (const std::int64_t rows : {1, 40, 5000}) {
    const std::string path = folder_.path("a.parquet");
    write_parquet(path, 4000, rows, text);
    ParquetReader reader(path, {"text"}, 3);
    const std::vector<std::string> found = split(rest_of(reader, 100000));
    ASSERT_EQ(found.size(), 4000u) << rows;
    for (std::int64_t row = 0; row < 4000; ++row) {
      ASSERT_EQ(found[static_cast<std::size_t>(row)], (nlohmann::json{{"text", text(row)}}.dump())) << rows;
    }
    EXPECT_EQ(reader.file_bytes(), static_cast<std::int64_t>(fs::file_size(path)));
  }
}

TEST_F(Parquet, ResumesAtAnyRow) {
  const std::vector<std::string> all = split(read_file(golden("texts.jsonl")));
  std::string before;
  for (std::size_t row = 0; row <= all.size(); ++row) {
    if (row % 17 == 0 || row % 50 < 2 || row == all.size()) {
      ParquetReader reader(golden("texts.parquet"), {"text"}, 2);
      reader.skip_lines(static_cast<std::int64_t>(row), static_cast<std::int64_t>(before.size()));
      EXPECT_EQ(before + rest_of(reader), read_file(golden("texts.jsonl"))) << row;
    }
    if (row < all.size()) before += all[row] + "\n";
  }
  ParquetReader reader(golden("texts.parquet"), {"text"}, 2);
  EXPECT_THROW(reader.skip_lines(301, 1 << 20), UserError);
}

// Row groups before the place are not decoded: theirs is overwritten here.
TEST_F(Parquet, ResumingReadsNoEarlierRowGroups) {
  std::string bytes = read_file(golden("texts.parquet"));
  std::fill(bytes.begin() + 4, bytes.begin() + 1000, '\xFF');
  folder_.write("texts.parquet", bytes);
  EXPECT_TRUE(error(folder_.path("texts.parquet")).starts_with("texts.parquet: corrupt Parquet file: "));
  const std::string all = read_file(golden("texts.jsonl"));
  std::size_t at = 0;
  for (int i = 0; i < 60; ++i) at = all.find('\n', at) + 1;
  ParquetReader reader(folder_.path("texts.parquet"), {"text"}, 2);
  reader.skip_lines(60, static_cast<std::int64_t>(at));
  EXPECT_EQ(rest_of(reader), all.substr(at));
}

TEST_F(Parquet, PreparesWhatItsLinesPrepare) {
  // It sees every key of the messages and the tools.
  const std::string chat_template = folder_.write(
      "all.jinja",
      "{{ tools | tojson if tools else '' }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{{ m | tojson }}{% endgeneration %}{% else %}<{{ m.role }}:{{ m.content }}>{{ m | tojson }}"
      "{% endif %}{% endfor %}");
  for (const char* name : {"chats", "texts", "ids"}) {
    PrepareOptions lines = options({golden(cat(name, ".jsonl"))}, "lines");
    PrepareOptions rows = options({golden(cat(name, ".parquet"))}, "rows");
    for (PrepareOptions* with : {&lines, &rows}) {
      with->chat_template = chat_template;
      with->validation_fraction = 0.1;
      with->deduplicate = true;
    }
    const Prepared from_lines = prepare(lines), from_rows = prepare(rows);
    EXPECT_EQ(from_rows.train.documents, from_lines.train.documents) << name;
    EXPECT_TRUE(files("rows") == files("lines")) << name;
    fs::remove_all(folder_.path("rows"));
    fs::remove_all(folder_.path("lines"));
  }
}

TEST_F(Parquet, AnInterruptedPrepareContinuesInTheMiddle) {
  const std::string source = golden("texts.parquet");
  prepare(options({source}, "expected"));
  PrepareOptions with = options({source}, "out");
  with.save_every = std::chrono::milliseconds(0);
  for (const int blocks : {1, 3, 8}) EXPECT_TRUE(stops_after(with, blocks));  // of 15
  EXPECT_TRUE(prepare(with).resumed);
  EXPECT_TRUE(files("out") == files("expected"));
}

TEST_F(Parquet, ErrorsNameFileRowAndColumn) {
  EXPECT_EQ(error(golden("latin1.parquet")),
            "latin1.parquet: not UTF-8 (expected text) at row 4, text; try without this column, if it has no text");
  EXPECT_EQ(error(golden("infinite.parquet")),
            "infinite.parquet: infinite number (expected a number, as JSON has no other) at row 2, "
            "messages[1].weight");
  EXPECT_EQ(error(golden("duration.parquet")),
            "duration.parquet: column of a type that is not read (expected texts, numbers, lists, structs or maps, got "
            "duration) at text");
  EXPECT_EQ(error(golden("encrypted.parquet")),
            "encrypted.parquet: encrypted Parquet file; try a copy without encryption");
  EXPECT_EQ(error(golden("encrypted_columns.parquet")),
            "encrypted_columns.parquet: encrypted Parquet file; try a copy without encryption");
  const std::string lzo = error(golden("codec_lzo.parquet"));
  EXPECT_TRUE(lzo.starts_with("codec_lzo.parquet: Parquet file that Arrow does not read: ")) << lzo;
  EXPECT_EQ(lzo.find('\n'), lzo.npos);

  const std::string whole = read_file(golden("texts.parquet"));
  EXPECT_EQ(error(folder_.write("a.parquet", whole.substr(0, whole.size() - 1))),
            "a.parquet: Parquet file cut short (expected PAR1 as its last bytes); try another download");
  EXPECT_EQ(error(folder_.write("b.pq", "text")), "b.pq: not a Parquet file (expected PAR1 as its first bytes)");
  EXPECT_EQ(error(folder_.write("c.parquet.gz", gzip(whole))),
            "c.parquet.gz: Parquet file in an archive (expected a Parquet file, which is compressed in itself); try "
            "gunzip or unzstd");
  EXPECT_EQ(error(folder_.write("d.parquet", "")), "d.parquet: empty file");
  // A footer that is none, between the magic bytes.
  const std::string broken = error(folder_.write("e.parquet", "PAR1" + std::string(40, '\x07') + "PAR1"));
  EXPECT_TRUE(broken.starts_with("e.parquet: corrupt Parquet file: ")) << broken;
  // The first bytes tell more than the name.
  EXPECT_EQ(error(folder_.write("f.jsonl", whole)), "");
}

TEST_F(Parquet, ColumnsAreTheKeysOfALine) {
  EXPECT_EQ(
      error(golden("views.parquet")),
      "views.parquet: no column to train on (expected the columns messages; conversations; text; input_ids; "
      "prompt, completion; instruction, output; or question, answer, got list_view, large_list_view); try columns "
      "with these names, or data.columns");
  // Rows have the first form whose columns are not null: here prompt and completion, then text.
  const Prepared prepared = prepare(options({golden("several_forms.parquet")}, "out"));
  EXPECT_EQ(prepared.train.documents, 2);
  EXPECT_EQ(prepared.unread, std::set<std::string>{"text"});
}

}  // namespace parquet_reader_test
}  // namespace hawser::prepare

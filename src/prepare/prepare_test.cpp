#include "prepare/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/testing/test_paths.h"
#include "prepare/held_out.h"
#include "prepare/sources.h"
#include "prepare/testing/prepare_rejection.h"
#include "prepare/token_file.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {
namespace prepare_test {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

const std::string kTokenizer = cat(testing::kSourceFolder, "/recipes/quickstart-tokenizer/tokenizer.json");

std::vector<Ids> documents_of(const std::string& prefix) {
  const TokenFile file(prefix);
  std::vector<Ids> documents;
  for (std::int64_t i = 0; i < file.documents(); ++i) {
    const std::int64_t begin = file.begin(file.first_sequence(i)), end = file.begin(file.first_sequence(i + 1));
    documents.emplace_back(end - begin);
    file.read(begin, documents.back());
  }
  return documents;
}

class PrepareTest : public ::testing::Test {
 protected:
  PrepareOptions options(std::vector<std::string> train) {
    return {.train = std::move(train),
            .folder = folder_.path(""),
            .tokenizer = kTokenizer,
            .output = folder_.path("out/data"),
            .seed = 3,
            .threads = 2};
  }
  std::string rejection(const PrepareOptions& with) { return rejection_of(with, folder_); }
  // `count` distinct lines of text; `words` makes them long enough for several blocks.
  void write_lines(const std::string& name, int count, int words = 10) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += "{\"text\": \"line " + std::to_string(i);
      for (int w = 0; w < words; ++w) text += " word";
      text += "\"}\n";
      if (i % 7 == 0) text += "\n";
    }
    folder_.write(name, text);
  }
  TemporaryFolder folder_;
};

TEST_F(PrepareTest, WritesDocumentsInOrderWithEndOfText) {
  folder_.write("a.jsonl",
                "{\"text\":\"It is a truth\"}\n{\"input_ids\":[7,8,9],\"labels\":[-100,8,9],"
                "\"document_lengths\":[1,2]}\n{\"text\":\"\"}\n");
  folder_.write("b.txt", "universally\nacknowledged\n");
  const Prepared prepared = prepare(options({"*.jsonl", "b.txt"}));
  EXPECT_EQ(prepared.train.documents, 3);
  EXPECT_EQ(prepared.train.sequences, 4);
  const auto tokenizer = text::load_tokenizer(kTokenizer);
  const auto text = [&](const char* words) {
    Ids ids;
    tokenizer->encode(words, ids, true);
    ids.push_back(*tokenizer->eos());
    return ids;
  };
  const std::string prefix = folder_.path("out/data/train");
  EXPECT_EQ(documents_of(prefix),
            (std::vector<Ids>{text("It is a truth"), {7, 8, 9}, text("universally\nacknowledged\n")}));
  const TokenFile file(prefix);
  Ids labels(file.tokens());
  file.read_labels(0, labels);
  EXPECT_EQ(labels[file.begin(1)], kIgnoredLabel);
  EXPECT_EQ(labels[0], text("It is a truth")[0]);
  EXPECT_FALSE(fs::exists(folder_.path("out/data/valid.idx")));
}

TEST_F(PrepareTest, IsTheSameForAnyNumberOfThreads) {
  write_lines("a.jsonl", 3000, 200);  // 3 MB: several blocks
  for (int i = 0; i < 9; ++i) folder_.write("t" + std::to_string(i) + ".txt", "text number " + std::to_string(i));
  PrepareOptions with = options({"a.jsonl", "t*.txt"});
  with.validation_fraction = 0.1;
  std::int64_t calls = 0, done = 0;
  with.progress = [&](const PrepareProgress& progress) {
    ++calls;
    done = progress.bytes_done;
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
  };
  std::vector<std::vector<Ids>> train, valid;
  for (const int threads : {1, 2, 5}) {
    with.threads = threads;
    const Prepared prepared = prepare(with);
    EXPECT_EQ(prepared.validation.documents, 301);
    EXPECT_EQ(prepared.train.documents, 2708);
    EXPECT_EQ(done, prepared.source_bytes);
    train.push_back(documents_of(folder_.path("out/data/train")));
    valid.push_back(documents_of(folder_.path("out/data/valid")));
  }
  EXPECT_GE(calls, 3);
  EXPECT_TRUE(train[0] == train[1] && train[0] == train[2]);
  EXPECT_TRUE(valid[0] == valid[1] && valid[0] == valid[2]);
  EXPECT_FALSE(std::includes(train[0].begin(), train[0].end(), valid[0].begin(), valid[0].end()));
}

TEST_F(PrepareTest, HoldsOutAFractionChosenBySeed) {
  const auto chosen = [](std::int64_t documents, double fraction, std::uint64_t seed) {
    const HeldOut held_out(documents, fraction, seed);
    std::vector<bool> out;
    for (std::int64_t i = 0; i < documents; ++i) out.push_back(held_out(i));
    return out;
  };
  const auto count = [](const std::vector<bool>& list) { return std::count(list.begin(), list.end(), true); };
  EXPECT_EQ(count(chosen(1000, 0.05, 7)), 50);
  EXPECT_EQ(count(chosen(100000, 0.5, 7)), 50000);
  EXPECT_NE(chosen(1000, 0.05, 7), chosen(1000, 0.05, 8));
  EXPECT_EQ(chosen(1000, 0.05, 7), chosen(1000, 0.05, 7));
  EXPECT_EQ(count(chosen(3, 0.01, 7)), 1);
  EXPECT_EQ(count(chosen(2, 0.99, 7)), 1);
  EXPECT_EQ(count(chosen(5, 0.0, 7)), 0);
}

// A sector that was lost, an editor: other tokens would be learned. A copy with other times is fine.
TEST_F(PrepareTest, DetectsTokenFilesThatChanged) {
  folder_.write("a.txt", std::string(5000, 'x') + " training text");
  folder_.write("v.txt", "held out");
  PrepareOptions with = options({"a.txt"});
  with.validation = {{.patterns = {"v.txt"}}};
  prepare(with);
  for (const char* name : {"train.bin", "valid.bin", "train.idx"}) {
    const std::string file = folder_.path(cat("out/data/", name));
    const std::string before = prepared_manifest(with);
    ASSERT_NE(before, "") << name;
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
    EXPECT_NE(prepared_manifest(with), before) << "the new time is recorded";
    EXPECT_TRUE(is_prepared(with)) << name;
    {
      std::fstream spoilt(file, std::ios::in | std::ios::out | std::ios::binary);
      spoilt.seekg(-1, std::ios::end);
      const auto last = static_cast<char>(spoilt.get() ^ 1);
      spoilt.seekp(-1, std::ios::end);
      spoilt.put(last);
    }
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
    EXPECT_FALSE(is_prepared(with)) << name;
    prepare(with);
    EXPECT_TRUE(is_prepared(with)) << name;
  }
}

TEST_F(PrepareTest, UsesValidationFilesAndDetectsStaleTokenFiles) {
  folder_.write("a.txt", "training text");
  folder_.write("v.txt", "held out");
  PrepareOptions with = options({"a.txt"});
  EXPECT_FALSE(is_prepared(with));
  with.validation = {{.patterns = {"v.txt"}}};
  with.validation_fraction = 0.5;  // ignored: validation files are given
  EXPECT_EQ(prepare(with).validation.documents, 1);
  EXPECT_TRUE(is_prepared(with));
  PrepareOptions other = with;
  other.seed = 99;
  EXPECT_TRUE(is_prepared(other));  // the seed has no effect here
  other.validation = {};
  EXPECT_FALSE(is_prepared(other));
  folder_.write("v.txt", "held out, and longer");
  EXPECT_FALSE(is_prepared(with));
  prepare(with);
  EXPECT_TRUE(is_prepared(with));
  fs::resize_file(folder_.path("out/data/valid.bin"), 1);
  EXPECT_FALSE(is_prepared(with));
  with.validation = {};
  with.validation_fraction = 0;
  prepare(with);
  EXPECT_FALSE(fs::exists(folder_.path("out/data/valid.idx")));
  EXPECT_TRUE(is_prepared(with));
  folder_.write("out/data/prepared.json", "{}");
  EXPECT_FALSE(is_prepared(with));
}

// Writes a token file with these documents; with `labels`, every label is 7.
void write_tokens(const std::string& prefix, const std::vector<Ids>& documents, bool labels = false) {
  TokenFileWriter file(prefix, 4096);
  for (const Ids& ids : documents) {
    Ids other(ids.size(), 7);
    file.add_sequence(ids, labels ? std::span<const std::int32_t>(other) : std::span<const std::int32_t>());
    file.end_document();
  }
  file.finish();
}

TEST_F(PrepareTest, ASingleTokenFileIsReadInPlace) {
  write_tokens(folder_.path("a"), {{1, 2, 3}, {4, 5}});
  write_tokens(folder_.path("v"), {{6, 7}});
  for (const char* name : {"a", "a.bin", "a.idx", "a.*"}) {
    PrepareOptions with = options({name});
    EXPECT_EQ(prepare(with).train.tokens, 5) << name;
    EXPECT_TRUE(token_files(with).in_place) << name;
    EXPECT_EQ(token_files(with).train, folder_.path("a")) << name;
    EXPECT_TRUE(token_files(with).validation.empty()) << name;
    EXPECT_FALSE(is_prepared(with)) << "ids are checked each time";
  }
  PrepareOptions with = options({"a"});
  with.validation = {{.patterns = {"v"}}};
  with.validation_fraction = 0.5;  // ignored: validation files are given
  EXPECT_EQ(prepare(with).validation.tokens, 2);
  ASSERT_EQ(token_files(with).validation.size(), 1u);
  EXPECT_EQ(token_files(with).validation[0].prefix, folder_.path("v"));
  EXPECT_FALSE(fs::exists(folder_.path("out"))) << "writes nothing";
  with.vocab_size = 5;
  with.tokenizer = "";
  EXPECT_EQ(rejection(with),
            "a.bin: id outside the vocabulary (expected 0 to 4, got 5) at token 4\n"
            "v.bin: id outside the vocabulary (expected 0 to 4, got 6) at token 0");
}

TEST_F(PrepareTest, SeveralTokenFilesAreJoinedWithTextInTheOrderGiven) {
  write_tokens(folder_.path("a"), {{1, 2, 3}, {4, 5}});
  write_tokens(folder_.path("b"), {{8, 9}}, true);
  folder_.write("t.jsonl", "{\"input_ids\": [10, 11]}\n");
  const PrepareOptions with = options({"a", "t.jsonl", "b"});
  EXPECT_FALSE(is_prepared(with));
  EXPECT_EQ(prepare(with).train.documents, 4);
  EXPECT_TRUE(is_prepared(with));
  EXPECT_EQ(documents_of(folder_.path("out/data/train")), (std::vector<Ids>{{1, 2, 3}, {4, 5}, {10, 11}, {8, 9}}));
  const TokenFile joined(folder_.path("out/data/train"));
  Ids labels(9);
  joined.read_labels(0, labels);
  EXPECT_EQ(labels, (Ids{1, 2, 3, 4, 5, 10, 11, 7, 7}));
  write_tokens(folder_.path("b"), {{8, 9, 10}});
  EXPECT_FALSE(is_prepared(with)) << "the source changed";

  PrepareOptions held = options({"a"});
  held.validation_fraction = 0.5;
  EXPECT_EQ(prepare(held).validation.documents, 1);
  EXPECT_EQ(token_files(held).train, folder_.path("out/data/train"));

  folder_.write("half.bin", "12345678");
  EXPECT_EQ(rejection(options({"half.bin", "half"})),
            "half.bin: incomplete token file (expected a .bin and an .idx with the same name) at data.train[0]\n"
            "half: no such file at data.train[1]");
}

// A document has more tokens than are copied at a time: each piece has its own ids and labels.
TEST_F(PrepareTest, TokenFilesAreJoinedInPiecesOfAnySize) {
  const auto write = [&](const std::string& name, std::int32_t first, bool labels) {
    TokenFileWriter file(folder_.path(name), 4096);
    for (const std::int32_t size : {10, 1, 7}) {
      Ids ids, own;
      for (std::int32_t i = 0; i < size; ++i, ++first) {
        ids.push_back(first);
        own.push_back(i % 3 == 0 ? kIgnoredLabel : first + 1000);
      }
      file.add_sequence(ids, labels ? std::span<const std::int32_t>(own) : std::span<const std::int32_t>());
      if (size > 1) file.end_document();
    }
    file.finish();
  };
  write("a", 1, false);
  write("b", 100, true);
  std::vector<std::string> results;
  for (const std::int64_t piece : {1000, 1, 3, 5, 10}) {
    PrepareOptions with = options({"a", "b"});
    with.piece_tokens = piece;
    with.output = folder_.path(cat("out-", piece));
    prepare(with);
    std::string& result = results.emplace_back();
    for (const char* ending : {".idx", ".bin", ".labels.bin"}) result += read_file(with.output + "/train" + ending);
  }
  const TokenFile joined(folder_.path("out-3/train"));
  Ids ids(joined.tokens()), labels(joined.tokens());
  ASSERT_EQ(joined.tokens(), 36);
  joined.read(0, ids);
  joined.read_labels(0, labels);
  EXPECT_EQ(ids[17], 18);
  EXPECT_EQ(ids[35], 117);
  EXPECT_EQ(labels[17], 18);
  EXPECT_EQ(labels[35], kIgnoredLabel);
  EXPECT_EQ(labels[34], 1116);
  for (const std::string& result : results) EXPECT_TRUE(result == results.front());
}

TEST_F(PrepareTest, RejectsUtf16) {
  std::string wide;
  for (const char c : std::string("It is a truth universally acknowledged")) wide += {c, '\0'};
  folder_.write("plain.txt", wide);
  folder_.write("marked.jsonl", "\xFF\xFE" + wide);
  const std::string reason = ": UTF-16 text (expected UTF-8) at data.train";
  EXPECT_EQ(rejection(options({"plain.txt", "marked.jsonl"})), "plain.txt" + reason +
                                                                   "[0]; try iconv -f utf-16 -t utf-8\nmarked.jsonl" +
                                                                   reason + "[1]; try iconv -f utf-16 -t utf-8");
  folder_.write("zeros.txt", std::string("ab\0\0cd ef gh", 13));
  EXPECT_EQ(rejection(options({"zeros.txt"})), "accepted");
}

TEST_F(PrepareTest, ReportsAllProblemsAndKeepsTheOldFiles) {
  folder_.write("good.txt", "fine");
  prepare(options({"good.txt"}));
  const auto before = documents_of(folder_.path("out/data/train"));
  folder_.write("bad.jsonl", "{\"text\":\"a\"}\n{oops\n{\"input_ids\":[4096]}\n");
  folder_.write("bad.txt", "ab\xFFz");
  folder_.write("empty.jsonl", "");
  folder_.write("other.dat", "a,b");
  const std::string files = rejection(options({"none*.jsonl", "empty.jsonl", "other.dat"}));
  EXPECT_EQ(files,
            "none*.jsonl: no such file at data.train[0]\nempty.jsonl: empty file at data.train[1]\n"
            "other.dat: unknown file type (expected .jsonl, .json, .csv, .tsv or .txt, also .gz or .zst, .parquet, or "
            "a token file) at "
            "data.train[2]");
  const std::string lines = rejection(options({"bad.jsonl", "bad.txt"}));
  EXPECT_NE(lines.find("bad.jsonl: broken JSON"), std::string::npos) << lines;
  EXPECT_NE(lines.find("at line 2, byte 14"), std::string::npos) << lines;
  EXPECT_NE(lines.find("got 4096) at line 3, input_ids[0]"), std::string::npos) << lines;
  EXPECT_NE(lines.find("bad.txt: not UTF-8 at byte 2"), std::string::npos) << lines;
  EXPECT_EQ(documents_of(folder_.path("out/data/train")), before);
  EXPECT_TRUE(is_prepared(options({"good.txt"})));
  EXPECT_FALSE(fs::exists(folder_.path("out/data/train.bin.tmp")));

  PrepareOptions with = options({"good.txt"});
  with.validation_fraction = 0.1;
  EXPECT_EQ(rejection(with),
            "good.txt: only one document, none can be held out at data.validation_fraction; try "
            "data.validation with separate files");
  with = options({"good.txt"});
  with.tokenizer = "";
  EXPECT_EQ(rejection(with), "good.txt: text needs a tokenizer; try data.tokenizer");
  with = options({});
  with.validation_fraction = 1.5;
  EXPECT_EQ(rejection(with),
            "no training data at data.train\nbad fraction (expected 0 or more, below 1, got 1.5) at "
            "data.validation_fraction");
  with = options({"good.txt"});
  with.vocab_size = 4000;
  EXPECT_NE(rejection(with).find("the tokenizer's vocabulary is larger than the model's"), std::string::npos);
  folder_.write("blank.jsonl", "{\"text\":\"\"}\n");
  EXPECT_EQ(rejection(options({"blank.jsonl"})), "no tokens in any document at data.train");
}

TEST_F(PrepareTest, FindsFilesByGlobAndFolder) {
  for (const char* name : {"b.txt", "a.txt", "c.jsonl", "d.csv"}) folder_.write(name, "x");
  fs::create_directories(folder_.path("sub/deep"));
  folder_.write("sub/deep/e.txt", "x");
  fs::create_directories(folder_.path("void"));
  const auto names = [&](const std::vector<std::string>& patterns) {
    Problems problems;
    std::string out;
    for (const Source& source : find_sources(patterns, folder_.path(""), "data.train", problems)) {
      out += fs::path(source.path).filename().string() + " ";
    }
    for (const Problem& problem : problems.all()) out += "! " + problem.what + " ";
    return out;
  };
  EXPECT_EQ(names({"*.txt"}), "a.txt b.txt ");
  EXPECT_EQ(names({"b.txt", "*.txt"}), "b.txt a.txt ");
  EXPECT_EQ(names({"{c,a}.*"}), "a.txt c.jsonl ");
  EXPECT_EQ(names({"sub"}), "e.txt ");
  EXPECT_EQ(names({"."}), "a.txt b.txt c.jsonl e.txt ");
  EXPECT_EQ(names({"void"}), "! folder without .jsonl, .parquet, .txt, .csv, .tsv or .json files ");
  EXPECT_EQ(names({folder_.path("a.txt")}), "a.txt ");
  EXPECT_EQ(names({"*.csv"}), "d.csv ");

  folder_.write("more/F.JSONL", "{\"text\": \"f\"}");
  folder_.write("more/g.ndjson", "{\"text\": \"g\"}");
  folder_.write("more/h.csv", "text\nh");
  folder_.write("more/i.json", "[]");
  EXPECT_EQ(names({"more"}), "F.JSONL g.ndjson ");
  const std::string more = folder_.path("more");
  EXPECT_EQ(
      unread_in_folders({"more"}, folder_.path("")),
      (std::vector<std::string>{more + ": 2 files of other types are not read (h.csv, ...); of a folder, "
                                       ".jsonl, .ndjson, .parquet and .txt files are read; if there are none, .csv and "
                                       ".tsv; else .json; name others in data.train"}));
  EXPECT_EQ(
      unread_in_folders({"more", "more/*.csv"}, folder_.path("")).at(0).find("1 file of other types is not read (i"),
      more.size() + 2);
  EXPECT_TRUE(unread_in_folders({"more", "more/*.csv", "more/i.json", "sub"}, folder_.path("")).empty());

  folder_.write("tree/a.txt", "a");
  folder_.write("tree/x/b.txt", "b");
  folder_.write("tree/x[1]/y/c.txt", "c");
  EXPECT_EQ(names({"tree/**/*.txt"}), "a.txt b.txt c.txt ");
  EXPECT_EQ(names({"tree/**"}), "a.txt b.txt c.txt ");
  EXPECT_EQ(names({"**/y/*.txt"}), "c.txt ");
  fs::create_directory_symlink(folder_.path("tree/x"), folder_.path("linked"));
  EXPECT_EQ(names({"tree/x", "linked", "linked/b.txt"}), "b.txt ") << "one file";
  fs::create_symlink(folder_.path("gone"), folder_.path("linked/gone.txt"));
  EXPECT_EQ(names({"linked"}), "b.txt ! cannot be read ");
  fs::remove(folder_.path("linked/gone.txt"));
  folder_.write("tree/x/.h.txt", "h");
  EXPECT_EQ(names({"linked/.*"}), ".h.txt ");
  fs::remove(folder_.path("tree/x/.h.txt"));
  const PrepareOptions options{
      .train = {"a.txt", "tree", "a.txt"}, .validation = {{.patterns = {"tree/x/*.txt"}}}, .folder = folder_.path("")};
  EXPECT_EQ(source_notes(options),
            (std::vector<std::string>{
                "named more than once in data.train and read once: 1 file (" + folder_.path("a.txt") + ")",
                "in data.train and in data.validation, so that the validation loss is of text that is trained on: "
                "1 file (" +
                    folder_.path("tree/x/b.txt") + ")"}));
}

TEST_F(PrepareTest, NamesACommandForFormatsThatItDoesNotRead) {
  for (const char* name : {"a.parquet", "b.xlsx", "it's.arrow", "c.TAR.GZ", "e.dat", "arrays/x.json", "tables/t.arrow"})
    folder_.write(name, "x");
  const auto rejected = [&](const char* pattern) {
    Problems problems;
    find_sources({pattern}, folder_.path(""), "data.train", problems);
    std::string text = problems.lines();
    for (std::size_t at; (at = text.find(folder_.path(""))) != text.npos;) text.erase(at, folder_.path("").size());
    return text;
  };
  const std::string expected =
      "expected .jsonl, .json, .csv, .tsv or .txt, also .gz or .zst, .parquet, or a token file";
  EXPECT_EQ(rejected("a.parquet"), "a.parquet: not a Parquet file (expected PAR1 as its first bytes) at data.train[0]");
  EXPECT_EQ(rejected("b.xlsx"),
            "b.xlsx: file type not read (" + expected +
                ", got .xlsx) at data.train[0]; try python3 -c 'import pandas; pandas.read_excel(\"b.xlsx\", dtype=str)"
                ".to_csv(\"b.csv\", index=False)'");
  // A data set that save_to_disk wrote has several files for each split.
  for (const char* name : {"saved/dataset_dict.json", "saved/test/data-00000-of-00001.arrow", "saved/test/state.json",
                           "one/state.json", "one/dataset_info.json", "one/data-00000-of-00001.arrow"})
    folder_.write(name, "x");
  const std::string without =
      ": folder without .jsonl, .parquet, .txt, .csv, .tsv or .json files (got data-00000-of-00001.arrow"
      ") at data.train[0]; try python3 -c 'import datasets; ";
  EXPECT_EQ(rejected("saved"), "saved" + without +
                                   "[part.to_json(f\"saved/{name}.jsonl\") for name, part in "
                                   "datasets.load_from_disk(\"saved\").items()]'");
  EXPECT_EQ(rejected("one"), "one" + without + "datasets.load_from_disk(\"one\").to_json(\"one/data.jsonl\")'");
  for (const char* name : {"lfs/a.jsonl", "lfs/b.parquet", "lfs/c.txt.gz"}) {
    folder_.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 5\n");
    EXPECT_EQ(rejected(name), std::string(name) +
                                  ": pointer of Git LFS (expected the file itself) at "
                                  "data.train[0]; try git -C lfs lfs pull");
  }
  EXPECT_NE(rejected("it's.arrow").find("from_file(\"FILE.arrow\").to_json(\"FILE.jsonl\""), std::string::npos);
  EXPECT_EQ(rejected("c.TAR.GZ"), "c.TAR.GZ: file type not read (" + expected +
                                      ", got .tar.gz) at data.train[0]; try tar --skip-old-files -xf \"c.TAR.GZ\"");
  EXPECT_EQ(rejected("e.dat"), "e.dat: unknown file type (" + expected + ") at data.train[0]");
  EXPECT_EQ(rejected("arrays"), "");
  EXPECT_EQ(rejected("tables"),
            "tables: folder without .jsonl, .parquet, .txt, .csv, .tsv or .json files (got t.arrow) at data.train[0]; "
            "try python3 -c "
            "'import datasets; "
            "datasets.Dataset.from_file(\"tables/t.arrow\").to_json(\"tables/t.jsonl\")'");
}

}  // namespace prepare_test
}  // namespace hawser::prepare

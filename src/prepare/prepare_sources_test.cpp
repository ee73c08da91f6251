// Prepare with archives, long texts, duplicates and token files.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "prepare/sources.h"
#include "prepare/testing/archives.h"
#include "prepare/testing/bytes_tokenizer.h"
#include "prepare/testing/prepare_fixture.h"

namespace hawser::prepare {
namespace prepare_sources_test {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
using PrepareSources = PrepareFixture;

TEST_F(PrepareSources, ArchivesAndFoldersEqualTheirPlainText) {
  fs::create_directories(folder_.path("plain/deep"));
  fs::create_directories(folder_.path("packed/deep"));
  folder_.write("plain/a.jsonl", lines(300, 1));
  folder_.write("plain/deep/b.txt", text(4000, 2));
  folder_.write("plain/deep/c.jsonl", lines(200, 3));
  folder_.write("packed/a.jsonl.gz", gzip(lines(300, 1)));
  folder_.write("packed/deep/b.txt.zst", zstd(text(4000, 2)));
  folder_.write("packed/deep/c.jsonl.zst", zstd(lines(200, 3)));
  PrepareOptions plain = options({"plain"}, "one"), packed = options({"packed"}, "two");
  for (PrepareOptions* with : {&plain, &packed}) with->validation_fraction = 0.1;
  std::int64_t done = 0, total = 0;
  packed.progress = [&](const PrepareProgress& progress) {
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
    done = progress.bytes_done, total = progress.bytes_total;
  };
  const Prepared as_they_are = prepare(plain);
  EXPECT_EQ(as_they_are.train.documents, 451);
  EXPECT_FALSE(as_they_are.compressed);
  EXPECT_TRUE(prepare(packed).compressed);
  EXPECT_EQ(done, total);
  EXPECT_TRUE(files("one") == files("two"));
  EXPECT_EQ(files("one").size(), 6u) << "train and valid, each with .bin, .idx and .labels.bin";
}

// Links to folders are followed, but not back to a folder on the way.
TEST_F(PrepareSources, FollowsLinksToFolders) {
  folder_.write("other/b.jsonl", lines(7, 2));
  folder_.write("mine/a.jsonl", lines(5, 1));
  fs::create_directory_symlink(folder_.path("other"), folder_.path("mine/linked"));
  fs::create_directory_symlink(folder_.path("mine"), folder_.path("other/back"));
  fs::create_symlink("nowhere", folder_.path("mine/.#a.jsonl"));    // an editor's lock
  fs::create_symlink("nowhere", folder_.path("mine/picture.png"));  // not read
  Problems problems;
  std::vector<std::string> paths;
  for (const Source& source : find_sources({"mine"}, folder_.path(), "data.train", problems)) {
    paths.push_back(source.path);
  }
  EXPECT_TRUE(problems.empty()) << problems.lines();
  EXPECT_EQ(paths, (std::vector<std::string>{folder_.path("mine/a.jsonl"), folder_.path("mine/linked/b.jsonl")}));
  fs::create_directory_symlink("nowhere", folder_.path("mine/shard"));  // a disk that is not mounted
  find_sources({"mine"}, folder_.path(), "data.train", problems);
  EXPECT_EQ(problems.lines(), folder_.path("mine/shard") + ": cannot be read at data.train[0]");
}

// Two recipes with one data.prepared: a reader that opens the files while another prepare replaces them notices.
TEST_F(PrepareSources, AReaderNoticesThatTheTokenFilesWereReplaced) {
  folder_.write("a.jsonl", lines(20, 1));
  folder_.write("b.jsonl", lines(30, 2));
  const PrepareOptions a = options({"a.jsonl"}), b = options({"b.jsonl"});
  EXPECT_EQ(prepared_manifest(a), "");
  prepare(a);
  const std::string manifest = prepared_manifest(a);
  ASSERT_NE(manifest, "");
  EXPECT_NO_THROW(expect_still_prepared(a, manifest));
  EXPECT_NO_THROW(expect_still_prepared(a, ""));
  prepare(b);
  EXPECT_EQ(prepared_manifest(a), "");
  EXPECT_THROW(expect_still_prepared(a, manifest), UserError);
  fs::remove(folder_.path("out/prepared.json"));  // as while a prepare replaces them
  EXPECT_THROW(expect_still_prepared(a, manifest), UserError);
}

// By prefix, by any of its files, or by a glob that matches all of them.
TEST_F(PrepareSources, ATokenFileIsFoundByAnyOfItsFiles) {
  folder_.write("a.jsonl", lines(50, 1));
  prepare(options({"a.jsonl"}, "one"));
  for (const char* name : {"one/train", "one/train.bin", "one/train.idx", "one/train.labels.bin", "one/train.*"}) {
    Problems problems;
    const auto found = find_sources({name}, folder_.path(), "data.train", problems);
    EXPECT_TRUE(problems.empty()) << problems.lines();
    ASSERT_EQ(found.size(), 1u) << name;
    EXPECT_EQ(found[0].path, folder_.path("one/train")) << name;
  }
}

TEST_F(PrepareSources, ReportsCorruptArchivesWithTheirPlace) {
  const std::string whole = gzip(lines(5000, 1));
  folder_.write("short.jsonl.gz", whole.substr(0, 20000));
  folder_.write("line.jsonl.zst", zstd("{\"text\": \"fine\"}\n\n{\"text\": 5}\n"));
  folder_.write("named.txt.gz", "plain text");
  folder_.write("named.jsonl", gzip("{}"));
  folder_.write("empty.txt.gz", gzip(""));
  EXPECT_EQ(rejection(options({"short.jsonl.gz", "line.jsonl.zst"})),
            "short.jsonl.gz: gzip archive cut short at byte 20000\n"
            "line.jsonl.zst: wrong type (expected a string, got number) at line 3, text");
  EXPECT_EQ(rejection(options({"named.txt.gz", "named.jsonl", "empty.txt.gz"})),
            "named.txt.gz: not a gzip archive; try a file extension that matches the contents\n"
            "named.jsonl: compressed file without the matching extension (expected text) at data.train[1]; try mv "
            "named.jsonl "
            "named.jsonl.gz\nempty.txt.gz: empty file at data.train[2]");
  EXPECT_EQ(files("out").size(), 0u) << "leaves no files of rejected sources";
}

TEST_F(PrepareSources, ALongTextIsOneDocumentWithTheIdsOfTheFullText) {
  folder_.write("a.txt", text(30000, 1));
  PrepareOptions parts = options({"a.txt"}, "parts"), whole = options({"a.txt"}, "whole");
  whole.block_bytes = 1 << 30;
  EXPECT_EQ(prepare(parts).train.sequences, 1);
  prepare(whole);
  EXPECT_TRUE(files("parts") == files("whole"));
}

TEST_F(PrepareSources, LeavesOutDuplicates) {
  folder_.write("a.jsonl",
                "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"one\", \"source\": \"elsewhere\"}\n"
                "{\"input_ids\": [5, 6]}\n{\"input_ids\": [5, 6], \"labels\": [-100, 6]}\n{\"input_ids\": [5, 6]}\n");
  folder_.write("b.txt", "two");
  const std::string book = text(3000, 5);  // several parts
  folder_.write("book.txt", book);
  folder_.write("copy.txt.gz", gzip(book));
  folder_.write("other.txt", book + "and on");
  folder_.write("v.jsonl", "{\"text\": \"held out\"}\n{\"text\": \"one\"}\n");
  PrepareOptions with = options({"a.jsonl", "b.txt", "book.txt", "copy.txt.gz", "other.txt"});
  with.validation = {{.patterns = {"v.jsonl"}}};
  EXPECT_EQ(prepare(with).train.documents, 10);
  const auto all = documents("out/train");
  with.deduplicate = true;
  EXPECT_FALSE(is_prepared(with)) << "the option changes the token files";
  const Prepared prepared = prepare(with);
  EXPECT_EQ(prepared.duplicates, 5);
  EXPECT_EQ(documents("out/train"), (std::vector<Ids>{all[0], all[1], all[3], all[4], all[7], all[9]}));
  EXPECT_EQ(prepared.validation.documents, 1) << "duplicates of training documents are omitted from validation";
  // Documents of token files are deduplicated too.
  fs::rename(folder_.path("out"), folder_.path("first"));
  PrepareOptions joined = options({"first/train", "a.jsonl"});
  joined.deduplicate = true;
  EXPECT_EQ(prepare(joined).duplicates, 4) << "ids are compared with ids only, not with text";
}

TEST_F(PrepareSources, LeavesOutDuplicatesOfASingleTokenFile) {
  folder_.write("a.jsonl", "{\"input_ids\": [5, 6]}\n{\"input_ids\": [7, 8]}\n{\"input_ids\": [5, 6]}\n");
  prepare(options({"a.jsonl"}, "first"));
  PrepareOptions with = options({"first/train"});
  EXPECT_TRUE(token_files(with).in_place);
  with.deduplicate = true;
  EXPECT_FALSE(token_files(with).in_place);
  EXPECT_EQ(prepare(with).duplicates, 1);
  EXPECT_EQ(documents("out/train"), (std::vector<Ids>{{5, 6}, {7, 8}}));
  EXPECT_TRUE(is_prepared(with));
  with.validation = {{.patterns = {"first/train"}}};
  EXPECT_EQ(rejection(with),
            "no tokens in any document (expected documents that are not in data.train, got "
            "duplicates alone) at data.validation; try data.deduplicate: false, or other files");
}

// Ids are another text with another tokenizer.
TEST_F(PrepareSources, RejectsATokenFileOfAnotherTokenizer) {
  folder_.write("a.jsonl", "{\"text\": \"one\"}\n");
  folder_.write("b.jsonl", "{\"text\": \"two\"}\n");
  prepare(options({"a.jsonl"}, "first"));
  PrepareOptions with = options({"first/train"});
  EXPECT_EQ(prepare(with).train.documents, 1) << "the same tokenizer";
  with.tokenizer = folder_.write("other/tokenizer.json", tokenizer_of_bytes({}));
  const std::string other = "first/train.bin: token file of another tokenizer (expected the one of first/prepared.json";
  EXPECT_TRUE(rejection(with).starts_with(other)) << rejection(with);
  with.train = {"first/train", "b.jsonl"};
  EXPECT_TRUE(rejection(with).starts_with(other)) << rejection(with);
  with.train = {"b.jsonl"};
  with.validation = {{.patterns = {"first/train"}}};
  EXPECT_NE(rejection(with).find("at data.validation; try"), std::string::npos) << rejection(with);
  with.tokenizer = "";
  with.train = {"first/train"};
  EXPECT_EQ(prepare(with).train.documents, 1) << "no tokenizer to compare";
  with.tokenizer = folder_.path("other/tokenizer.json");
  fs::remove(folder_.path("first/prepared.json"));
  EXPECT_EQ(prepare(with).train.documents, 1) << "nothing is known";
}

// One document is the default of document_lengths.
TEST_F(PrepareSources, ALengthThatIsWrittenOutIsNoOtherContent) {
  folder_.write("a.jsonl",
                "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [5, 6, 7, 8], \"document_lengths\": [4]}\n"
                "{\"input_ids\": [5, 6, 7, 8], \"document_lengths\": [2, 2]}\n");
  PrepareOptions with = options({"a.jsonl"});
  with.deduplicate = true;
  EXPECT_EQ(prepare(with).duplicates, 1);
}

TEST_F(PrepareSources, NeverReplacesItsOwnSourcesOrForeignFiles) {
  folder_.write("c.jsonl", lines(20, 1));
  PrepareOptions split = options({"c.jsonl"}, "out");
  split.validation_fraction = 0.5;
  prepare(split);
  const auto before = files("out");
  PrepareOptions again = options({"out/train"}, "out");
  again.validation_fraction = 0.5;
  EXPECT_EQ(rejection(again),
            "out/train.idx: the prepared data would replace this source at data.train; try another data.prepared, or "
            "another output");
  PrepareOptions held = options({"c.jsonl"}, "out");
  held.validation = {{.patterns = {"out/valid"}}};
  EXPECT_NE(rejection(held).find("out/valid.idx: the prepared data would replace this source at data.validation"),
            std::string::npos);
  EXPECT_TRUE(files("out") == before);
  EXPECT_EQ(rejection(options({"out/train"}, "out")), "accepted") << "used in place";
  // Token files of another tool.
  fs::create_directories(folder_.path("foreign"));
  for (const char* name : {"valid.bin", "valid.idx"})
    fs::copy_file(folder_.path("out/") + name, folder_.path("foreign/") + name);
  EXPECT_EQ(rejection(options({"c.jsonl"}, "foreign")),
            "foreign/valid.idx: the prepared data would replace this file, which `hawser prepare` did not write; try "
            "another data.prepared, or remove the file");
  EXPECT_TRUE(fs::exists(folder_.path("foreign/valid.bin")));
  EXPECT_FALSE(fs::exists(folder_.path("foreign/train.bin")));
  // Neither an unfinished folder nor a prepared.json of another program makes the files prepare's own.
  for (const char* name : {"train.labels.bin", "unfinished/mine", "prepared.json"}) {
    const std::string path = folder_.path(std::string("others/") + name);
    fs::create_directories(fs::path(path).parent_path());
    folder_.write(std::string("others/") + name, "{\"mine\": 1}");
    EXPECT_NE(rejection(options({"c.jsonl"}, "others")).find("would replace this file"), std::string::npos) << name;
    EXPECT_EQ(folder_.read(std::string("others/") + name), "{\"mine\": 1}");
  }
}

// `output` below a folder of data.train: later the folder also has metrics.jsonl, whose lines are no documents.
TEST_F(PrepareSources, FilesOfTheRunItselfAreNoData) {
  folder_.write("text/c.jsonl", lines(20, 1));
  PrepareOptions own = options({"text"}, "text/run/data");
  own.own_folder = true;
  const Prepared first = prepare(own);
  folder_.write("text/run/metrics.jsonl", "{\"step\": 1}\n");
  EXPECT_TRUE(is_prepared(own));
  own.seed = 4;
  own.validation_fraction = 0.5;
  EXPECT_EQ(prepare(own).train.documents + prepare(own).validation.documents, first.train.documents);
}

TEST_F(PrepareSources, MovesFilesOfOthersOutOfARunsOwnFolder) {
  folder_.write("c.jsonl", lines(20, 1));
  PrepareOptions own = options({"c.jsonl"}, "run/data");
  own.own_folder = true;
  const std::vector<std::string> names = {"train.bin", "valid.idx", "train.labels.bin", "prepared.json"};
  fs::create_directories(folder_.path("run/data/unfinished"));
  for (const std::string& name : names) folder_.write("run/data/" + name, "mine");
  folder_.write("run/data/unfinished/mine", "mine");
  folder_.write("run/data/notes.txt", "mine");
  const Prepared first = prepare(own);
  EXPECT_EQ(first.set_aside, folder_.path("run/data/earlier-1"));
  for (const std::string& name : names) EXPECT_EQ(folder_.read("run/data/earlier-1/" + name), "mine") << name;
  EXPECT_EQ(folder_.read("run/data/unfinished/mine"), "mine");
  EXPECT_EQ(folder_.read("run/data/notes.txt"), "mine");
  EXPECT_TRUE(is_prepared(own));
  // Its own files are replaced: with a manifest of any version, and where an earlier prepare was stopped.
  own.seed = 4;
  own.validation_fraction = 0.5;
  EXPECT_EQ(prepare(own).set_aside, "");
  EXPECT_FALSE(fs::exists(folder_.path("run/data/earlier-2")));
}

// Like a file that is named alone: silently left out, its text would be missing from the training.
TEST_F(PrepareSources, EachFileInBracesMustExist) {
  for (const char* name : {"a.txt", "b.txt", "c-1.txt", "odd{x,y}.txt"}) folder_.write(name, cat("words of ", name));
  EXPECT_EQ(rejection(options({"{a,b}.txt"})), "accepted");
  EXPECT_EQ(rejection(options({"{a,{b,c-*}}.txt"})), "accepted");
  EXPECT_EQ(rejection(options({"odd{x,y}.txt"})), "accepted");  // a name
  EXPECT_EQ(rejection(options({"{a,missing}.txt"})), "missing.txt: no such file at data.train[0]");
  EXPECT_EQ(rejection(options({"b.txt", "{a,{b,d-*}}.txt"})), "d-*.txt: no such file at data.train[1]");
  EXPECT_EQ(rejection(options({"{x,y}.txt"})), "{x,y}.txt: no such file at data.train[0]");
}

TEST_F(PrepareSources, OneProcessAtATime) {
  folder_.write("a.txt", "words");
  fs::create_directories(folder_.path("out/unfinished"));
  const int lock = ::open(folder_.path("out/unfinished/lock").c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_EQ(rejection(options({"a.txt"})),
            "out: another hawser process is preparing data here; try another data.prepared");
  ::close(lock);
  EXPECT_EQ(rejection(options({"a.txt"})), "accepted");
}

}  // namespace prepare_sources_test
}  // namespace hawser::prepare

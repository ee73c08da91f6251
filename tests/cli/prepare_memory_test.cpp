// Memory of `prepare` for sources larger than its limit: a real process, by its peak RSS (ru_maxrss), for each kind of
// source. The test fails if a file is read completely or kept in memory.
#include <sys/resource.h>
#include <unistd.h>

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"
#include "prepare/testing/archives.h"
#include "prepare/testing/parquet_file.h"

namespace hawser {
namespace prepare_memory_test {

constexpr std::int64_t kTextBytes = std::int64_t{96} << 20;
// Program and libraries, the tokenizer with a cache of words per thread, in-flight blocks of 1 MiB on two threads with
// their ids, and buffers of writers.
constexpr std::int64_t kBound = std::int64_t{80} << 20;
constexpr std::int64_t kBytesAContent = 29;  // bytes that data.deduplicate keeps of each content (seen_contents.h)

// Arrow's libraries, and for each of two threads what it decodes, besides what is decoded ahead (parquet_reader.h).
constexpr std::int64_t kArrowBytes = std::int64_t{48} << 20;

class PrepareMemory : public testing::Binary {
 protected:
  // Generated sentences, all different: words from the number of the document and their position in it.
  static std::string document(std::int64_t number, std::size_t bytes) {
    static constexpr const char* kWords[] = {"the", "sea", "of", "whales", "said", "Ahab", "under", "1851", "again"};
    std::string text = "No " + std::to_string(number) + ":";
    for (std::uint64_t i = 1; text.size() < bytes; ++i) {
      const std::uint64_t drawn = (static_cast<std::uint64_t>(number) * 0x9E3779B97F4A7C15u ^ i) * 0xC2B2AE3D27D4EB4Fu;
      text += std::string(" ") + kWords[(drawn >> 40) % 9];
      if (drawn >> 61 == 0) text += ".\nThen";
    }
    return text + ".\n";
  }

  // JSONL of `all` bytes: documents of `bytes`, each `copies` times.
  static std::string lines(std::int64_t all, std::size_t bytes, int copies, std::int64_t& distinct) {
    std::string out;
    out.reserve(static_cast<std::size_t>(all) + 4096);
    for (distinct = 0; static_cast<std::int64_t>(out.size()) < all; ++distinct) {
      const std::string line = nlohmann::json{{"text", document(distinct, bytes)}}.dump() + "\n";
      for (int i = 0; i < copies; ++i) out += line;
    }
    return out;
  }

  struct Peak {
    std::int64_t bytes = 0;
    nlohmann::json result;
  };
  // `prepare` of one source in a process of its own. What this process holds counts towards the peak of the other.
  Peak prepare(const std::string& source, const std::string& more = "") {
    const std::string root = testing::kSourceFolder;
    write("recipe.yaml", "model: {config: " + root + "/recipes/quickstart-model.json}\ndata: {train: " + source +
                             ", tokenizer: " + root + "/recipes/quickstart-tokenizer, sequence_length: 64" + more +
                             "}\ntrain: {steps: 1}\nrun: {threads: 2}\noutput: run\n");
    Peak peak;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(folder_.path().c_str()) != 0 || !freopen("out", "w", stdout) || !freopen("err", "w", stderr)) _exit(99);
      execl(testing::kHawser, testing::kHawser, "prepare", "recipe.yaml", "--json", nullptr);
      _exit(98);
    }
    int status = 0;
    rusage usage{};
    EXPECT_EQ(wait4(child, &status, 0, &usage), child);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0) << folder_.read("err");
    peak.bytes = std::int64_t{usage.ru_maxrss} * 1024;
    peak.result = nlohmann::json::parse(folder_.read("out"), nullptr, false);
    std::printf("%s%s: %.1f MB at the peak\n", source.c_str(), more.c_str(), static_cast<double>(peak.bytes) / 1e6);
    testing::fs::remove_all(folder_ / "run");
    return peak;
  }
};

TEST_F(PrepareMemory, DoesNotGrowWithTheSources) {
  {
    std::int64_t distinct = 0;
    const std::string jsonl = lines(kTextBytes, 4000, 1, distinct);
    write("text.jsonl", jsonl);
    write("text.jsonl.gz", prepare::gzip(jsonl));
    write("text.jsonl.zst", prepare::zstd(jsonl));
  }
  EXPECT_LT(prepare("text.jsonl").bytes, kBound);
  EXPECT_LT(prepare("text.jsonl.gz").bytes, kBound);
  EXPECT_LT(prepare("text.jsonl.zst").bytes, kBound);
  EXPECT_LT(prepare("text.jsonl.zst", ", validation_fraction: 0.01").bytes, kBound);
}

// Conversations have a label of four bytes for each token, and the summary reads all of them.
TEST_F(PrepareMemory, DoesNotGrowWithLabels) {
  {
    std::string chats;
    for (std::int64_t i = 0; static_cast<std::int64_t>(chats.size()) < 2 * kTextBytes; ++i) {
      chats +=
          nlohmann::json{{"prompt", document(2 * i, 200)}, {"completion", document(2 * i + 1, 2000)}}.dump() + "\n";
    }
    write("chats.jsonl", chats);
  }
  EXPECT_LT(prepare("chats.jsonl").bytes, kBound);
}

// An array is not loaded, whether its items are on one line or not, and neither is a table.
TEST_F(PrepareMemory, DoesNotGrowWithAnArrayOrATable) {
  {
    std::int64_t distinct = 0;
    std::string jsonl = lines(kTextBytes, 4000, 1, distinct);
    std::string table = "text\n";
    for (std::int64_t i = 0; i < distinct; ++i) table += "\"" + document(i, 4000) + "\"\n";
    write("text.csv", table);
    jsonl.back() = ']';
    for (char& c : jsonl) c = c == '\n' ? ',' : c;
    write("text.json", "[" + jsonl);
  }
  const Peak array = prepare("text.json", ", validation_fraction: 0.01"), table = prepare("text.csv");
  EXPECT_LT(array.bytes, kBound);
  EXPECT_LT(table.bytes, kBound);
  EXPECT_EQ(
      array.result["train"]["documents"].get<std::int64_t>() + array.result["valid"]["documents"].get<std::int64_t>(),
      table.result["train"]["documents"].get<std::int64_t>());
}

// Nor with Parquet: one large row group is decoded in parts, and of many only some are ahead.
TEST_F(PrepareMemory, DoesNotGrowWithParquet) {
  if (!testing::kParquet) GTEST_SKIP() << "a build with -DHAWSER_PARQUET=OFF";
  const auto text = [](std::int64_t row) { return document(row, 4000); };
  const std::int64_t documents = kTextBytes / 4000;
  prepare::write_parquet(folder_.path("one.parquet"), documents, documents, text);
  prepare::write_parquet(folder_.path("many.parquet"), documents / 2, 200, text);
  const Peak one = prepare("one.parquet"), many = prepare("many.parquet", ", validation_fraction: 0.01");
  EXPECT_LT(one.bytes, kBound + kArrowBytes);
  EXPECT_LT(many.bytes, kBound + kArrowBytes);
  EXPECT_EQ(one.result["train"]["documents"].get<std::int64_t>(), documents);
}

// One text is one document, of any length.
TEST_F(PrepareMemory, DoesNotGrowWithOneText) {
  {
    std::string text;
    for (std::int64_t i = 0; static_cast<std::int64_t>(text.size()) < kTextBytes; ++i) text += document(i, 4000);
    write("text.txt", text);
    write("text.txt.zst", prepare::zstd(text));
  }
  const Peak peak = prepare("text.txt");
  EXPECT_LT(peak.bytes, kBound);
  EXPECT_EQ(peak.result["train"]["documents"], 1) << peak.result;
  EXPECT_LT(prepare("text.txt.zst", ", deduplicate: true").bytes, kBound);
}

TEST_F(PrepareMemory, GrowsByAHashForEachContentThatIsKeptApart) {
  std::int64_t distinct = 0;
  write("text.jsonl", lines(kTextBytes / 2, 100, 2, distinct));
  ASSERT_GT(distinct, 150000);
  EXPECT_LT(prepare("text.jsonl").bytes, kBound);
  const Peak peak = prepare("text.jsonl", ", deduplicate: true");
  EXPECT_LT(peak.bytes, kBound + kBytesAContent * distinct);
  EXPECT_EQ(peak.result["train"]["documents"], distinct) << peak.result;
}

// An archive that unpacks to one endless line is rejected before it exhausts the machine.
TEST_F(PrepareMemory, IsBoundedForALineWithoutEnd) {
  const std::string bomb(std::size_t{400} << 20, 'a');
  for (const char* name : {"bomb.jsonl.gz", "bomb.txt.gz"}) {
    write(name, prepare::gzip(bomb));
    const std::string root = testing::kSourceFolder;
    write("recipe.yaml", "model: {config: " + root + "/recipes/quickstart-model.json}\ndata: {train: " +
                             std::string(name) + ", tokenizer: " + root +
                             "/recipes/quickstart-tokenizer, sequence_length: 64}\ntrain: {steps: 1}\noutput: run\n");
    const testing::Ran ran = shell("ulimit -v 1500000; " + std::string(testing::kHawser) + " prepare recipe.yaml");
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find(std::string(name) + ": "), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("256 MiB) at line 1; try "), std::string::npos) << ran.err;
    EXPECT_FALSE(testing::fs::exists(folder_ / "run/data/train.idx"));
  }
}

}  // namespace prepare_memory_test
}  // namespace hawser

// Parquet as users have it: read by every command that reads data, and clear lines where its library is missing.
#include <unistd.h>

#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace parquet_test {

namespace fs = std::filesystem;

class ParquetCommands : public testing::Binary {
 protected:
  void SetUp() override {
    if (!testing::kParquet) GTEST_SKIP() << "a build with -DHAWSER_PARQUET=OFF";
    copy_of("tied", "model");
    write("model/tokenizer.json", testing::letters_tokenizer());
    write("model/tokenizer_config.json",
          "{\"eos_token\": \"~\", \"chat_template\": \"{% for m in messages %}{% if m.role == 'assistant' %}"
          "{{ m.content + eos_token }}{% else %}<{{ m.role }}:{{ m.content }}>{% endif %}{% endfor %}\"}");
  }
  static fs::path golden(const std::string& name) {
    return fs::path(testing::kSourceFolder) / "tests/golden/parquet" / name;
  }
  std::string recipe(const std::string& data, const std::string& output) {
    return "model: {path: model}\ndata: {train: [" + data +
           "], sequence_length: 64}\ntrain: {steps: 2, "
           "global_batch_size: 2}\nprecision: {compute: float32}\nrun: {ranks: 1}\noutput: " +
           output + "\n";
  }
  // A copy of the program without its folder parquet/, which the caller makes.
  std::string program() {
    fs::create_directories(folder_ / "bin");
    std::error_code other_disk;
    fs::create_hard_link(testing::kHawser, folder_ / "bin/hawser", other_disk);
    if (other_disk) fs::copy_file(testing::kHawser, folder_ / "bin/hawser");
    return folder_.path("bin/hawser");
  }
  static fs::path libraries() { return fs::path(testing::kHawser).parent_path() / "parquet"; }
};

TEST_F(ParquetCommands, EveryCommandReadsIt) {
  for (const char* name : {"texts.jsonl", "texts.parquet"}) fs::copy_file(golden(name), folder_ / name);
  fs::copy_file(folder_ / "texts.parquet", folder_ / "named.jsonl");  // its first bytes tell what it is
  const nlohmann::json expected = json("eval --model model --data texts.jsonl --sequence-length 64");
  EXPECT_EQ(json("eval --model model --data texts.parquet --sequence-length 64")["loss"], expected["loss"]);
  EXPECT_EQ(json("eval --model model --data named.jsonl --sequence-length 64")["loss"], expected["loss"]);

  std::string bytes[2];
  for (const int i : {0, 1}) {
    const std::string source = i == 0 ? "texts.jsonl" : "texts.parquet", output = cat("of-", i);
    write("recipe.yaml", recipe(source, output));
    const testing::Ran ran = hawser("fit recipe.yaml");
    EXPECT_EQ(ran.code, 0) << ran.err;
    for (const char* name : {"train.bin", "train.idx"}) bytes[i] += folder_.read(output + "/data/" + name);
    const testing::Ran inspected = hawser("inspect data recipe.yaml --samples 1");
    EXPECT_EQ(inspected.code, 0) << inspected.err;
    EXPECT_NE(inspected.out.find("whales"), std::string::npos) << inspected.out;
  }
  EXPECT_GT(bytes[0].size(), 10000u);
  EXPECT_TRUE(bytes[0] == bytes[1]);

  const testing::Ran made = hawser("recipe init --model model --data texts.parquet --target cpu --output made.yaml");
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_NE(folder_.read("made.yaml").find("texts.parquet"), std::string::npos);

  // A changed file is prepared again.
  write("recipe.yaml", recipe("texts.parquet", "of-1"));
  fs::copy_file(golden("codec_zstd.parquet"), folder_ / "texts.parquet", fs::copy_options::overwrite_existing);
  const testing::Ran again = hawser("prepare recipe.yaml --json");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["train"]["documents"], 3);
}

TEST_F(ParquetCommands, PromptsOfGenerate) {
  write("prompts.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}]}\n");
  fs::copy_file(golden("prompts.parquet"), folder_ / "prompts.parquet");
  const auto answer = [&](const std::string& name) {
    const testing::Ran ran = hawser("generate --model model --max-tokens 4 --temperature 0 --prompts " + name);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out.empty() ? nlohmann::json() : nlohmann::json::parse(ran.out)["text"];
  };
  EXPECT_EQ(answer("prompts.parquet"), answer("prompts.jsonl"));
}

TEST_F(ParquetCommands, AFolderOfTheHub) {
  for (const char* name :
       {"train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test-00000-of-00001"}) {
    fs::create_directories(folder_ / "hub/data");
    fs::copy_file(golden("codec_zstd.parquet"), folder_ / cat("hub/data/", name, ".parquet"));
  }
  write("recipe.yaml", recipe("hub", "run"));
  const testing::Ran ran = hawser("prepare recipe.yaml --json");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)["train"]["documents"], 6);
  const std::string hub = folder_.path("hub");
  EXPECT_NE(ran.err.find(hub +
                         ": data.train takes the train split and leaves out test (1 file) and validation (1 file); "
                         "data.validation: [" +
                         hub + "] evaluates on the validation split\n"),
            std::string::npos)
      << ran.err;
  const testing::Ran made = hawser("recipe init --model model --data hub --target cpu --output made.yaml");
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.err.find("leaves out test (1 file) and validation (1 file); data.validation: ["), std::string::npos)
      << made.err;
}

TEST_F(ParquetCommands, WithoutItsLibraryOnlyParquetIsRejected) {
  fs::copy_file(golden("texts.parquet"), folder_ / "a.parquet");
  write("a.jsonl", "{\"text\": \"abc\"}\n");
  const std::string copied = program(), plugin = folder_.path("bin/parquet/libhawser_parquet.so");
  const std::string hint = "; try the folder parquet/ of the build, copied beside the program hawser";
  const auto error = [&](const std::string& data) {
    write("recipe.yaml", recipe(data, "run"));
    fs::remove_all(folder_ / "run");
    const testing::Ran ran = shell(copied + " prepare recipe.yaml");
    EXPECT_EQ(ran.code, data == "a.jsonl" ? 0 : 2) << ran.err;
    return ran.code == 0 ? "" : ran.err;
  };
  EXPECT_EQ(error("a.jsonl"), "");
  EXPECT_EQ(error("a.parquet"), "hawser: " + plugin + ": not found, but reads Parquet files" + hint +
                                    "; a build with -DHAWSER_PARQUET=OFF has none\n");
  fs::create_directories(folder_ / "bin/parquet");
  fs::copy_file(libraries() / "libhawser_parquet.so", plugin);
  const std::string parquet = folder_.path("bin/parquet/libparquet.so.2600");
  EXPECT_EQ(error("a.parquet"),
            "hawser: " + parquet + ": not found, but reads Parquet files (expected libparquet.so.2600)" + hint + "\n");
  write("bin/parquet/libparquet.so.2700", "");
  EXPECT_EQ(error("a.parquet"), "hawser: " + parquet +
                                    ": Arrow of another version (expected libparquet.so.2600, got "
                                    "libparquet.so.2700)" +
                                    hint + "\n");
  for (const char* name : {"libparquet.so.2600", "libarrow.so.2600"}) {
    fs::create_symlink(libraries() / name, folder_ / cat("bin/parquet/", name));
  }
  write("recipe.yaml", recipe("a.parquet", "run"));
  EXPECT_EQ(shell(copied + " prepare recipe.yaml").code, 0) << folder_.read("err");
  fs::remove(plugin);
  EXPECT_NE(error("a.jsonl, a.parquet").find("libhawser_parquet.so: not found"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run/data/unfinished")) << "known before any text is read";
  write("bin/parquet/libhawser_parquet.so", "text");
  EXPECT_NE(error("a.parquet").find("libhawser_parquet.so: cannot be loaded, but reads Parquet files: "),
            std::string::npos);
}

}  // namespace parquet_test
}  // namespace hawser

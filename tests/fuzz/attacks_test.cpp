// Malicious files: wrong counts, unbounded nesting, texts that expand. Each must give a UserError of one line that
// names the file, quickly and without allocating what the file claims.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/testing/states.h"
#include "io/files.h"
#include "prepare/prepare.h"
#include "prepare/token_file.h"
#include "report/metrics.h"
#include "report/metrics_file.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"
#include "train/saver.h"

namespace hawser {
namespace attacks_test {

using checkpoint::testing::write_file;

constexpr double kSeconds = 60;  // for a busy machine under the sanitizers

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::string brackets(int levels) {
  return repeated("[", levels) + repeated("]", levels);
}

// The reader's error message.
std::string rejection(const std::function<void()>& read) {
  const auto start = std::chrono::steady_clock::now();
  std::string message = "accepted";
  try {
    read();
  } catch (const UserError& error) {
    message = error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kSeconds) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000u) << message.substr(0, 1000);
  return message;
}

class Attack : public ::testing::Test {
 protected:
  std::string tokenizer(const std::string& text) {
    return rejection([&] {
      write_file(folder_ / "tokenizer.json", text);
      text::load_tokenizer(folder_ / "tokenizer.json");
    });
  }
  const TemporaryFolder folder_{memory_folder()};
};

TEST_F(Attack, DeeplyNestedTokenizers) {
  const std::string name =
      folder_.path("tokenizer.json") + ": JSON nested too deeply (expected at most 200 levels) at byte ";
  EXPECT_EQ(tokenizer("{\"model\":" + brackets(300000) + "}"), name + "208");
  EXPECT_EQ(tokenizer(repeated("{\"a\":", 300000)), name + "1000");
  for (const auto& [kind, list] : {std::pair("normalizer", "normalizers"), std::pair("pre_tokenizer", "pretokenizers"),
                                   std::pair("decoder", "decoders"), std::pair("post_processor", "processors")}) {
    const std::string one = std::string("{\"type\":\"Sequence\",\"") + list + "\":[";
    const std::string text = std::string("{\"") + kind + "\":" + repeated(one, 50000) + repeated("]}", 50000) + "}";
    EXPECT_EQ(tokenizer(text).substr(0, name.size()), name) << kind;
  }
  EXPECT_NE(
      tokenizer("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":" + std::string(100000, '9') + "},\"merges\":[]}}"),
      "accepted");
}

TEST_F(Attack, NormalizersThatExpandText) {
  const std::string replace =
      R"({"type":"Replace","pattern":{"String":"h"},"content":")" + std::string(1000, 'h') + "\"}";
  std::string steps = replace;
  for (int i = 0; i < 5; ++i) steps += "," + replace;
  write_file(folder_ / "tokenizer.json", R"({"normalizer":{"type":"Sequence","normalizers":[)" + steps +
                                             R"(]},"model":{"type":"BPE","vocab":{"h":0},"merges":[]}})");
  const auto loaded = text::load_tokenizer(folder_ / "tokenizer.json");
  std::vector<std::int32_t> ids;
  EXPECT_EQ(rejection([&] { loaded->encode("hh", ids, false); }).substr(0, 57),
            "the tokenizer's normalizer expands a text beyond 512 MiB ");
}

// A tekken.json whose counts do not match its contents.
TEST_F(Attack, InconsistentTekkenFiles) {
  // The 256 byte tokens, then `more` tokens.
  const auto tekken = [&](const std::string& size, const std::string& special, const std::string& more = "") {
    std::string vocabulary;
    for (int byte = 0; byte < 256; ++byte) {
      constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
      vocabulary += cat(byte > 0 ? "," : "", R"({"rank":)", byte, R"(,"token_bytes":")", kDigits[byte >> 2],
                        kDigits[(byte & 3) << 4], R"(=="})");
    }
    return tokenizer(R"({"config":{"pattern":"a","default_vocab_size":)" + size + R"(,"default_num_special_tokens":)" +
                     special + R"(},"vocab":[)" + vocabulary + more + "]}");
  };
  EXPECT_EQ(tekken("266", "10"), "accepted");
  const std::string file = folder_.path("tokenizer.json") + ": ";
  EXPECT_EQ(tekken("16777000", "10"), file + "fewer tokens than config requires: 256 of 16776990 at vocab");
  EXPECT_EQ(tekken("16777000", "16000000"), file + "too large at config.default_num_special_tokens");
  for (const char* number : {"-1", "1e308", "99999999999999999999", "4294967296", "\"1\"", "null"}) {
    EXPECT_TRUE(tekken(number, "10").starts_with(file)) << number;
    EXPECT_TRUE(tekken("266", number).starts_with(file)) << number;
  }
  EXPECT_EQ(tekken("267", "10", R"(,{"rank":256,"token_bytes":")" + std::string(4000000, 'A') + "\"}"),
            file + "token of more than 1024 bytes at vocab[256].token_bytes");
  EXPECT_EQ(tekken("267", "10", R"(,{"rank":3,"token_bytes":"AAAA"})"), file + "rank used twice at vocab[256].rank");
}

// SentencePiece models with out-of-range lengths and numbers, and truncated at every position.
TEST_F(Attack, InconsistentSentencePieceModels) {
  const auto model = [&](const std::string& bytes) {
    return rejection([&] {
      write_file(folder_.path("tokenizer.model"), bytes);
      text::load_tokenizer(folder_.path("tokenizer.model"));
    });
  };
  const std::string max = std::string(9, '\xff') + "\x01";  // 2^64 - 1
  const std::string file = folder_.path("tokenizer.model") + ": ";
  EXPECT_TRUE(model("\x0a" + max + "abc").starts_with(file));
  EXPECT_TRUE(model("\x0a" + std::string(20, '\xff')).starts_with(file));
  EXPECT_TRUE(model(std::string("\x0a\x00", 2)).starts_with(file)) << "an empty piece";
  EXPECT_TRUE(model(std::string(100000, '\x0b')).starts_with(file)) << "groups, opened and never closed";
  // One valid piece of type UNKNOWN and a letter, then the trainer's fields.
  const auto piece = [](const std::string& text, char type) {
    const std::string body =
        "\x0a" + std::string(1, static_cast<char>(text.size())) + text + "\x15" + std::string(4, '\0') + "\x18" + type;
    return "\x0a" + std::string(1, static_cast<char>(body.size())) + body;
  };
  const auto trainer = [&](const std::string& fields) {
    return piece("<unk>", '\2') + piece("a", '\1') + "\x12" + std::string(1, static_cast<char>(fields.size())) + fields;
  };
  EXPECT_EQ(model(trainer("\x18\x01")), "accepted");
  EXPECT_TRUE(model(trainer("\x18" + max)).starts_with(file)) << "kind of model";
  for (const std::string& id : {max, std::string("\xff\xff\xff\xff\x07")}) {  // bos and eos: -1, 2^31 - 1
    const std::string message = model(trainer("\x18\x01\xc8\x02" + id + "\xd0\x02" + id));
    EXPECT_TRUE(message == "accepted" || message.starts_with(file)) << message;
  }
  const std::string sound = trainer("\x18\x01");
  for (std::size_t cut = 0; cut + 1 < sound.size(); ++cut) {
    const std::string message = model(sound.substr(0, cut));
    EXPECT_TRUE(message == "accepted" || message.starts_with(file)) << cut << ": " << message;
  }
}

// A pipe or a folder in place of a file.
TEST_F(Attack, PipesAndFoldersDoNotBlock) {
  const std::string pipe = folder_.path("tokenizer.json");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(rejection([&] { text::load_tokenizer(pipe); }), pipe + ": cannot read the tokenizer: not a regular file");
  ASSERT_EQ(::mkfifo(folder_.path("a.idx").c_str(), 0600), 0);
  EXPECT_EQ(rejection([&] { const prepare::TokenFile file(folder_.path("a")); }),
            folder_.path("a.idx") + ": cannot read: No such device");
  ASSERT_EQ(::mkfifo(folder_.path("metrics.jsonl").c_str(), 0600), 0);
  EXPECT_TRUE(rejection([&] {
                const report::MetricsFile file(folder_.path("metrics.jsonl"), 3);
              }).starts_with(folder_.path("metrics.jsonl") + ": cannot "));
  write_file(folder_.path("text.jsonl"), "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5, 6]}\n");
  prepare::PrepareOptions options{
      .train = {folder_.path("text.jsonl")}, .output = folder_.path("data"), .vocab_size = 9};
  std::filesystem::create_directories(folder_.path("data/unfinished"));
  ASSERT_EQ(::mkfifo(folder_.path("data/prepared.json").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(folder_.path("data/unfinished/state.json").c_str(), 0600), 0);
  EXPECT_FALSE(prepare::is_prepared(options));
  EXPECT_NE(
      rejection([&] { prepare::prepare(options); }).find("prepared.json: the prepared data would replace this file"),
      std::string::npos);
  options.own_folder = true;
  EXPECT_EQ(prepare::prepare(options).train.documents, 2);
  EXPECT_TRUE(prepare::is_prepared(options));
}

// Unfinished state and manifests of prepare with impossible contents are ignored, and the data is prepared again.
TEST_F(Attack, InconsistentPrepareStateAndManifests) {
  write_file(folder_.path("text.jsonl"), "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5, 6]}\n");
  const prepare::PrepareOptions options{
      .train = {folder_.path("text.jsonl")}, .output = folder_.path("data"), .vocab_size = 9};
  prepare::prepare(options);
  const std::string manifest = read_file(folder_.path("data/prepared.json"));
  const nlohmann::json from = nlohmann::json::parse(manifest)["from"];
  for (const std::string& bad : {brackets(300000), std::string(), manifest.substr(0, manifest.size() / 2),
                                 std::string("\xff\xfe\0", 3), std::string("[]"), std::string("{\"version\":-1}")}) {
    write_file(folder_.path("data/prepared.json"), bad);
    EXPECT_FALSE(prepare::is_prepared(options)) << bad.substr(0, 20);
  }
  const nlohmann::json at{{"tokens", 0},         {"sequences", 0},   {"documents", 0}, {"open", 0},
                          {"first_sequence", 0}, {"first_token", 0}, {"labels", false}};
  const nlohmann::json sound{{"version", 2},     {"complete", false}, {"validation", false}, {"source", 0},
                             {"byte", 0},        {"line", 1},         {"counted", -1},       {"documents", 0},
                             {"duplicates", 0},  {"contents", 0},     {"bytes_done", 0},     {"documents_done", 0},
                             {"tokens_done", 0}, {"train", at},       {"valid", nullptr},    {"from", from}};
  for (const char* key : {"source", "byte", "line", "counted", "documents", "duplicates", "contents", "bytes_done",
                          "documents_done", "tokens_done", "train/tokens", "train/sequences", "train/documents",
                          "train/open", "train/first_sequence", "train/first_token"}) {
    for (const std::int64_t number : {std::int64_t{-5}, std::int64_t{1} << 62, INT64_MIN, INT64_MAX}) {
      nlohmann::json state = sound;
      state[nlohmann::json::json_pointer(cat("/", key))] = number;
      std::filesystem::create_directories(folder_.path("data/unfinished"));
      write_file(folder_.path("data/unfinished/state.json"), state.dump());
      EXPECT_EQ(prepare::prepare(options).train.documents, 2) << key << " " << number;
      EXPECT_EQ(prepare::TokenFile(folder_.path("data/train")).tokens(), 6) << key << " " << number;
    }
  }
}

TEST_F(Attack, PatternsThatDoNotCompileAreShortened) {
  const std::string pattern = std::string(50000, '(') + "a" + std::string(50000, ')');
  const std::string message =
      tokenizer(R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":")" + pattern +
                R"("},"behavior":"Isolated","invert":false},"model":{"type":"BPE","vocab":{"h":0},"merges":[]}})");
  EXPECT_NE(message.find("regular expression does not compile: "), std::string::npos) << message;
  EXPECT_NE(message.find(" after ...((("), std::string::npos) << message;
}

TEST_F(Attack, DeeplyNestedTokenizerConfigs) {
  write_file(folder_.path("tokenizer.json"), "{}");
  write_file(folder_.path("tokenizer_config.json"), "{\"chat_template\":" + brackets(300000) + "}");
  Problems problems;
  text::chat::open_chat_template("", folder_.path("tokenizer.json"), "", "data.chat_template", problems);
  EXPECT_EQ(problems.lines(), folder_.path("tokenizer_config.json") +
                                  ": JSON nested too deeply (expected at most 200 levels) at byte 216");
}

// Index files whose counts and lengths do not match their contents.
TEST_F(Attack, InconsistentTokenIndexes) {
  const std::string magic("MMIDIDX\0\0", 9);
  const auto number = [](auto value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  const auto index = [&](std::uint8_t type, std::uint64_t sequences, std::uint64_t bounds, const std::string& rest) {
    return magic + number(std::uint64_t{1}) + number(type) + number(sequences) + number(bounds) + rest;
  };
  const auto read = [&](const std::string& idx, const std::string& bin) {
    write_file(folder_.path("a.idx"), idx);
    write_file(folder_.path("a.bin"), bin);
    const std::string message = rejection([&] {
      const prepare::TokenFile file(folder_.path("a"));
      file.check_ids(100);
    });
    return message.starts_with(folder_.path("a.")) ? message.substr(folder_.path("a.").size()) : message;
  };
  const std::uint64_t max = ~std::uint64_t{0};
  for (const std::uint8_t type : {std::uint8_t{4}, std::uint8_t{8}}) {
    const std::size_t width = type == 4 ? 4 : 2;
    for (const std::uint64_t sequences : {std::uint64_t{1} << 62, max, max / 12, std::uint64_t{1}}) {
      for (const std::uint64_t bounds : {std::uint64_t{1} << 61, max, max / 8 + 1, std::uint64_t{0}}) {
        EXPECT_TRUE(read(index(type, sequences, bounds, std::string(20, '\0')), "").starts_with("idx: ")) << sequences;
      }
    }
    // One sequence, one document.
    const auto one = [&](std::int32_t length, std::int64_t offset, std::int64_t first, std::int64_t end) {
      return index(type, 1, 2, number(length) + number(offset) + number(first) + number(end));
    };
    const std::string three(3 * width, '\0');
    EXPECT_EQ(read(one(3, 0, 0, 1), three), "accepted");
    EXPECT_TRUE(read(one(2147483647, 0, 0, 1), three).starts_with("bin: token file cut short"));
    EXPECT_TRUE(read(one(-1, 0, 0, 1), three).starts_with("idx: negative length"));
    EXPECT_TRUE(read(one(3, std::int64_t{1} << 62, 0, 1), three).starts_with("idx: gap between sequences"));
    EXPECT_TRUE(read(one(3, -8, 0, 1), three).starts_with("idx: sequences overlap"));
    EXPECT_TRUE(read(one(3, 0, 0, std::int64_t{1} << 62), three).starts_with("idx: document bounds"));
    EXPECT_TRUE(read(one(3, 0, -1, 1), three).starts_with("idx: document bounds"));
    EXPECT_TRUE(read(one(3, 0, 0, 1), three + "\1").starts_with("bin: token file longer"));
    EXPECT_TRUE(read(one(3, 0, 0, 1), "").starts_with("bin: "));
    EXPECT_TRUE(read(one(3, 0, 0, 1), std::string(3 * width, '\x7f')).starts_with("bin: id outside the vocabulary"));
    EXPECT_TRUE(read("", three).starts_with("idx: "));
    for (std::size_t cut = 0; cut < one(3, 0, 0, 1).size(); ++cut) {
      EXPECT_TRUE(read(one(3, 0, 0, 1).substr(0, cut), three).starts_with("idx: ")) << cut;
    }
  }
  EXPECT_TRUE(read(index(5, 0, 1, number(std::uint64_t{0})), "").starts_with("idx: token type not supported"));
}

TEST_F(Attack, DeeplyNestedMetricsLines) {
  EXPECT_FALSE(report::from_json(R"({"step":1,"loss":2,"more":)" + brackets(300000) + R"(,"then":1})"));
  EXPECT_FALSE(report::from_json(R"({"step":1,"findings":)" + brackets(300000)));
  EXPECT_TRUE(report::from_json(R"({"step":1,"loss":2,"more":[[[]]]})"));
}

TEST_F(Attack, DeeplyNestedRunState) {
  EXPECT_EQ(rejection([] { engine::run_state_of(R"({"step":1,"recipe":)" + brackets(300000) + R"(,"sequences":1})"); }),
            "the checkpoint was not written by `hawser fit` (got JSON nested too deeply)");
}

TEST_F(Attack, RunStateWithInvalidNumbers) {
  const auto state = [](const std::string& step, const std::string& sequences) {
    return rejection([&] {
      engine::run_state_of(
          cat(R"({"step":)", step, R"(,"sequences":)", sequences, R"(,"recipe":{},"config":"","tokenizer":""})"));
    });
  };
  EXPECT_EQ(state("1", "4"), "accepted");
  const std::string other = "the checkpoint was not written by `hawser fit` (got ";
  for (const char* bad :
       {"-1", "1e300", "1.5", "9223372036854775807", "18446744073709551615", "\"1\"", "[1]", "null"}) {
    EXPECT_TRUE(state(bad, "4").starts_with(other + "step ")) << state(bad, "4");
    EXPECT_TRUE(state("1", bad).starts_with(other + "sequences ")) << state("1", bad);
  }
}

TEST_F(Attack, RunDataThatAreNotNumbers) {
  const engine::RunState state{.data = R"({"tokens":"many","documents":[1],"content":7})"};
  EXPECT_EQ(engine::data_changes(state, R"({"tokens":5,"documents":2})"),
            "the training data have changed: 0 tokens in 0 documents before, 5 tokens in 2 documents now");
}

// Columns of a matrix: their flat ranges all overlap, the columns do not.
TEST_F(Attack, ManyBoxes) {
  const auto columns = [](std::int64_t count) {
    checkpoint::SavedTensor tensor{.name = "a", .shape = {2, count}, .dtype = DType::f32};
    for (std::int64_t i = 0; i < count; ++i) tensor.boxes.push_back({.region = {{0, i}, {2, 1}}});
    return tensor;
  };
  EXPECT_EQ(checkpoint::find_overlap(columns(4000)), "");
  EXPECT_EQ(checkpoint::find_overlap(columns(400000)), "more than 10000000 pairs may overlap");
}

TEST_F(Attack, CheckpointManifests) {
  const std::vector<checkpoint::testing::Spec> specs = {{"embed", {5, 3}}};
  const std::string saved =
      checkpoint::testing::save({.root = folder_.path(), .step = 3}, checkpoint::testing::cut_flat(specs, 2, 1));
  const std::string path = saved + "/manifest.json", sound = read_file(path);
  const auto opened = [&] { return rejection([&] { checkpoint::Checkpoint::open(saved); }); };
  EXPECT_EQ(opened(), "accepted");
  const auto manifest = [&](const std::string& text) {
    write_file(path, text);
    return opened();
  };
  EXPECT_EQ(manifest(brackets(300000)),
            path + ": manifest: JSON nested too deeply (expected at most 200 levels) at byte 200");
  EXPECT_EQ(manifest(repeated("{\"a\":", 300000)),
            path + ": manifest: JSON nested too deeply (expected at most 200 levels) at byte 1000");
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("null"), std::string("\xff\xfe"), std::string(100, '\0'),
        std::string("{\"format\":\"hawser-checkpoint\",\"version\":") + std::string(100000, '9') + "}",
        sound.substr(0, sound.size() / 2), sound + sound}) {
    EXPECT_TRUE(manifest(text).starts_with(path + ": ")) << text.substr(0, 40);
  }
  for (const auto& [from, to] : {std::pair("\"step\": 3", "\"step\": 99999999999999999999"),
                                 {"\"world\": 2", "\"world\": -2"},
                                 {"rank-00000.bin", "../../../etc/passwd"}}) {
    std::string text = sound;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), std::strlen(from), to);
    EXPECT_TRUE(manifest(text).starts_with(path + ": ")) << from;
  }
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(opened(), path + ": not a regular file");
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(opened(), path + ": not a regular file");
  std::filesystem::remove(path);
  write_file(path, sound);
  std::filesystem::remove(saved + "/rank-00001.bin");
  ASSERT_EQ(::mkfifo((saved + "/rank-00001.bin").c_str(), 0600), 0);
  EXPECT_EQ(opened(), saved + "/rank-00001.bin: not a regular file");
}

// The reader of stored GEMM algorithms accepts only regular files of limited size.
TEST_F(Attack, PipesAndFoldersInPlaceOfStoredGemmAlgorithms) {
  const std::string path = folder_.path("gemm_algorithms.txt");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(rejection([&] { io::read_text(path, 100); }), path + ": not a regular file");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(rejection([&] { io::read_text(path, 100); }), path + ": not a regular file");
  std::filesystem::remove(path);
  write_file(path, std::string(101, 'x'));
  EXPECT_EQ(rejection([&] { io::read_text(path, 100); }),
            path + ": file too long (expected at most 100 bytes, got 101)");
}

}  // namespace attacks_test
}  // namespace hawser

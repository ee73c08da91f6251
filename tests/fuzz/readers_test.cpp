// Fuzz tests: every file reader, on valid files with random mutations. It must return or throw a UserError with
// printable lines; under the sanitizers it must not read out of bounds. The mutations are the same in every run;
// HAWSER_FUZZ_SECONDS=600 runs each reader for at least that long, HAWSER_FUZZ_SEED selects other mutations.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>

#include "base/philox.h"
#include "base/testing/test_paths.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/testing/states.h"
#include "config/config.h"
#include "models/families.h"
#include "prepare/byte_reader.h"
#include "prepare/jsonl.h"
#include "prepare/testing/archives.h"
#include "prepare/token_file.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser {
namespace readers_test {

namespace fs = std::filesystem;
using checkpoint::testing::write_file;

std::string shipped(const std::string& path) {
  return read_file(std::string(testing::kSourceFolder) + "/" + path);
}

std::uint64_t number_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

class Mutator {
 public:
  explicit Mutator(const std::string& name) : random_(number_from("HAWSER_FUZZ_SEED"), name) {}

  std::string broken(std::string text) {
    for (std::size_t n = 1 + below(4); n > 0; --n) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_.below(bound, drawn_++)); }

  void change(std::string& text) {
    static const std::vector<std::string> kWords = {"0",
                                                    "-1",
                                                    "1",
                                                    "2147483648",
                                                    "9223372036854775807",
                                                    "-9223372036854775808",
                                                    "18446744073709551616",
                                                    "1e308",
                                                    "1e-9",
                                                    ".5",
                                                    "nan",
                                                    "null",
                                                    "true",
                                                    "[]",
                                                    "{}",
                                                    "\"\"",
                                                    "\"",
                                                    "[",
                                                    "]",
                                                    "{",
                                                    "}",
                                                    ",",
                                                    ":",
                                                    "\n",
                                                    "\t",
                                                    "&a",
                                                    "*a",
                                                    "../../etc/passwd",
                                                    "\\u0000",
                                                    "\xff",
                                                    "\xed\xa0\x80",
                                                    std::string(1, '\0'),
                                                    std::string(300, '['),
                                                    std::string(5000, 'x')};
    const std::size_t at = below(text.size() + 1), length = std::min(text.size() - at, 1 + below(24));
    switch (below(8)) {
      case 0:  // a bit
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:  // a byte
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:  // a substring from elsewhere
        text.replace(at, length, text.substr(below(text.size() + 1), 1 + below(24)));
        break;
      case 6: {  // a number replaced by another number or a word
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const std::size_t end = text.find_first_not_of("0123456789.-+e", digit);
        text.replace(digit, (end == std::string::npos ? text.size() : end) - digit, kWords[below(kWords.size())]);
        break;
      }
      default:
        text.insert(at, kWords[below(kWords.size())]);
    }
  }

  RandomStream random_;
  std::uint64_t drawn_ = 0;
};

// Error lines contain no control characters, whatever the file contains.
void expect_printable(const std::string& lines) {
  EXPECT_FALSE(lines.empty());
  for (const char c : lines) {
    if (c != '\n') {
      ASSERT_GE(static_cast<unsigned char>(c), 0x20u) << lines;
    }
  }
}

// Reads `count` mutations of `sound`; `read` gets the text, and throws or collects its problems.
void fuzz(const std::string& name, const std::string& sound, int count,
          const std::function<void(const std::string& text, Problems& problems)>& read) {
  ASSERT_FALSE(sound.empty()) << name;
  Mutator mutator(name);
  const std::chrono::duration<double> max(static_cast<double>(number_from("HAWSER_FUZZ_SECONDS")));
  const auto start = std::chrono::steady_clock::now();
  int rejected = 0, tried = 0;
  for (; tried < count || std::chrono::steady_clock::now() - start < max; ++tried) {
    const std::string text = tried == 0 ? sound : mutator.broken(sound);
    Problems problems;
    std::string lines;
    try {
      read(text, problems);
      lines = problems.lines();
    } catch (const UserError& error) {
      lines = error.what();
    } catch (const std::exception& error) {
      const std::string kept = (fs::temp_directory_path() / ("hawser-fuzz-" + name)).string();
      write_file(kept, text);
      FAIL() << name << ", text " << tried << " (kept in " << kept << "): " << error.what();
    }
    if (lines.empty()) continue;
    ASSERT_GT(tried, 0) << "the sound text is rejected: " << lines;
    ASSERT_NO_FATAL_FAILURE(expect_printable(lines)) << name << ", text " << tried;
    ++rejected;
  }
  std::printf("%s: %d of %d texts rejected\n", name.c_str(), rejected, tried);
  EXPECT_GT(rejected, tried / 20) << "hardly anything is rejected";
}

TEST(Fuzz, Recipe) {
  const TemporaryFolder folder(memory_folder());
  const std::string path = folder / "recipe.yaml";
  for (const char* recipe : {"quickstart", "smollm2-novels"}) {
    fuzz(recipe, shipped(cat("recipes/", recipe, ".yaml")), 3000, [&](const std::string& text, Problems&) {
      write_file(path, text);
      const Recipe read = read_recipe(path, {});
      Problems ignored;
      check_layout(read, 4, ignored);
      // An accepted recipe can be written and read again.
      write_file(folder / "again.yaml", recipe_json(read));
      EXPECT_EQ(recipe_json(read_recipe(folder / "again.yaml", {})), recipe_json(read));
    });
  }
}

TEST(Fuzz, ModelConfig) {
  for (const char* config : {"recipes/configs/llama-3.1-8b.json", "recipes/quickstart-model.json"}) {
    fuzz(fs::path(config).filename().string(), shipped(config), 5000, [&](const std::string& text, Problems& problems) {
      const models::ModelDescription description = models::describe_config(text, "config.json", problems);
      if (problems.empty()) {
        EXPECT_FALSE(description.blocks.empty());
      }
    });
  }
}

TEST(Fuzz, Tokenizer) {
  const TemporaryFolder folder(memory_folder());
  const std::string path = folder / "tokenizer.json";
  const std::string sentence = "It is a truth, universally \xf0\x9f\x98\x80 acknowledged:\t1813!\n";
  fuzz("tokenizer", shipped("recipes/quickstart-tokenizer/tokenizer.json"), 200,
       [&](const std::string& text, Problems&) {
         write_file(path, text);
         const auto tokenizer = text::load_tokenizer(path);
         std::vector<std::int32_t> ids;
         tokenizer->encode(sentence, ids, true);
         for (const std::int32_t id : ids) ASSERT_LT(id, tokenizer->vocab_size());
         tokenizer->decode(ids);
       });
}

TEST(Fuzz, Jsonl) {
  const std::string line =
      R"({"input_ids": [5, 6, 7, 8, 9, 10], "labels": [-100, 6, 7, 8, -100, 10], "document_lengths": [2, 4]})";
  for (const std::string& sound : {line, std::string(R"({"text": "a \"quoted\" caf\u00e9 \ud83d\ude00 line"})")}) {
    fuzz("line", sound, 30000, [&](const std::string& text, Problems& problems) {
      const auto read = prepare::parse_line(text, {.file = "a.jsonl", .vocab_size = 11}, problems);
      EXPECT_EQ(read.has_value(), problems.empty());
      if (!read) return;
      for (const std::int32_t id : read->ids) {
        EXPECT_GE(id, 0);
        EXPECT_LT(id, 11);
      }
    });
  }
}

TEST(Fuzz, Conversation) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [{"x": [1]}]})";
  const std::string pair =
      R"({"prompt": [{"role": "user", "content": null, "tool_calls": [{"a": null}]}], "completion": [{"role": "b", "content": ["c"]}]})";
  Problems none;
  const auto chatml = text::chat::open_chat_template("chatml", "", "", "", none);
  for (const std::string& sound : {line, pair}) {
    fuzz("conversation", sound, 10000, [&](const std::string& text, Problems& problems) {
      const auto read = prepare::parse_line(text, {.file = "a.jsonl"}, problems);
      EXPECT_EQ(read.has_value(), problems.empty());
      if (!read || !read->chat) return;
      try {
        chatml->render(*read->chat);
      } catch (const text::chat::TemplateError& error) {
        EXPECT_STRNE(error.what(), "");
      }
    });
  }
}

TEST(Fuzz, ChatTemplate) {
  text::chat::Dict user, assistant;
  user.items = {{"role", "user"}, {"content", "a <think>b</think> c"}};
  assistant.items = {{"role", "assistant"}, {"content", "d"}};
  const text::chat::Conversation conversation{text::chat::List{user, assistant}, {}};
  for (const text::chat::NamedTemplate& one : text::chat::named_templates()) {
    fuzz(one.name, one.source, 400, [&](const std::string& text, Problems&) {
      try {
        text::chat::ChatTemplate(text, one.tokens, "a.jinja").render(conversation);
      } catch (const text::chat::TemplateError& error) {
        throw UserError(Problem{.what = error.what()});
      }
    });
  }
}

TEST(Fuzz, Archive) {
  const TemporaryFolder folder(memory_folder());
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "line " + std::to_string(i * i) + "\n";
  for (const char* ending : {".gz", ".zst"}) {
    const std::string path = folder / (std::string("a.txt") + ending);
    fuzz(path.substr(path.rfind('/') + 1),
         *ending == '.' && ending[1] == 'g' ? prepare::gzip(text) : prepare::zstd(text), 2000,
         [&](const std::string& bytes, Problems&) {
           write_file(path, bytes);
           EXPECT_LE(prepare::read_all_bytes(path).size(), 10 * text.size());
         });
  }
}

// A table or an array is read, or rejected with its place; what is read are lines of JSON.
TEST(Fuzz, TablesAndArrays) {
  const TemporaryFolder folder(memory_folder());
  const std::string table = "instruction,input,output\r\n\"a \"\"b\"\",\nc\",,d\n\ne,\"f\",\xC3\xA9\n";
  const std::string array =
      R"([{"question": "a", "answer": "b\\n, ]"}, {"conversations": [{"from": "human", "value": "a"}, )"
      R"({"from": "gpt", "value": "b", "weight": 1}], "system": "c"}])";
  for (const auto& [name, sound] : {std::pair("a.csv", table), std::pair("a.json", array)}) {
    const std::string path = folder / name;
    fuzz(name, sound, 10000, [&](const std::string& text, Problems& problems) {
      write_file(path, text);
      for (const prepare::Line& line : prepare::read_jsonl(path, 11, problems)) {
        EXPECT_TRUE(line.text || line.chat || line.completion || !line.ids.empty());
      }
    });
  }
}

// Rows of a mutated file are documents, or the file is rejected. Arrow decodes the pages, we its arrays.
TEST(Fuzz, Parquet) {
  if (!testing::kParquet) GTEST_SKIP() << "a build with -DHAWSER_PARQUET=OFF";
  const TemporaryFolder folder(memory_folder());
  const std::string path = folder / "a.parquet";
  for (const char* name : {"chats.parquet", "ids.parquet", "codec_none.parquet"}) {
    const std::string sound = read_file(cat(testing::kSourceFolder, "/tests/golden/parquet/", name));
    fuzz(name, sound, 1000, [&](const std::string& bytes, Problems& problems) {
      write_file(path, bytes);
      for (const prepare::Line& line : prepare::read_jsonl(path, 1000, problems)) {
        EXPECT_TRUE(line.text || line.chat || !line.ids.empty());
      }
    });
  }
}

TEST(Fuzz, TokenFile) {
  const TemporaryFolder folder(memory_folder());
  {
    prepare::TokenFileWriter writer(folder / "sound", 100);
    const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5, 6, 7};
    for (const std::size_t length : {7, 3, 5}) {
      writer.add_sequence(std::span(ids).first(length), std::span(ids).first(length));
      writer.end_document();
    }
    writer.finish();
  }
  const auto files = {".idx", ".bin", ".labels.bin"};
  for (const char* broken : files) {
    for (const char* file : files) write_file(folder / (cat("a", file)), read_file(folder / (cat("sound", file))));
    fuzz(cat("tokens", broken), read_file(folder / (cat("sound", broken))), 3000,
         [&](const std::string& text, Problems&) {
           write_file(folder / (cat("a", broken)), text);
           const prepare::TokenFile file(folder / "a");
           file.check_ids(100);
           std::vector<std::int32_t> out;
           for (std::int64_t s = 0; s < file.sequences(); ++s) {
             out.resize(static_cast<std::size_t>(file.length(s)));
             file.read(file.begin(s), out);
             file.read_labels(file.begin(s), out);
           }
         });
  }
}

TEST(Fuzz, Checkpoint) {
  using checkpoint::testing::Host;
  const TemporaryFolder folder(memory_folder());
  const std::vector<checkpoint::testing::Spec> specs = {{"embed", {5, 3}}, {"norm", {4}, DType::bf16}};
  const std::string saved =
      checkpoint::testing::save({.root = folder.path(), .step = 3}, checkpoint::testing::cut_flat(specs, 2, 1));
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(saved)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 3u);
  for (const std::string& file : files) {
    const std::string sound = read_file(file);
    fuzz(fs::path(file).filename().string(), sound, 3000, [&](const std::string& text, Problems& problems) {
      write_file(file, text);
      checkpoint::Checkpoint found = checkpoint::Checkpoint::open(saved);
      found.verify(problems);
      if (!problems.empty()) return;
      std::vector<Host> whole = checkpoint::testing::cut_flat(specs, 1);
      found.read(whole[0].states);
      // Checksums cover every byte: what is accepted equals what was saved.
      EXPECT_TRUE(whole[0].holds(1));
    });
    write_file(file, sound);
  }
}

}  // namespace readers_test
}  // namespace hawser

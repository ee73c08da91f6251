// Compares tokenizers of every kind with the originals on hard strings. Tests broken files of the kinds other than
// tokenizer.json.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "text/tokenizers/charsmap.h"
#include "text/tokenizers/sentence_piece.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/trie.h"

namespace hawser::text {
namespace tokenizer_kinds_test {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kSource = testing::kSourceFolder;
const fs::path kGolden = kSource / "tests/golden/tokenizers";

std::vector<std::string> hard_strings() {
  const std::string data = read_file(kGolden / "hard_strings.bin");
  std::vector<std::string> out;
  for (std::size_t at = 0; at + 4 <= data.size();) {
    std::uint32_t size;
    std::memcpy(&size, data.data() + at, 4);
    out.push_back(data.substr(at + 4, size));
    at += 4 + size;
  }
  return out;
}

// Hash of the ids of a text and of its decoded text: 8 hexadecimal digits, as in small.json.
std::string answer_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids, false);
  std::string data(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]);
  data += tokenizer.decode(ids);
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", static_cast<unsigned>(fnv1a(data)));
  return digits;
}

// Folder of a tokenizer of small.json: next to that file, or in inputs.
fs::path folder_of(const std::string& name) {
  for (const fs::path& folder : {kGolden / name, kSource / "inputs/tokenizers" / name, kSource / "inputs" / name}) {
    if (fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer.model") ||
        fs::exists(folder / "tekken.json")) {
      return folder;
    }
  }
  return {};
}

TEST(TokenizerKinds, MatchTheOriginals) {
  const Json expected = Json::parse(read_file(kGolden / "small.json"))["tokenizers"];
  const auto texts = hard_strings();
  ASSERT_GT(texts.size(), 500u);
  ASSERT_GE(expected.size(), 16u);
  std::string missing;
  for (const auto& [name, answers] : expected.items()) {
    const fs::path folder = folder_of(name);
    if (folder.empty()) {
      missing += " " + name;
      continue;
    }
    const auto tokenizer = load_tokenizer(folder.string());
    const std::string& digits = answers.get_ref<const std::string&>();
    ASSERT_EQ(digits.size(), texts.size() * 8) << name;
    int wrong = 0;
    for (std::size_t i = 0; i < texts.size() && wrong < 3; ++i) {
      const bool same = answer_of(*tokenizer, texts[i]) == digits.substr(i * 8, 8);
      EXPECT_TRUE(same) << name << ", text " << i << ": " << texts[i];
      wrong += !same;
    }
  }
  EXPECT_EQ(missing, "") << "missing tokenizers; try scripts/fetch-inputs --what tokenizers";
}

TEST(TokenizerKinds, AddSpecialTokensOfTheFile) {
  const auto around = [](const char* name) {
    const auto tokenizer = load_tokenizer((kGolden / name).string());
    std::vector<std::int32_t> ids, bare;
    tokenizer->encode("the", ids, true);
    tokenizer->encode("the", bare, false);
    EXPECT_TRUE(std::search(ids.begin(), ids.end(), bare.begin(), bare.end()) != ids.end());
    return std::vector<std::int32_t>{ids.front(), ids.back(), static_cast<std::int32_t>(ids.size() - bare.size())};
  };
  EXPECT_EQ(around("bert-style"), (std::vector<std::int32_t>{2, 3, 2}));
  EXPECT_EQ(around("xlm-style"), (std::vector<std::int32_t>{1, 2, 2}));
  EXPECT_EQ(around("llama2-style")[0], 1);
  EXPECT_EQ(around("sp-bpe")[0], 1);
  EXPECT_EQ(load_tokenizer((kGolden / "sp-bpe").string())->bos(), 1);
  EXPECT_EQ(load_tokenizer((kGolden / "sp-bpe").string())->eos(), 2);
}

std::string joined_surfaces(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string out;
  for (const std::int32_t id : ids) out += tokenizer.surface(id);
  return out;
}

TEST(TokenizerKinds, SurfacesMakeTheText) {
  const std::string text = "It is  the\n\"one\" h\u00e9 \U0001f600 of  them";
  const auto across = load_tokenizer((kGolden / "sp-bpe-across").string());  // has no bytes
  std::vector<std::int32_t> plain;
  across->encode("It is  the one", plain, false);
  EXPECT_EQ(joined_surfaces(*across, plain), "It is  the one");
  for (const auto& [name, prefix] : {std::pair("sp-bpe-bytes", " "),
                                     {"sp-unigram-bytes", " "},
                                     {"llama2-style", " "},
                                     {"mistral-style", " "},
                                     {"roberta-style", " "},
                                     {"falcon-style", ""},
                                     {"qwen-style", ""}}) {
    const auto tokenizer = load_tokenizer((kGolden / name).string());
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids, false);
    EXPECT_EQ(joined_surfaces(*tokenizer, ids), prefix + text) << name;
    EXPECT_EQ(tokenizer->surface(-1), "");
    EXPECT_EQ(tokenizer->surface(tokenizer->vocab_size()), "");
    EXPECT_FALSE(tokenizer->is_special(-1) || tokenizer->is_special(tokenizer->vocab_size()));
    EXPECT_FALSE(tokenizer->is_special(ids[0])) << name;
  }
  for (const char* name : {"sp-bpe-bytes", "llama2-style"}) {
    const auto tokenizer = load_tokenizer((kGolden / name).string());
    EXPECT_EQ(tokenizer->surface(0), "") << "unknown";
    EXPECT_EQ(tokenizer->surface(1), "<s>");
    EXPECT_TRUE(tokenizer->is_special(1) && tokenizer->is_special(2)) << name;
    EXPECT_EQ(tokenizer->surface(*tokenizer->id_of("<0xE9>")), "\xe9");
    EXPECT_EQ(tokenizer->surface(*tokenizer->id_of("\u2581the")), " the");
  }
  const auto mask = load_tokenizer((kGolden / "roberta-style").string());
  EXPECT_EQ(mask->surface(*mask->id_of("<mask>")), "<mask>");
  const auto bert = load_tokenizer((kGolden / "bert-cased-style").string());
  EXPECT_EQ(bert->surface(*bert->id_of("##ing")), "ing");
  EXPECT_EQ(bert->surface(*bert->id_of("the")), " the");
  const auto clip = load_tokenizer((kGolden / "clip-style").string());
  EXPECT_EQ(clip->surface(*clip->id_of("the</w>")), "the ");
}

// Where the map replaces a letter, its mark is lost if both have at most five bytes, as in the library.
TEST(TokenizerKinds, ShortClustersAreReplacedAsAWhole) {
  const auto tokenizer = load_tokenizer((kGolden / "xlm-style").string());
  const auto ids = [&](const std::string& text) {
    std::vector<std::int32_t> out;
    tokenizer->encode(text, out, false);
    return out;
  };
  EXPECT_EQ(ids("\uFB01\u0301"), ids("fi"));        // the ligature fi: five bytes with its mark
  EXPECT_EQ(ids("\uFB01\u1DC4"), ids("fi\u1DC4"));  // six bytes
}

// A text may end within a character.
TEST(TokenizerKinds, EachByteThatIsNoCharacterIsShown) {
  for (const char* name : {"sp-bpe-bytes", "sp-unigram-bytes", "llama2-style"}) {
    const auto tokenizer = load_tokenizer((kGolden / name).string());
    const std::vector<std::int32_t> ids = {*tokenizer->id_of("<0xE2>"), *tokenizer->id_of("<0x82>"),
                                           *tokenizer->id_of("\u2581the")};
    EXPECT_EQ(tokenizer->decode(ids), "\uFFFD\uFFFD the") << name;
  }
}

class TokenizerFiles : public ::testing::Test {
 protected:
  std::string rejection(const char* name, const std::string& content) {
    std::ofstream(folder_.path(name), std::ios::binary) << content;
    try {
      load_tokenizer(folder_.path(name));
    } catch (const UserError& error) {
      const std::string text = error.what();
      return text.substr(text.find(name) + std::strlen(name) + 2);
    }
    return "accepted";
  }
  TemporaryFolder folder_;
};

std::string piece(const std::string& text, int type) {
  const std::string inner =
      std::string("\x0A") + static_cast<char>(text.size()) + text + "\x18" + static_cast<char>(type);
  return std::string("\x0A") + static_cast<char>(inner.size()) + inner;
}

TEST_F(TokenizerFiles, RejectsBrokenSentencePieceModels) {
  const std::string bpe("\x12\x02\x18\x02", 4), word("\x12\x02\x18\x03", 4);
  const std::string unknown = piece("<unk>", 2);
  EXPECT_EQ(rejection("a.model", unknown + piece("a", 1) + bpe), "accepted");
  EXPECT_EQ(rejection("a.model", unknown + piece("ab", 1) + bpe),
            "piece \"ab\" contains the character \"a\", which is not a piece");
  EXPECT_EQ(rejection("a.model", unknown + piece("a", 1) + word),
            "only BPE and Unigram models are supported, not WORD or CHAR");
  EXPECT_EQ(rejection("a.model", unknown + piece("a", 1) + piece("a", 1)), "piece \"a\" appears twice");
  EXPECT_EQ(rejection("a.model", piece("a", 1)), "no piece of type UNKNOWN");
  EXPECT_EQ(rejection("a.model", unknown + piece("<0xZZ>", 6)), "piece \"<0xZZ>\" is not the name of a byte");
  EXPECT_EQ(rejection("a.model", unknown + piece("a", 9)), "unknown type 9 of piece \"a\"");
  EXPECT_EQ(rejection("a.model", unknown + piece("a", 1).substr(0, 4)).substr(0, 27), "not a SentencePiece model: ");
  EXPECT_EQ(rejection("a.model", std::string("\x12\x00", 2)), "not a SentencePiece model: it has no pieces");
  EXPECT_EQ(rejection("a.model", "IQ== 0\nIg== 1\n").substr(0, 25), "tiktoken rank files are n");
  // A truncated model is rejected or loads; it never crashes.
  const std::string model = read_file(kGolden / "sp-bpe/tokenizer.model");
  for (std::size_t size = 0; size < model.size(); size += 97) {
    EXPECT_FALSE(rejection("a.model", model.substr(0, size)).empty());
  }
}

// Randomly corrupted files of every kind are rejected with complete messages, or load and return ids of the vocabulary.
TEST_F(TokenizerFiles, SurviveRandomCorruption) {
  std::mt19937 dice(1);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(dice()) % bound; };
  int accepted = 0, rejected = 0;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    if (!entry.is_directory()) continue;
    const bool json = fs::exists(entry.path() / "tokenizer.json");
    const std::string name = json ? "tokenizer.json" : "tokenizer.model";
    const std::string sound = read_file(entry.path() / name);
    for (int round = 0; round < 60; ++round) {
      std::string broken = sound;
      // Most parts of a JSON file other than the vocabulary are at its start.
      const std::size_t reach = json && round % 2 ? std::min<std::size_t>(3000, broken.size()) : broken.size();
      for (std::size_t n = 1 + below(3); n > 0; --n) {
        const std::size_t at = below(reach);
        switch (below(4)) {
          case 0:
            broken[at] = static_cast<char>(below(256));
            break;
          case 1:
            broken.erase(at, 1 + below(8));
            break;
          case 2:
            broken.insert(at, broken.substr(below(reach), below(20)));
            break;
          default:
            broken[at] = "0123456789\"{}[],:-"[below(18)];
        }
        if (broken.size() < reach) break;
      }
      const std::string path = folder_.path(name);
      std::ofstream(path, std::ios::binary) << broken;
      try {
        const auto tokenizer = load_tokenizer(path);
        std::vector<std::int32_t> ids;
        tokenizer->encode("It is, universally \xf0\x9f\x98\x80 acknowledged:\t1813! \xff", ids, true);
        for (const std::int32_t id : ids) ASSERT_LT(id, tokenizer->vocab_size()) << entry.path();
        tokenizer->decode(ids);
        ++accepted;
      } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()).substr(0, path.size()), path);
        ++rejected;
      }
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(rejected, 100);
}

Json tekken() {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Json file = {{"config",
                {{"pattern", "\\p{L}+|[^\\p{L}]"},
                 {"num_vocab_tokens", 258},
                 {"default_vocab_size", 268},
                 {"default_num_special_tokens", 10},
                 {"version", "v3"}}}};
  for (int byte = 0; byte < 256; ++byte) {
    const std::string code = {kAlphabet[byte >> 2], kAlphabet[(byte & 3) << 4], '=', '='};
    file["vocab"].push_back({{"rank", byte}, {"token_bytes", code}, {"token_str", nullptr}});
  }
  file["vocab"].push_back({{"rank", 256}, {"token_bytes", "YWI="}, {"token_str", "ab"}});
  file["vocab"].push_back({{"rank", 257}, {"token_bytes", "YmM="}, {"token_str", "bc"}});
  return file;
}

TEST_F(TokenizerFiles, Tekken) {
  std::ofstream(folder_.path("tekken.json")) << tekken().dump();
  const auto tokenizer = load_tokenizer(folder_.path(""));  // finds the file by name in the folder
  std::vector<std::int32_t> ids;
  tokenizer->encode("abc<s>", ids, true);
  EXPECT_EQ(ids,
            (std::vector<std::int32_t>{1, 266, 10 + 'c', 10 + '<', 10 + 's', 10 + '>'}));  // special tokens are text
  EXPECT_EQ(tokenizer->decode(ids), "<s>abc<s>");
  EXPECT_EQ(tokenizer->decode(ids, true), "abc<s>");
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->vocab_size(), 268);
  const auto with = [](const char* pointer, const Json& value) {
    Json file = tekken();
    file[Json::json_pointer(pointer)] = value;
    return file.dump();
  };
  EXPECT_EQ(rejection("t.json", with("/vocab/7/token_bytes", "?")), "not base64, or empty at vocab[7].token_bytes");
  EXPECT_EQ(rejection("t.json", with("/vocab/7/rank", 8)).substr(0, 32), "rank used twice at vocab[8].rank");
  EXPECT_EQ(rejection("t.json", with("/config/default_vocab_size", 100)),
            "fewer than 256 tokens at config.default_vocab_size");
  EXPECT_EQ(rejection("t.json", with("/config/pattern", "(")).substr(0, 41),
            "regular expression does not compile: miss");
  EXPECT_EQ(rejection("t.json", with("/config/pattern", 5)).substr(0, 16), "unexpected value");
  EXPECT_EQ(rejection("t.json", with("/special_tokens", Json::array({{{"rank", 99}, {"token_str", "x"}}}))),
            "above config.default_num_special_tokens at special_tokens[0].rank");
}

TEST(TokenizerKinds, NameTheirFiles) {
  EXPECT_EQ(tokenizer_file_name("\x0a\x0e\x0a\x05<unk>"), "tokenizer.model");
  EXPECT_EQ(tokenizer_file_name("\n" + tekken().dump()), "tekken.json");
  EXPECT_EQ(tokenizer_file_name(R"({"model": {}, "config": {}, "vocab": []})"), "tokenizer.json");
  for (const char* none : {"", "{", "[]"}) EXPECT_EQ(tokenizer_file_name(none), "tokenizer.json") << none;
  for (const char* name : {"sp-bpe", "sp-unigram"}) {
    EXPECT_EQ(tokenizer_file_name(read_file(kGolden / name / "tokenizer.model")), "tokenizer.model");
  }
}

TEST_F(TokenizerFiles, RejectsMissingFiles) {
  try {
    load_tokenizer(folder_.path(""));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no tokenizer in this folder (expected tokenizer.json, tekken.json or "),
              std::string::npos);
  }
  try {
    load_tokenizer(folder_.path("gone.json"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              folder_.path("gone.json") + ": cannot read the tokenizer: No such file or directory");
  }
}

TEST(Trie, FindsAllPrefixes) {
  const Trie trie({{"a", 0}, {"abc", 1}, {"abd", 2}, {"\xFF\xFE", 3}, {"abc", 4}, {std::string(1, '\0'), 5}});
  const auto values = [&](std::string_view text) {
    std::vector<std::int32_t> out;
    std::uint32_t node = Trie::kRoot;
    for (const char c : text) {
      if (!trie.go(node, static_cast<unsigned char>(c))) break;
      if (trie.value(node) != Trie::kNone) out.push_back(trie.value(node));
    }
    return out;
  };
  EXPECT_EQ(values("abcd"), (std::vector<std::int32_t>{0, 4}));
  EXPECT_EQ(values("abd"), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(values("\xFF\xFE"), std::vector<std::int32_t>{3});
  EXPECT_EQ(values(std::string(1, '\0')), std::vector<std::int32_t>{5});
  EXPECT_TRUE(values("b").empty());
}

TEST(Charsmap, SurvivesBrokenTables) {
  EXPECT_TRUE(Charsmap().empty());
  for (const std::string& bytes :
       {std::string("abc"), std::string(8, '\xFF'), std::string("\4\0\0\0aaaa", 8), std::string("\4\0\0\0aaaab", 9)}) {
    EXPECT_THROW(Charsmap{bytes}, std::invalid_argument);
  }
  const Charsmap map(std::string("\4\0\0\0", 4) + "\xFF\xFF\xFF\x7F" + std::string("x\0", 2));
  EXPECT_FALSE(map.longest("abc"));
}

}  // namespace tokenizer_kinds_test
}  // namespace hawser::text

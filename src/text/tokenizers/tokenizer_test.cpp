#include "text/tokenizers/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "base/utf8.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/recent_unicode.h"
#include "text/tokenizers/regex.h"

namespace hawser::text {
namespace tokenizer_test {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kSource = testing::kSourceFolder;

// FNV-1a over little-endian int32, as in tools/golden.
std::string hash_of(const std::vector<std::int32_t>& ids) {
  const auto hash = fnv1a({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]});
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool add_special = false) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids, add_special);
  return ids;
}

// A small file for tests to modify: all bytes and a few merges.
Json small_file() {
  Json vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string token;
    // The byte-level alphabet by definition: printable Latin-1 is unchanged, other bytes map to U+0100 and up in order.
    static char32_t next;
    if (byte == 0) next = 0x100;
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    append_utf8(printable ? byte : next++, token);
    vocabulary[token] = byte;
  }
  vocabulary["he"] = 256;
  vocabulary["ll"] = 257;
  vocabulary["hell"] = 258;
  vocabulary["hello"] = 259;
  vocabulary["\u0120x"] = 260;
  return {{"version", "1.0"},
          {"added_tokens", Json::array({{{"id", 261}, {"content", "<|endoftext|>"}, {"special", true}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"h e", "l l", "\u0120 x", "he ll"}}}}};
}

class TokenizerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const Json& file) {
    const std::string path = folder_.path("tokenizer.json");
    std::ofstream(path) << file.dump();
    return load_tokenizer(path);
  }
  std::string rejection(const Json& file) {
    try {
      load(file);
    } catch (const UserError& error) {
      std::string text = error.what();
      const std::string name = folder_.path("tokenizer.json") + ": ";
      for (std::size_t at; (at = text.find(name)) != text.npos;) text.erase(at, name.size());
      return text;
    }
    return "accepted";
  }
  TemporaryFolder folder_;
};

// Every tokenizer of tests/golden/tokenizers: ids of hard lines, of the page and of complete novels, and decoding.
class Golden : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Golden, EqualsTheTokenizersLibrary) {
  const auto [name, file] = GetParam();
  ASSERT_TRUE(fs::exists(kSource / file)) << file << ": no such file; try scripts/fetch-inputs";
  const Json expected = Json::parse(read_file(kSource / "tests/golden/tokenizers/expected.json"))["tokenizers"][name];
  const auto tokenizer = load_tokenizer((kSource / file).string());
  EXPECT_EQ(tokenizer->vocab_size(), expected["entries"].get<int>());

  const std::string page = read_file(kSource / "tests/golden/tokenizers/hard_unicode.txt");
  EXPECT_EQ(encode(*tokenizer, page), expected["page"].get<std::vector<std::int32_t>>());
  std::size_t at = 0;
  for (std::size_t line = 0; line < expected["lines"].size(); ++line) {
    const std::size_t end = std::min(page.find('\n', at), page.size());
    const std::string text = page.substr(at, end - at);
    EXPECT_EQ(encode(*tokenizer, text), expected["lines"][line].get<std::vector<std::int32_t>>()) << "line " << line;
    at = end + 1;
  }
  for (const Json& item : expected["decode"]) {
    const auto ids = item["ids"].get<std::vector<std::int32_t>>();
    EXPECT_EQ(tokenizer->decode(ids), item["text"].get<std::string>());
    EXPECT_EQ(tokenizer->decode(ids, true), item["text_without_special"].get<std::string>());
  }
  ASSERT_TRUE(fs::exists(kSource / "inputs/text")) << "no inputs/text; try scripts/fetch-inputs";
  for (const auto& [novel, facts] : expected["novels"].items()) {
    const std::string text = read_file(kSource / "inputs/text" / novel);
    const auto ids = encode(*tokenizer, text);
    EXPECT_EQ(static_cast<int>(ids.size()), facts["tokens"].get<int>()) << novel;
    EXPECT_EQ(hash_of(ids), facts["ids_fnv1a64"].get<std::string>()) << novel;
    if (expected["lossy_lines"].empty()) {
      EXPECT_TRUE(tokenizer->decode_bytes(ids) == text) << novel;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         ::testing::Values(std::tuple("quickstart", "recipes/quickstart-tokenizer/tokenizer.json"),
                                           std::tuple("smollm2", "inputs/smollm2/tokenizer.json"),
                                           std::tuple("llama3", "inputs/tokenizers/llama3/tokenizer.json")),
                         [](const auto& parameter) { return std::string(std::get<0>(parameter.param)); });

// transformers uses the declared token, too. A token of another name than the common ones was silently not used.
TEST_F(TokenizerTest, TheEndTokenIsTheDeclaredOne) {
  Json file = small_file();
  file["added_tokens"].push_back({{"id", 262}, {"content", "[DONE]"}, {"special", true}});
  const auto plain = load(file)->fingerprint();
  EXPECT_EQ(load(file)->eos(), 261);
  const auto declare = [&](const char* name, const Json& eos) {
    std::ofstream(folder_.path(name)) << Json{{"eos_token", eos}}.dump();
  };
  declare("special_tokens_map.json", {{"content", "[DONE]"}, {"lstrip", false}});
  EXPECT_EQ(load(file)->eos(), 262);
  EXPECT_NE(load(file)->fingerprint(), plain);  // data prepared with the other token are stale
  declare("tokenizer_config.json", "<|endoftext|>");
  EXPECT_EQ(load(file)->eos(), 262);  // the map overrides it
  std::ofstream(folder_.path("tokenizer_config.json"))
      << Json{{"eos_token", "<|endoftext|>"}, {"added_tokens_decoder", Json::object()}}.dump();
  EXPECT_EQ(load(file)->eos(), 261);  // the map is not read
  declare("tokenizer_config.json", "[DONE]");
  declare("special_tokens_map.json", nullptr);
  EXPECT_EQ(load(file)->eos(), 261);  // null overrides, too
  std::filesystem::remove(folder_.path("special_tokens_map.json"));
  EXPECT_EQ(load(file)->eos(), 262);
  declare("tokenizer_config.json", "[UNKNOWN]");
  try {
    load(file);
    FAIL() << "an unknown token is silently another one";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), folder_.path("tokenizer_config.json") +
                                             ": the tokenizer does not have this token (expected a token of "
                                             "tokenizer.json, got [UNKNOWN]) at eos_token");
  }
}

// transformers adds tokens that only the tokenizer's settings name, in this order: by id those of
// added_tokens_decoder, special tokens by name, further special tokens. One of the vocabulary keeps its id.
TEST_F(TokenizerTest, TokensOfTheSettingsAreAdded) {
  const Json file = small_file();
  const auto ids = [&](const nlohmann::ordered_json& settings) {
    std::ofstream(folder_.path("tokenizer_config.json")) << settings.dump();
    std::vector<std::int32_t> out;
    load(file)->encode("A<x> <y>", out, false);
    return out;
  };
  const auto plain = ids(Json::object());
  const auto fingerprint = load(file)->fingerprint();
  ASSERT_EQ(plain.size(), 8u);
  const auto with = [&](std::int32_t x, std::int32_t y) { return std::vector<std::int32_t>{plain[0], x, plain[4], y}; };
  const auto token = [](const char* content) { return Json{{"content", content}, {"special", true}}; };
  EXPECT_EQ(ids({{"added_tokens_decoder", {{"300", token("<y>")}, {"290", token("<x>")}}}}), with(262, 263));
  EXPECT_NE(load(file)->fingerprint(), fingerprint);
  EXPECT_EQ(load(file)->decode_bytes(with(262, 263), true), "A ");
  EXPECT_EQ(ids({{"bos_token", "<y>"}, {"extra_special_tokens", {"<x>"}}}), with(263, 262));
  EXPECT_EQ(ids({{"additional_special_tokens", {"<y>", token("<x>")}}}), with(263, 262));
  EXPECT_EQ(ids({{"pad_token", "<y>"}}), plain);
  // That of padding takes an id. The others have the order of the file.
  EXPECT_EQ(ids({{"pad_token", "<p>"}, {"extra_special_tokens", {"<x>", "<y>"}}}), with(263, 264));
  EXPECT_EQ(ids({{"pad_token", "<|endoftext|>"}, {"extra_special_tokens", {"<x>", "<y>"}}}), with(262, 263));
  const auto ordered = [](const char* text) { return nlohmann::ordered_json::parse(text); };
  EXPECT_EQ(ids(ordered(R"({"image_token": "<x>", "audio_token": "<y>"})")), with(262, 263));
  EXPECT_EQ(ids(ordered(R"({"extra_special_tokens": {"image_token": "<x>", "audio_token": "<y>"}})")), with(262, 263));
  EXPECT_EQ(ids(ordered(R"({"extra_special_tokens": {"a": "<x>", "b_token": "<z>"}, "b_token": "<y>",
                            "additional_special_tokens": ["<y>"]})")),
            with(263, 264));
  Json strip = token("<x>");
  strip["rstrip"] = true;
  EXPECT_EQ(ids({{"additional_special_tokens", {strip, "<y>"}}}), (std::vector<std::int32_t>{plain[0], 262, 263}));
  const auto letter = ids({{"bos_token", "A"}});  // of the vocabulary: its id, but now special
  EXPECT_EQ(letter, plain);
  EXPECT_EQ(load(file)->decode_bytes(letter, true), "<x> <y>");
}

// The `tokenizers` library marks the piece that begins in the first character of the original text, also where a
// normalizer inserts text before it and a pre-tokenizer removes that text.
TEST_F(TokenizerTest, MetaspaceMarksTheFirstPieceOfTheOriginalText) {
  const auto ids = [&](const Json& normalizer, const std::string& text, const Json& added = Json::array()) {
    const auto tokenizer = load(
        {{"version", "1.0"},
         {"added_tokens", added},
         {"normalizer", normalizer},
         {"pre_tokenizer",
          {{"type", "Sequence"},
           {"pretokenizers",
            Json::array(
                {{{"type", "WhitespaceSplit"}},
                 {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}}})}}},
         {"post_processor", nullptr},
         {"decoder", nullptr},
         {"model",
          {{"type", "BPE"},
           {"unk_token", "<unk>"},
           {"vocab",
            {{"<unk>", 0}, {"▁", 3}, {"a", 4}, {"b", 5}, {"中", 7}, {"\u0308", 8}, {"⁄", 9}, {"2", 10}, {"1", 11}}},
           {"merges", Json::array()}}}});
    return encode(*tokenizer, text);
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ids(nullptr, "ab ab"), (Ids{3, 4, 5, 4, 5}));
  EXPECT_EQ(ids({{"type", "Prepend"}, {"prepend", " "}}, "ab ab"), (Ids{3, 4, 5, 4, 5}));
  EXPECT_EQ(ids({{"type", "BertNormalizer"},
                 {"clean_text", true},
                 {"handle_chinese_chars", true},
                 {"strip_accents", false},
                 {"lowercase", false}},
                "中a"),
            (Ids{3, 7, 4}));
  EXPECT_EQ(ids({{"type", "NFKC"}}, "¨a"), (Ids{3, 8, 4}));
  EXPECT_EQ(ids({{"type", "Replace"}, {"pattern", {{"Regex", "^"}}}, {"content", " "}}, "ab ab"), (Ids{3, 4, 5, 4, 5}));
  EXPECT_EQ(ids(nullptr, " ab"), (Ids{4, 5}));  // the first character is the space
  // NFKC makes 1⁄2 of ½. What follows an added token in it still begins in the first character.
  const Json one = Json::array({{{"id", 11}, {"content", "1"}, {"normalized", true}, {"special", false}}});
  EXPECT_EQ(ids({{"type", "NFKC"}}, "½a", one), (Ids{11, 3, 9, 10, 4}));
  EXPECT_EQ(ids({{"type", "NFKC"}}, "½1a", one), (Ids{11, 3, 9, 10, 11, 4}));
  EXPECT_EQ(ids({{"type", "NFKC"}}, "1½a", one), (Ids{11, 11, 9, 10, 4}));
  EXPECT_EQ(ids({{"type", "NFKC"}}, "1ab", one), (Ids{11, 4, 5}));
}

TEST_F(TokenizerTest, MergesByRankAndMatchesAddedTokens) {
  const auto tokenizer = load(small_file());
  EXPECT_EQ(encode(*tokenizer, "hello"), (std::vector<std::int32_t>{258, 'o'}));
  EXPECT_EQ(encode(*tokenizer, "hello x<|endoftext|>he"), (std::vector<std::int32_t>{258, 'o', 260, 261, 256}));
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->eos(), 261);
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(tokenizer->id_of("hell"), 258);
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{258, 'o', 261, -1, 9999}), "hello<|endoftext|>");
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{258, 'o', 261}, true), "hello");
  Json whole = small_file();
  whole["model"]["ignore_merges"] = true;  // "hello" is a token that no merge reaches
  EXPECT_EQ(encode(*load(whole), "hello"), std::vector<std::int32_t>{259});
}

TEST_F(TokenizerTest, ReadsMergesAsPairsAndTemplates) {
  Json file = small_file();
  file["model"]["merges"] = Json::array({Json::array({"h", "e"}), Json::array({"l", "l"})});
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<b>"}}}}, {{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<e>"}}}}}},
         {"special_tokens", {{"<b>", {{"ids", {5}}}}, {"<e>", {{"ids", {6, 7}}}}}}}}}};
  const auto tokenizer = load(file);
  EXPECT_EQ(encode(*tokenizer, "hell", true), (std::vector<std::int32_t>{5, 256, 257, 6, 7}));
  EXPECT_EQ(encode(*tokenizer, "hell", false), (std::vector<std::int32_t>{256, 257}));
  EXPECT_EQ(tokenizer->bos(), 5);
}

TEST_F(TokenizerTest, ReplacesInvalidUtf8LikePython) {
  const auto tokenizer = load(small_file());
  const std::string bad = "a\xE2\x82z\xFF\xED\xA0\x80\xF0\x9F\x98";
  const std::string repaired = "a\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD";
  EXPECT_EQ(replace_invalid_utf8(bad), repaired);
  EXPECT_EQ(find_invalid_utf8(bad), 1u);
  EXPECT_EQ(encode(*tokenizer, bad), encode(*tokenizer, repaired));
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, repaired)), repaired);
  EXPECT_EQ(find_invalid_utf8("0123456789abcdef\xC3\xA9"), std::string::npos);
}

TEST_F(TokenizerTest, EncodesLongWordsWithTheHeap) {
  const auto tokenizer = load(small_file());
  std::string word;
  std::vector<std::int32_t> expected;
  for (int i = 0; i < 50000; ++i) {
    word += "hello";
    expected.insert(expected.end(), {258, 'o'});
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(*tokenizer, word), expected);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(TokenizerTest, EncodesFromManyThreads) {
  const auto tokenizer = load(small_file());
  const std::string text = read_file(kSource / "tests/golden/tokenizers/hard_unicode.txt");
  const auto expected = encode(*tokenizer, text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) wrong += encode(*tokenizer, text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(TokenizerTest, RejectsUnsupportedPartsByName) {
  const auto with = [](const std::string& pointer, const Json& value) {
    Json file = small_file();
    file[Json::json_pointer(pointer)] = value;
    return file;
  };
  EXPECT_EQ(rejection(with("/model/type", "WordLevel")), "model not supported: WordLevel at model");
  EXPECT_EQ(rejection(with("/model/byte_fallback", true)), "byte_fallback not supported at model.byte_fallback");
  EXPECT_EQ(rejection(with("/model/dropout", 0.1)), "dropout not supported at model.dropout");
  EXPECT_EQ(rejection(with("/model/end_of_word_suffix", "</w>")), "not supported at model.end_of_word_suffix");
  EXPECT_EQ(rejection(with("/normalizer", {{"type", "Rot13"}})), "normalizer not supported: Rot13 at normalizer");
  EXPECT_EQ(rejection(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}})),
            "not base64 at normalizer.precompiled_charsmap");
  EXPECT_EQ(rejection(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "////////"}})),
            "broken precompiled_charsmap: wrong table size at normalizer.precompiled_charsmap");
  EXPECT_EQ(rejection(with("/decoder", {{"type", "CTC"}})), "decoder not supported: CTC at decoder");
  EXPECT_EQ(rejection(with("/post_processor", {{"type", "Own"}})),
            "post_processor not supported: Own at post_processor");
  EXPECT_EQ(rejection(with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"a", -1}}, {"sep", {"b", 1}}}))
                .substr(0, 12),
            "bad token id");
  EXPECT_EQ(rejection(with("/surprise", 1)), "unknown key at surprise");
  EXPECT_EQ(rejection(with("/pre_tokenizer", {{"type", "UnicodeScripts"}})),
            "pre_tokenizer not supported: UnicodeScripts at pre_tokenizer");
  EXPECT_EQ(rejection(with("/pre_tokenizer", {{"type", "Sequence"},
                                              {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "ByteLevel"}}}}})),
            "second ByteLevel not supported at pre_tokenizer.pretokenizers[1]");
  EXPECT_EQ(rejection(with("/pre_tokenizer", {{"type", "Sequence"},
                                              {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Metaspace"}}}}})),
            "Metaspace after ByteLevel not supported at pre_tokenizer.pretokenizers[1]");
  EXPECT_NE(
      rejection(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}}))
          .find("regular expression does not compile"),
      std::string::npos);
  EXPECT_EQ(rejection(with("/model/vocab/he", 1e12)).substr(0, 12), "bad token id");
  EXPECT_EQ(rejection(with("/model/vocab/he", 3)).substr(0, 19), "token id used twice");
  EXPECT_EQ(rejection(with("/model/merges/0", "h zz")),
            "merge of tokens that are not in the vocabulary (got \"h zz\") at model.merges[0]");
  EXPECT_EQ(rejection(with("/model/merges", 5)), "wrong type (expected a list, got number) at model.merges");
  EXPECT_EQ(rejection(with("/model/vocab", "x")), "wrong type (expected an object, got string) at model.vocab");
  EXPECT_EQ(rejection(with("/added_tokens/0/content", 5)).substr(0, 16), "unexpected value");
  EXPECT_EQ(rejection(with("/added_tokens/0/id", -1)).substr(0, 12), "bad token id");
}

// A vocabulary of bytes that shows what a stage makes of a text.
Json bytes_file() {
  Json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocabulary[name] = byte;
  }
  return {{"model", {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

Json added(int id, const char* content, const char* flag = "special") {
  return {{"id", id}, {"content", content}, {flag, true}};
}

// The ids are those of `tokenizers` 0.23.3.
TEST_F(TokenizerTest, AssignsIdsOfAddedTokensLikeTheLibrary) {
  const auto with = [](const Json& tokens, int hole = 0) {
    Json file = bytes_file();
    if (hole > 0) file["model"]["vocab"]["q"] = hole;
    file["added_tokens"] = tokens;
    return file;
  };
  const std::string next = "added token without the next free id not supported (expected ";
  EXPECT_EQ(encode(*load(with({added(256, "<x>"), added(257, "<y>")})), "<y>a"), (std::vector<std::int32_t>{257, 'a'}));
  EXPECT_EQ(rejection(with({added(256, "<x>"), added(300, "<y>")})), next + "257, got 300) at added_tokens[1].id");
  EXPECT_EQ(rejection(with(Json::array({added(301, "<x>")}), 300)), next + "257, got 301) at added_tokens[0].id");
  EXPECT_EQ(encode(*load(with({added(257, "<x>"), added(258, "<y>")}, 300)), "<y>q"),
            (std::vector<std::int32_t>{258, 300}));
  EXPECT_EQ(rejection(with({added(300, "q"), added(301, "<y>")}, 300)), "accepted");
  EXPECT_EQ(rejection(with(Json::array({added(257, "<x>")}), 257)), "token id used twice at added_tokens[0].id");
  EXPECT_EQ(rejection(with({added(256, "<x>"), added(256, "<x>"), added(257, "<y>")})), "accepted");
  EXPECT_EQ(rejection(with({added(256, "<x>"), added(256, "<x>", "lstrip")})),
            "added token twice with different flags not supported at added_tokens[1]");
  EXPECT_EQ(rejection(with({added(256, "<a>", "rstrip"), added(257, "  ")})),
            "added token with rstrip together with one of white space not supported at added_tokens");
  EXPECT_EQ(rejection(with({added(256, "<a>", "lstrip"), added(257, "  ")})), "accepted");
  Json lower = with({added(256, "Foo", "normalized"), added(257, "foo", "normalized")});
  EXPECT_EQ(rejection(lower), "accepted");
  lower["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_EQ(rejection(lower), "added tokens with the same normalized text not supported at added_tokens[1]");
  Json strip = with(Json::array({added(256, " ", "normalized")}));
  EXPECT_EQ(rejection(strip), "accepted");
  strip["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(rejection(strip), "added token that normalizes to the empty text not supported at added_tokens[0]");
}

TEST_F(TokenizerTest, ReplacesInNormalizerAndDecoderLikeTheLibrary) {
  const auto replace = [](const char* kind, const char* pattern, const char* content) {
    return Json{{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
  };
  Json file = bytes_file();
  file["normalizer"] = replace("Regex", "\\p{Lo}++", "_");
  EXPECT_EQ(encode(*load(file), "a\U000105C6b"), (std::vector<std::int32_t>{'a', '_', 'b'}));  // Unicode 16
  file["normalizer"] = replace("String", "", "x");
  EXPECT_EQ(rejection(file), "empty pattern not supported at normalizer.pattern");
  file["normalizer"] = nullptr;
  file["decoder"] = replace("String", "", "x");
  EXPECT_EQ(rejection(file), "empty pattern not supported at decoder.pattern");
  file["added_tokens"] = Json::array({added(256, "baab")});
  file["decoder"] = replace("Regex", "a*", "-");
  EXPECT_EQ(load(file)->decode(std::vector<std::int32_t>{256}), "-b-b-");
}

TEST_F(TokenizerTest, ReportsFilesThatCannotBeRead) {
  EXPECT_THROW(load_tokenizer(folder_.path("none.json")), UserError);
  std::ofstream(folder_.path("tokenizer.json")) << "{\"model\": ";
  EXPECT_THROW(load_tokenizer(folder_.path("")), UserError);  // a folder selects the file in it
  std::ofstream(folder_.path("tokenizer.json")) << "[1]";
  EXPECT_THROW(load_tokenizer(folder_.path("")), UserError);
}

std::vector<std::string> split(const char* pattern, SplitBehavior behavior, bool invert, std::string_view text) {
  PreTokenizer pre;
  pre.add(PreTokenizer::Split{Pattern(pattern), behavior, invert});
  PreTokenizer::Scratch scratch;
  std::vector<std::string> pieces;
  pre.split(text, true, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(PreTokenizer, SplitsByEachBehavior) {
  using Pieces = std::vector<std::string>;
  using enum SplitBehavior;
  const char* text = "the-final--countdown";
  EXPECT_EQ(split("-", removed, false, text), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(split("-", isolated, false, text), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split("-", merged_with_previous, false, text), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split("-", merged_with_next, false, text), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split("-", contiguous, false, text), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split("[a-z]+", removed, true, text), (Pieces{"the", "final", "countdown"}));
}

TEST(Regex, InterpretsPatternsLikeOniguruma) {
  EXPECT_EQ(translate_oniguruma("[^\\s\\p{L}]", false).find("\\s"), std::string::npos);
  for (const char* rejected : {"\\h", "\\bx", "a{2}+", "[a&&b]", "[[:alpha:]]", "(?m:.)", "\\p{^L}", "[\\S]", "\\"}) {
    EXPECT_THROW(Regex{rejected}, std::invalid_argument) << rejected;
  }
  Regex::Scratch scratch;
  const Regex space("\\s");
  EXPECT_TRUE(space.find("\u3000", 0, scratch));
  EXPECT_TRUE(space.find("\u0085", 0, scratch));
  EXPECT_FALSE(space.find("\u180E", 0, scratch));  // in \s of PCRE2
  const Regex word("^\\w$");
  EXPECT_TRUE(word.find("\u0301", 0, scratch));  // marks count
  EXPECT_TRUE(word.find("\u203F", 0, scratch));  // connectors too
}

TEST(Regex, ReportsMatchesThatStopAtALimit) {
  const Regex slow("(?:(?:a|a)+)+(?<=b)$");
  Regex::Scratch scratch;
  EXPECT_THROW(slow.find(std::string(64, 'a'), 0, scratch), UserError);
}

TEST(Regex, MatchesCharactersNewerThanPcre2) {
  Regex::Scratch scratch;
  const Regex letter("^\\p{L}$"), other("^[^\\p{L}\\p{N}]$"), digit("^\\p{N}$");
  const std::string cjk = "\U00031350";     // Unicode 15
  const std::string number = "\U0001CCF0";  // Unicode 16
  scratch.look_at(cjk);
  EXPECT_TRUE(letter.find(cjk, 0, scratch));
  EXPECT_FALSE(other.find(cjk, 0, scratch));
  scratch.look_at(number);
  EXPECT_TRUE(digit.find(number, 0, scratch));
  EXPECT_FALSE(has_recent_characters("plain \u4E00 \u00E9 \U0001F600"));
}

}  // namespace tokenizer_test
}  // namespace hawser::text

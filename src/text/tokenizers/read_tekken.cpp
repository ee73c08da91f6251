// Reader of tekken.json: Mistral's byte-level vocabularies, with ranks as in tiktoken.
#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "text/tokenizers/base64.h"
#include "text/tokenizers/bpe.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/json_reader.h"

namespace hawser::text {
namespace {

// Special tokens of files up to version 7, which do not list them.
constexpr const char* kSpecialTokens[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};

constexpr std::int32_t kMaxSpecial = 1 << 16;  // each gets a name in memory, even if the file has none
constexpr std::size_t kLongestToken = 1024;    // add_merges looks up every split of a token

class TekkenReader {
 public:
  TekkenReader(JsonReader& reader, const Json& file) : reader_(reader), file_(file) {}

  TokenizerParts read() {
    read_sections();
    add_merges();
    return std::move(parts_);
  }

  Json as_json() {
    read_sections();
    Json added = Json::array(), model = {{"type", "BPE"}, {"ignore_merges", true}}, merges = Json::array();
    Json& vocabulary = model["vocab"] = Json::object();
    std::vector<std::string> names;  // by rank, in the byte-level alphabet
    for (const std::string& bytes : bytes_) {
      static constexpr auto kAlphabet = byte_level_alphabet();
      std::string& name = names.emplace_back();
      for (const char c : bytes) append_utf8(kAlphabet[static_cast<unsigned char>(c)], name);
      vocabulary[name] = special_ + static_cast<std::int32_t>(names.size()) - 1;
    }
    for (std::int32_t id = 0; id < special_; ++id) {
      vocabulary[parts_.tokens[id]] = id;
      added.push_back({{"id", id}, {"content", parts_.tokens[id]}, {"normalized", false}, {"special", true}});
    }
    for (const std::string& token : bytes_) {
      std::vector<std::array<std::int32_t, 2>> halves;
      for_each_merge(token, [&](std::int32_t left, std::int32_t right) { halves.push_back({left, right}); });
      std::ranges::sort(halves);
      for (const auto& [left, right] : halves) merges.push_back({names[left - special_], names[right - special_]});
    }
    model["merges"] = std::move(merges);
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", file_.at("config").at("pattern")}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    return {{"added_tokens", std::move(added)},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"model", std::move(model)}};
  }

 private:
  void read_sections() {
    reader_.section("config", [&] { read_config(); });
    reader_.problems().throw_if_any();
    reader_.section("special_tokens", [&] { read_special(); });
    reader_.section("vocab", [&] { read_vocabulary(); });
    reader_.problems().throw_if_any();
  }

  // Calls `visit` with the ids of both halves of a token, from the shortest left half on.
  template <class Visit>
  void for_each_merge(std::string_view token, Visit visit) const {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = words_by_bytes_.find(token.substr(0, cut));
      if (left == words_by_bytes_.end()) continue;
      const auto right = words_by_bytes_.find(token.substr(cut));
      if (right != words_by_bytes_.end()) visit(left->second, right->second);
    }
  }

  void read_config() {
    const Json& config = file_.at("config");
    parts_.pre_tokenizer.add(
        PreTokenizer::Split{Pattern(config.at("pattern").get<std::string>()), SplitBehavior::isolated, false});
    const Json &size = config.at("default_vocab_size"), &special = config.at("default_num_special_tokens");
    if (!reader_.check_id(size, "config.default_vocab_size") ||
        !reader_.check_id(special, "config.default_num_special_tokens")) {
      return;
    }
    special_ = special.get<std::int32_t>();
    words_ = size.get<std::int32_t>() - special_;
    if (special_ > kMaxSpecial) reader_.reject("too large", "config.default_num_special_tokens");
    if (words_ < 256) reader_.reject("fewer than 256 tokens", "config.default_vocab_size");
  }

  // Special tokens have the first ids; those without a name get one.
  void read_special() {
    std::vector<std::string> names(special_);
    if (const Json& tokens = JsonReader::member(file_, "special_tokens"); !tokens.is_null()) {
      std::size_t index = 0;
      for (const Json& token : reader_.list(tokens, "special_tokens")) {
        const std::string at = cat("special_tokens[", index++, "]");
        const Json& rank = token.at("rank");
        if (!reader_.check_id(rank, at + ".rank")) continue;
        if (rank >= special_) {
          reader_.reject("above config.default_num_special_tokens", at + ".rank");
          continue;
        }
        names[rank.get<std::size_t>()] = token.at("token_str").get<std::string>();
      }
    } else {
      std::copy_n(std::begin(kSpecialTokens), std::min(std::size(kSpecialTokens), names.size()), names.begin());
    }
    std::vector<AddedToken> tokens;
    for (std::int32_t id = 0; id < special_; ++id) {
      std::string name = names[id].empty() ? cat("<SPECIAL_", id, ">") : names[id];
      tokens.push_back({.id = id, .content = name, .special = true});
      parts_.ids.emplace(name, id);
      parts_.special.push_back(id);
      parts_.put_token(id, name);
      parts_.bytes.push_back(std::move(name));
    }
    parts_.of_conversations = AddedTokens(std::move(tokens), [](const std::string& content) { return content; });
  }

  // Reads tokens by rank; ignores ranks beyond the size of the vocabulary.
  void read_vocabulary() {
    const auto& vocabulary = reader_.list(file_.at("vocab"), "vocab");
    if (vocabulary.size() < static_cast<std::size_t>(words_)) {
      return reader_.reject(cat("fewer tokens than config requires: ", vocabulary.size(), " of ", words_), "vocab");
    }
    parts_.bytes.resize(static_cast<std::size_t>(special_) + words_);
    bytes_.resize(words_);
    std::size_t index = 0;
    const std::size_t before = reader_.problems().size();
    for (const Json& token : vocabulary) {
      const std::string at = cat("vocab[", index++, "]");
      const Json& rank = token.at("rank");
      if (!reader_.check_id(rank, at + ".rank")) continue;
      if (rank >= words_) continue;
      const auto bytes = from_base64(token.at("token_bytes").get_ref<const std::string&>());
      const auto r = rank.get<std::int32_t>();
      if (!bytes || bytes->empty()) {
        reader_.reject("not base64, or empty", at + ".token_bytes");
      } else if (bytes->size() > kLongestToken) {
        reader_.reject(cat("token of more than ", kLongestToken, " bytes"), at + ".token_bytes");
      } else if (!bytes_[r].empty()) {
        reader_.reject("rank used twice", at + ".rank");
      } else {
        const std::int32_t id = special_ + r;
        bytes_[r] = *bytes;
        parts_.bytes[id] = *bytes;
        parts_.put_token(id, *bytes);
        parts_.ids.emplace(*bytes, id);
        words_by_bytes_.emplace(*bytes, id);
      }
    }
    if (reader_.problems().size() > before) return;  // a rejected token would be reported as missing too
    const auto missing = std::find_if(bytes_.begin(), bytes_.end(), [](const auto& b) { return b.empty(); });
    if (missing != bytes_.end()) reader_.reject(cat("no token of rank ", missing - bytes_.begin()), "vocab");
    for (unsigned byte = 0; byte < 256 && missing == bytes_.end(); ++byte) {
      if (!words_by_bytes_.contains(std::string(1, static_cast<char>(byte)))) {
        reader_.reject(cat("no token for byte ", byte), "vocab");
      }
    }
  }

  // tiktoken joins the adjacent pair whose concatenation has the lowest rank: every split of a token in two is a merge.
  void add_merges() {
    auto bpe = std::make_unique<Bpe>();
    bpe->merges = MergeTable(bytes_.size() * 4);
    bpe->ignore_merges = true;
    for (std::size_t rank = 0; rank < bytes_.size(); ++rank) {
      const std::string_view token = bytes_[rank];
      const std::int32_t id = special_ + static_cast<std::int32_t>(rank);
      if (token.size() == 1) bpe->byte_ids[static_cast<unsigned char>(token[0])] = id;
      for_each_merge(token, [&](std::int32_t left, std::int32_t right) {
        bpe->merges.add(left, right, {static_cast<std::uint32_t>(rank), id});
      });
    }
    bpe->words = std::move(words_by_bytes_);
    parts_.model = std::move(bpe);
    // The original puts this token before a text.
    if (const auto bos = parts_.ids.find("<s>"); bos != parts_.ids.end()) parts_.prefix = {bos->second};
  }

  JsonReader& reader_;
  const Json& file_;
  TokenizerParts parts_;
  std::int32_t special_ = 0, words_ = 0;  // numbers of tokens
  std::vector<std::string> bytes_;        // by rank
  TokenIds words_by_bytes_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_tekken(const std::string& path, const Json& file, std::uint64_t fingerprint) {
  JsonReader reader(path);
  TokenizerParts parts = TekkenReader(reader, file).read();
  parts.fingerprint = fingerprint;
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

Json tekken_as_json(const std::string& path, const Json& file) {
  JsonReader reader(path);
  return TekkenReader(reader, file).as_json();
}

}  // namespace hawser::text

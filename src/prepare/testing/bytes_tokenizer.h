// `tokenizer_of_bytes`: a tokenizer.json with a token for each byte, and special tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hawser::prepare {

// Ids: 0 to 255 are the bytes, the special tokens follow.
inline std::string tokenizer_of_bytes(const std::vector<std::string>& special) {
  using Json = nlohmann::ordered_json;
  Json vocabulary = Json::object();
  // The alphabet of byte-level vocabularies: printable bytes are themselves, the others follow from U+0100 on.
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = plain ? byte : next++;
    std::string character;
    if (code < 0x80) {
      character = static_cast<char>(code);
    } else {
      character = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    vocabulary[character] = byte;
  }
  Json added = Json::array();
  for (const std::string& token : special) {
    added.push_back({{"id", 256 + added.size()}, {"content", token}, {"special", true}, {"normalized", false}});
  }
  return Json{{"added_tokens", added},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}}
      .dump();
}

}  // namespace hawser::prepare

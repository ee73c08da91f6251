#include "text/tokenizers/pipeline_tokenizer.h"

#include <algorithm>
#include <functional>

#include "base/ascii.h"
#include "base/utf8.h"
#include "text/tokenizers/byte_level.h"

namespace hawser::text {

void TokenizerParts::put_token(std::int32_t id, std::string token) {
  if (static_cast<std::size_t>(id) >= tokens.size()) {
    tokens.resize(id + 1);
    present.resize(id + 1);
  }
  tokens[id] = std::move(token);
  present[id] = true;
}

std::optional<std::int32_t> first_of(const TokenIds& ids, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const auto found = ids.find(name); found != ids.end()) return found->second;
  }
  return std::nullopt;
}

std::optional<std::int32_t> usual_bos(const TokenIds& ids) {
  return first_of(ids, {"<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "[CLS]", "<｜begin▁of▁sentence｜>"});
}

std::optional<std::int32_t> usual_eos(const TokenIds& ids) {
  return first_of(ids, {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<｜end▁of▁sentence｜>"});
}

// Buffers of one encode() call. The word cache is reused by later calls.
struct PipelineTokenizer::Scratch {
  Normalizer::Scratch normalizer;
  PreTokenizer::Scratch pre_tokenizer;
  WordCache words;
};

// Takes an idle Scratch, or creates one, and returns it to the idle ones.
class PipelineTokenizer::Lease {
 public:
  explicit Lease(const PipelineTokenizer& owner) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    if (!owner_.idle_.empty()) {
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Scratch& get() {
    if (!scratch_) scratch_ = std::make_unique<Scratch>();
    return *scratch_;
  }

 private:
  const PipelineTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), special_(parts_.tokens.size()), added_(parts_.tokens.size()) {
  for (const AddedToken& token : parts_.added.tokens()) {
    special_[token.id] = token.special;
    added_[token.id] = true;
  }
  for (const std::int32_t id : parts_.special) special_[id] = added_[id] = true;
  eos_ = parts_.eos.empty() ? usual_eos(parts_.ids) : std::optional(parts_.ids.find(parts_.eos)->second);
  bos_ = parts_.prefix.empty() ? usual_bos(parts_.ids) : std::optional(parts_.prefix.front());
}

PipelineTokenizer::~PipelineTokenizer() = default;

void PipelineTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const {
  std::string repaired;
  if (find_invalid_utf8(text) != std::string_view::npos) text = repaired = replace_invalid_utf8(text);
  Lease lease(*this);
  Scratch& scratch = lease.get();
  Regex::Scratch& regex = scratch.pre_tokenizer.regex;
  IdSink sink(ids);
  if (add_special) sink.put_all(parts_.prefix);
  parts_.added.find(text, [&](std::string_view run, std::int32_t id) {
    if (id >= 0) return sink.put(id);
    int first = run.data() == text.data() ? 1 : 0;
    const std::string_view normal =
        parts_.normalizer.empty() ? run : parts_.normalizer.run(run, scratch.normalizer, regex, first);
    if (parts_.pre_tokenizer.uses_regex()) regex.look_at(normal);
    parts_.added.find_normalized(normal, [&](std::string_view part, std::int32_t added) {
      if (added >= 0) {
        sink.put(added);
      } else {
        encode_run(part, first, scratch, sink);
      }
      first -= leading_characters(part, part.size(), first);
    });
  });
  if (add_special) sink.put_all(parts_.suffix);
}

void PipelineTokenizer::encode_conversation(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (!has_special_as_text()) return encode(text, ids, false);
  parts_.of_conversations.find(text, [&](std::string_view run, std::int32_t id) {
    if (id >= 0) return ids.push_back(id);
    encode(run, ids, false);
  });
}

void PipelineTokenizer::encode_run(std::string_view run, int first, Scratch& scratch, IdSink& sink) const {
  const WordModel& model = *parts_.model;
  const char* const end = run.data() + run.size();
  if (const Scanner* scanner = parts_.pre_tokenizer.only_scanner()) {
    for (std::size_t at = 0; at < run.size();) {
      const std::size_t next = scanner->match(run.data(), at, run.size());
      scratch.words.encode({run.data() + at, next - at}, end, model, sink);
      at = next;
    }
    return;
  }
  if (parts_.pre_tokenizer.only_cuts_at_space_marks()) {
    for (std::size_t at = 0; at < run.size();) {
      const std::size_t next = end_of_space_mark_piece(run, at);
      scratch.words.encode(run.substr(at, next - at), end, model, sink);
      at = next;
    }
    return;
  }
  parts_.pre_tokenizer.split(run, first, scratch.pre_tokenizer, [&](std::string_view word) {
    if (parts_.words_in_byte_level) {
      const std::string bytes = bytes_of_byte_level(word).value_or(std::string(word));
      scratch.words.encode(bytes, bytes.data() + bytes.size(), model, sink);
    } else {
      const bool of_run = !std::less<>{}(word.data(), run.data()) && std::less<>{}(word.data(), end);
      scratch.words.encode(word, of_run ? end : word.data() + word.size(), model, sink);
    }
  });
}

std::string PipelineTokenizer::decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || !parts_.present[id] || (skip_special && special_[id])) continue;
    if (parts_.bytes.empty()) {
      tokens.push_back(parts_.tokens[id]);
    } else {
      out += parts_.bytes[id];
    }
  }
  return parts_.bytes.empty() ? parts_.decoder.run(std::move(tokens)) : out;
}

std::optional<unsigned char> PipelineTokenizer::byte_of(std::int32_t id) const {
  if (id < 0 || id >= vocab_size() || special_[id] || !parts_.decoder.has_byte_fallback()) return std::nullopt;
  const int byte = value_of_byte_token(parts_.tokens[id]);
  return byte < 0 ? std::nullopt : std::optional(static_cast<unsigned char>(byte));
}

bool PipelineTokenizer::marks_turns(std::int32_t id) const {
  if (is_special(id)) return true;
  return id >= 0 && id < vocab_size() && added_[id] && !std::ranges::all_of(surface(id), is_space);
}

std::string PipelineTokenizer::surface(std::int32_t id) const {
  if (id < 0 || id >= vocab_size() || !parts_.present[id] || id == parts_.unknown) return "";
  if (added_[id]) return parts_.tokens[id];
  return parts_.bytes.empty() ? parts_.decoder.surface(parts_.tokens[id]) : parts_.bytes[id];
}

std::optional<std::int32_t> PipelineTokenizer::id_of(std::string_view token) const {
  const auto found = parts_.ids.find(token);
  return found == parts_.ids.end() ? std::nullopt : std::optional(found->second);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return replace_invalid_utf8(decode_bytes(ids, skip_special));
}

}  // namespace hawser::text

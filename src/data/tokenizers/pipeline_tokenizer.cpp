#include "data/tokenizers/byte_bpe_tokenizer.h"

#include "data/utf8.h"

namespace hawser::data {

// What one encode() call needs for itself; the cache of words outlives the call.
struct ByteBpeTokenizer::Scratch {
  PreTokenizer::Scratch pre_tokenizer;
  WordCache words;
};

// Borrows a Scratch from the idle ones, or makes one.
class ByteBpeTokenizer::Lease {
 public:
  explicit Lease(const ByteBpeTokenizer& owner) : owner_(owner) {
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
  const ByteBpeTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

ByteBpeTokenizer::ByteBpeTokenizer(ByteBpeParts parts) : parts_(std::move(parts)), special_(parts_.bytes.size()) {
  for (const AddedToken& token : parts_.added.tokens()) special_[token.id] = token.special;
  const auto first_of = [&](std::initializer_list<std::string_view> names) -> std::optional<std::int32_t> {
    for (const std::string_view name : names) {
      if (const auto id = id_of(name)) return id;
    }
    return std::nullopt;
  };
  eos_ = first_of({"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"});
  bos_ = parts_.prefix.empty() ? first_of({"<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>"})
                               : std::optional(parts_.prefix.front());
}

ByteBpeTokenizer::~ByteBpeTokenizer() = default;

void ByteBpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const {
  std::string repaired;
  if (find_invalid_utf8(text) != std::string_view::npos) text = repaired = replace_invalid_utf8(text);
  Lease lease(*this);
  Scratch& scratch = lease.get();
  Regex::Scratch& regex = scratch.pre_tokenizer.regex;
  regex.look_at(text);
  if (add_special) ids.insert(ids.end(), parts_.prefix.begin(), parts_.prefix.end());
  parts_.added.find(text, regex, [&](std::string_view run, std::int32_t id) {
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
    parts_.pre_tokenizer.split(run, scratch.pre_tokenizer,
                               [&](std::string_view word) { parts_.bpe.encode(word, scratch.words, ids); });
  });
  if (add_special) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
}

std::string ByteBpeTokenizer::decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special && special_[id])) continue;
    out += parts_.bytes[id];
  }
  return out;
}

std::optional<std::int32_t> ByteBpeTokenizer::id_of(std::string_view token) const {
  const auto found = parts_.ids.find(token);
  return found == parts_.ids.end() ? std::nullopt : std::optional(found->second);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return replace_invalid_utf8(decode_bytes(ids, skip_special));
}

}  // namespace hawser::data

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "io/files.h"
#include "prepare/token_file.h"
#include "prepare/token_index.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;
using namespace token_index;

constexpr std::size_t kCopyBlock = std::size_t{1} << 16;  // elements copied at a time

template <class T>
T load(std::span<const std::byte> bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

}  // namespace

TokenFileDraft::TokenFileDraft(const std::string& prefix, std::int64_t vocab_size, const DraftPosition& from)
    : prefix_(prefix),
      wide_(vocab_size == 0 || vocab_size >= kNarrowVocabulary),
      at_(from),
      ids_(prefix + ".bin", from.tokens * id_bytes()),
      lengths_(prefix + ".lengths", from.sequences * 4),
      bounds_(prefix + ".bounds", from.documents * 8) {
  if (from.labels) {
    labels_.emplace(prefix + ".labels.bin", from.tokens * 4);
  } else {
    std::error_code ignored;
    fs::remove(prefix + ".labels.bin", ignored);
  }
}

void TokenFileDraft::append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) {
  HAWSER_CHECK(labels.empty() || labels.size() == ids.size(), labels.size(), " labels for ", ids.size(), " ids");
  const auto count = static_cast<std::int64_t>(ids.size());
  if (at_.open + count > std::numeric_limits<std::int32_t>::max()) {
    throw UserError({.file = prefix_ + ".bin",
                     .what = "document too long for a token file",
                     .expected = cat("at most ", std::numeric_limits<std::int32_t>::max(), " tokens"),
                     .hint = "smaller text files"});
  }
  if (!labels.empty() && !labels_) start_labels();
  if (wide_) {
    ids_.write(ids.data(), ids.size_bytes());
  } else {
    narrow_.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      HAWSER_CHECK(ids[i] >= 0 && ids[i] <= 0xFFFF, "id ", ids[i], " in a file of uint16");
      narrow_[i] = static_cast<std::uint16_t>(ids[i]);
    }
    ids_.write(narrow_.data(), narrow_.size() * 2);
  }
  if (labels_) labels_->write(labels.empty() ? ids.data() : labels.data(), ids.size_bytes());
  at_.open += count;
  at_.tokens += count;
}

// Called for the first labels: earlier tokens get their ids as labels.
void TokenFileDraft::start_labels() {
  labels_.emplace(prefix_ + ".labels.bin");
  at_.labels = true;
  if (at_.tokens == 0) return;
  ids_.flush();
  const io::MappedFile written(ids_.path());
  for (std::int64_t i = 0; i < at_.tokens; ++i) {
    labels_->write_value(wide_ ? load<std::int32_t>(written.bytes(), i)
                               : std::int32_t{load<std::uint16_t>(written.bytes(), i)});
  }
}

void TokenFileDraft::end_sequence() {
  if (at_.open == 0) return;
  lengths_.write_value(static_cast<std::int32_t>(at_.open));
  ++at_.sequences;
  at_.open = 0;
}

void TokenFileDraft::end_document() {
  end_sequence();
  if (at_.sequences == at_.first_sequence) return;
  bounds_.write_value(at_.sequences);
  ++at_.documents;
  at_.first_sequence = at_.sequences;
  at_.first_token = at_.tokens;
}

void TokenFileDraft::abandon_document() {
  at_.tokens = at_.first_token;
  at_.sequences = at_.first_sequence;
  at_.open = 0;
  ids_.truncate(at_.tokens * id_bytes());
  lengths_.truncate(at_.sequences * 4);
  if (labels_) labels_->truncate(at_.tokens * 4);
}

void TokenFileDraft::sync() {
  ids_.sync();
  lengths_.sync();
  bounds_.sync();
  if (labels_) labels_->sync();
}

std::vector<std::pair<std::string, std::int64_t>> TokenFileDraft::files() const {
  std::vector<std::pair<std::string, std::int64_t>> files;
  for (const io::AppendFile* file : {&ids_, &lengths_, &bounds_}) files.emplace_back(file->path(), file->size());
  if (labels_) files.emplace_back(labels_->path(), labels_->size());
  return files;
}

void TokenFileDraft::finish() {
  end_document();
  sync();
  io::AppendFile index(prefix_ + ".idx");
  index.write(kMagic, sizeof kMagic);
  index.write_value(std::uint64_t{1});
  index.write_value(wide_ ? kInt32 : kUint16);
  index.write_value(static_cast<std::uint64_t>(at_.sequences));
  index.write_value(static_cast<std::uint64_t>(at_.documents + 1));
  const io::MappedFile lengths(lengths_.path()), bounds(bounds_.path());
  const auto copy = [&](std::span<const std::byte> bytes) {
    for (std::size_t from = 0; from < bytes.size(); from += kCopyBlock) {
      index.write(bytes.data() + from, std::min(kCopyBlock, bytes.size() - from));
    }
  };
  copy(lengths.bytes());
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < at_.sequences; ++i) {
    index.write_value(offset);
    offset += load<std::int32_t>(lengths.bytes(), i) * id_bytes();
  }
  index.write_value(std::int64_t{0});
  copy(bounds.bytes());
  index.sync();
}

void publish_token_file(const std::string& from, const std::string& to) {
  // FROM.idx is renamed last: if it exists after a crash, the renaming is incomplete.
  if (io::exists(from + ".idx")) {
    std::error_code ignored;
    fs::remove(to + ".idx", ignored);
    if (io::exists(from + ".bin")) {
      fs::remove(to + ".labels.bin", ignored);
      io::rename_file(from + ".bin", to + ".bin");
    }
    if (io::exists(from + ".labels.bin")) io::rename_file(from + ".labels.bin", to + ".labels.bin");
    io::rename_file(from + ".idx", to + ".idx");
  }
  remove_token_file(from);
}

void remove_token_file(const std::string& prefix) {
  std::error_code ignored;
  for (const char* ending : {".idx", ".bin", ".labels.bin", ".lengths", ".bounds"})
    fs::remove(prefix + ending, ignored);
}

TokenFileWriter::TokenFileWriter(const std::string& prefix, std::int64_t vocab_size)
    : prefix_(prefix), draft_(prefix + ".tmp", vocab_size) {}

TokenFileWriter::~TokenFileWriter() {
  remove_token_file(prefix_ + ".tmp");
}

void TokenFileWriter::add_sequence(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) {
  draft_.append(ids, labels);
  draft_.end_sequence();
}

void TokenFileWriter::end_document() {
  draft_.end_document();
}

void TokenFileWriter::finish() {
  draft_.finish();
  publish_token_file(prefix_ + ".tmp", prefix_);
}

}  // namespace hawser::prepare

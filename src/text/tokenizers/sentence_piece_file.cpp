// Reader of SentencePiece's ModelProto. A protocol buffer is a sequence of (field << 3 | type, value).
#include <cstring>
#include <stdexcept>

#include "base/cat.h"
#include "text/tokenizers/sentence_piece.h"

namespace hawser::text {
namespace {

class Message {
 public:
  Message(std::string_view all, std::size_t offset) : bytes_(all), offset_(offset) {}

  // Reads the next field; false at the end. The value is in `number`, `real` (type 5) or `bytes` (type 2).
  bool next() {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t tag = variable();
    field = static_cast<int>(tag >> 3);
    bytes = {};
    number = 0;
    switch (tag & 7) {
      case 0:
        number = variable();
        break;
      case 1:
        take(8);
        break;
      case 2: {
        const std::uint64_t size = variable();
        if (size > bytes_.size() - at_) fail();
        bytes_offset = offset_ + at_;
        bytes = take(static_cast<std::size_t>(size));
        break;
      }
      case 5: {
        const std::string_view raw = take(4);
        std::memcpy(&real, raw.data(), 4);
        break;
      }
      default:
        fail();
    }
    return true;
  }

  int field = 0;
  std::uint64_t number = 0;
  float real = 0;
  std::string_view bytes;
  std::size_t bytes_offset = 0;

 private:
  [[noreturn]] void fail() const {
    throw std::invalid_argument(
        cat("not a SentencePiece model: invalid protocol buffer field at byte ", offset_ + at_));
  }
  std::string_view take(std::size_t size) {
    if (size > bytes_.size() - at_) fail();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  std::uint64_t variable() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view bytes_;
  std::size_t offset_, at_ = 0;
};

SentencePieceModel::Piece read_piece(Message message) {
  SentencePieceModel::Piece piece;
  while (message.next()) {
    if (message.field == 1) piece.text = message.bytes;
    if (message.field == 2) piece.score = message.real;
    if (message.field == 3) {
      if (message.number < 1 || message.number > 6) {
        throw std::invalid_argument(cat("unknown type ", message.number, " of piece \"", piece.text, '"'));
      }
      piece.type = static_cast<SentencePieceModel::Type>(message.number);
    }
  }
  return piece;
}

void read_trainer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.field) {
      case 3:
        model.kind = static_cast<SentencePieceModel::Kind>(message.number);
        break;
      case 24:
        model.whitespace_as_suffix = message.number != 0;
        break;
      case 35:
        model.byte_fallback = message.number != 0;
        break;
      case 40:
        model.unknown_id = static_cast<std::int32_t>(message.number);
        break;
      case 41:
        model.bos = static_cast<std::int32_t>(message.number);
        break;
      case 42:
        model.eos = static_cast<std::int32_t>(message.number);
        break;
      case 44:
        model.unknown_surface = message.bytes;
        break;
      case 45:
        if (!message.bytes.empty()) model.unknown_piece = message.bytes;
        break;
      case 46:
        if (!message.bytes.empty()) model.bos_piece = message.bytes;
        break;
      case 47:
        if (!message.bytes.empty()) model.eos_piece = message.bytes;
        break;
      default:
        break;
    }
  }
}

void read_normalizer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    if (message.field == 2) model.charsmap = message.bytes;
    if (message.field == 3) model.add_dummy_prefix = message.number != 0;
    if (message.field == 4) model.remove_extra_whitespaces = message.number != 0;
    if (message.field == 5) model.escape_whitespaces = message.number != 0;
  }
}

}  // namespace

SentencePieceModel parse_sentence_piece(std::string_view bytes) {
  SentencePieceModel model;
  Message message(bytes, 0);
  while (message.next()) {
    const Message inner(message.bytes, message.bytes_offset);
    if (message.field == 1) model.pieces.push_back(read_piece(inner));
    if (message.field == 2) read_trainer(inner, model);
    if (message.field == 3) read_normalizer(inner, model);
    if (message.field == 5) {
      Message denormalizer = inner;
      while (denormalizer.next()) {
        if (denormalizer.field == 2) model.denormalizer = denormalizer.bytes;
      }
    }
  }
  if (model.pieces.empty()) throw std::invalid_argument("not a SentencePiece model: it has no pieces");
  return model;
}

}  // namespace hawser::text

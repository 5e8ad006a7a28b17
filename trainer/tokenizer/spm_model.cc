#include "trainer/tokenizer/spm_model.h"

#include <bit>
#include <cstring>

namespace sortie::trainer::spm {
namespace {

/// Reads the fields of a protobuf message one by one.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  /// Moves to the next field. Returns false at the end, or if the bytes are malformed.
  bool next() {
    if (rest_.empty() || broken_) return false;
    const std::uint64_t tag = take_varint();
    number_ = tag >> 3;
    value_ = 0;
    bytes_ = {};
    switch (tag & 7) {
      case 0:
        value_ = take_varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(take_varint());
        break;
      case 5:
        bytes_ = take(4);
        if (!broken_) std::memcpy(&value_, bytes_.data(), 4);
        break;
      default:
        broken_ = true;
    }
    return !broken_;
  }
  std::uint64_t number() const { return number_; }
  std::uint64_t value() const { return value_; }
  std::string_view bytes() const { return bytes_; }
  float as_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(value_)); }
  bool broken() const { return broken_; }

 private:
  std::uint64_t take_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    broken_ = true;
    return 0;
  }
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) {
      broken_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_, bytes_;
  std::uint64_t number_ = 0, value_ = 0;
  bool broken_ = false;
};

// Field numbers of sentencepiece_model.proto.
bool read_piece(std::string_view bytes, Model& model) {
  Piece piece;
  Fields fields(bytes);
  while (fields.next()) {
    if (fields.number() == 1) piece.text = fields.bytes();
    if (fields.number() == 2) piece.score = fields.as_float();
    if (fields.number() == 3) piece.type = static_cast<Piece::Type>(fields.value());
  }
  model.pieces.push_back(std::move(piece));
  return !fields.broken();
}

bool read_trainer_spec(std::string_view bytes, Model& model) {
  Fields fields(bytes);
  while (fields.next()) {
    if (fields.number() == 3) model.type = static_cast<Model::Type>(fields.value());
    if (fields.number() == 24) model.whitespace_as_suffix = fields.value() != 0;
    if (fields.number() == 35) model.byte_fallback = fields.value() != 0;
  }
  return !fields.broken();
}

bool read_normalizer_spec(std::string_view bytes, Model& model) {
  Fields fields(bytes);
  while (fields.next()) {
    if (fields.number() == 2) model.charsmap = fields.bytes();
    if (fields.number() == 3) model.dummy_prefix = fields.value() != 0;
    if (fields.number() == 4) model.remove_extra_whitespaces = fields.value() != 0;
    if (fields.number() == 5) model.escape_whitespaces = fields.value() != 0;
  }
  return !fields.broken();
}

}  // namespace

std::optional<Model> parse_model(std::string_view bytes) {
  Model model;
  Fields fields(bytes);
  bool good = true;
  while (good && fields.next()) {
    if (fields.number() == 1) good = read_piece(fields.bytes(), model);
    if (fields.number() == 2) good = read_trainer_spec(fields.bytes(), model);
    if (fields.number() == 3) good = read_normalizer_spec(fields.bytes(), model);
  }
  if (!good || fields.broken()) return std::nullopt;
  return model;
}

}  // namespace sortie::trainer::spm

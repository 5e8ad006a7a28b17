// Tokenizer: text to token ids and back. Implementations are immutable and safe to share between
// threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Appends the ids of `text` to `ids`; never adds an end-of-document id by itself.
  virtual Result<> encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// Total: the end-of-document id gives nothing, an id outside the vocabulary U+FFFD.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Every id is in [0, vocab_size), the end-of-document id included. A model may be wider.
  virtual std::int64_t vocab_size() const = 0;
  /// The id that ends a document; absent when a sentencepiece model was trained without one.
  virtual std::optional<std::int32_t> eod_id() const = 0;
  /// As make_tokenizer takes it: "byte", "sentencepiece:FILE".
  virtual std::string name() const = 0;
  /// SHA-256 of the model file; empty for the byte tokenizer, which has none.
  virtual std::string model_hash() const = 0;
};

/// Each byte is its own id, 256 ends a document, so vocab_size() is 257. Text without appended
/// end-of-document ids stays below 256 and fits a model with vocab_size = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Loads a sentencepiece .model file (BPE or unigram, from any trainer).
Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& model);

/// "byte" or "sentencepiece:FILE".
Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view name);

}  // namespace sortie::trainer

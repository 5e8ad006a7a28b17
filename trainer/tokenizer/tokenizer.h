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

/// Special tokens around a text: those that begin and end it.
struct SpecialTokens {
  std::vector<std::int32_t> before, after;
};

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
  /// What the post_processor of a tokenizer.json puts around a text; nothing for the others.
  /// encode() does not.
  virtual const SpecialTokens& special_tokens() const;
  /// As make_tokenizer takes it: "byte", "sentencepiece:FILE", "hf:FILE".
  virtual std::string name() const = 0;
  /// SHA-256 of the model file; empty for the byte tokenizer, which has none.
  virtual std::string model_hash() const = 0;
  /// The token of an id in [0, vocab_size) as the vocabulary spells it, as in "\u0120the" or
  /// "<|endoftext|>"; empty for an id that has none.
  virtual std::string token_text(std::int32_t id) const = 0;
  /// The first place from `from` on where `text` can be cut without a change of its ids: those of
  /// the two parts, one after the other, are those of the whole. npos when none is known.
  virtual std::size_t find_cut(std::string_view text, std::size_t from) const = 0;
};

/// SHA-256 over the texts of all tokens in the order of their ids. Tokenizers of one hash mean the
/// same by every id, even where their files differ (a tokenizer.json that was written anew) or are
/// of another kind (a sentencepiece model and its tokenizer.json).
std::string vocabulary_hash(const Tokenizer& tokenizer);

/// encode() with the special tokens around: what the `tokenizers` package gives with
/// add_special_tokens=True.
Result<> encode_with_special_tokens(const Tokenizer& tokenizer, std::string_view text,
                                    std::vector<std::int32_t>& ids);

/// Each byte is its own id, 256 ends a document, so vocab_size() is 257. Text without appended
/// end-of-document ids stays below 256 and fits a model with vocab_size = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// What encodes text with a sentencepiece model: an encoder of our own for the types BPE and
/// unigram, or always the library, which gives the same ids much slower.
enum class SentencepieceEncoder { fastest, library };

/// Loads a sentencepiece .model file (any type, from any trainer).
Result<std::unique_ptr<Tokenizer>> load_sentencepiece(
    const std::filesystem::path& model,
    SentencepieceEncoder encoder = SentencepieceEncoder::fastest);

/// Loads a Hugging Face tokenizer.json, or the one in a folder: byte-level BPE with one of the
/// known patterns, or BPE over characters with byte fallback. Ids are those of the `tokenizers`
/// package without special tokens added; invalid UTF-8 is read as U+FFFD.
Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(const std::filesystem::path& path);

/// The same from the text of such a file, which `file` names.
Result<std::unique_ptr<Tokenizer>> hf_tokenizer_from_text(std::string_view text, std::string file);

/// "byte", "sentencepiece:FILE" or "hf:FILE".
Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view name);

}  // namespace sortie::trainer

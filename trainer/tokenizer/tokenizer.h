// Tokenizer: converts text to token ids and back. Implementations are immutable and thread-safe.
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

/// The special tokens before and after a text.
struct SpecialTokens {
  std::vector<std::int32_t> before, after;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Appends the ids of `text` to `ids`, without an end-of-document id and special_tokens().
  virtual Result<> encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// Accepts all ids. Special tokens, such as the end-of-document id, yield no text; an id outside
  /// the vocabulary yields U+FFFD.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Every id is in [0, vocab_size), including the end-of-document id. A model's vocabulary may be
  /// larger.
  virtual std::int64_t vocab_size() const = 0;
  /// The id that ends a document; nullopt if the vocabulary has none.
  virtual std::optional<std::int32_t> eod_id() const = 0;
  /// The tokens that the post_processor of a tokenizer.json puts around a text; empty for other
  /// tokenizers. encode() does not add them.
  virtual const SpecialTokens& special_tokens() const;
  /// In the syntax of make_tokenizer: "byte", "sentencepiece:FILE", "hf:FILE".
  virtual std::string name() const = 0;
  /// SHA-256 of the model file; empty for the byte tokenizer, which has none.
  virtual std::string model_hash() const = 0;
  /// The token of an id in [0, vocab_size) as spelled in the vocabulary, such as "\u0120the" or
  /// "<|endoftext|>"; empty for an id without a token.
  virtual std::string token_text(std::int32_t id) const = 0;
  /// Returns the first position from `from` on where `text` can be cut without changing its ids:
  /// the ids of the two parts, concatenated, are those of the whole. Returns npos if none is known.
  virtual std::size_t find_cut(std::string_view text, std::size_t from) const = 0;
};

/// SHA-256 of the texts of all tokens in the order of their ids. If two tokenizers have the same
/// hash, every id has the same meaning in both, even if their files differ (a rewritten
/// tokenizer.json) or are of different kinds (a sentencepiece model and its tokenizer.json).
std::string vocabulary_hash(const Tokenizer& tokenizer);

/// encode() with special tokens around the text. Gives the ids of the `tokenizers` package with
/// add_special_tokens=True.
Result<> encode_with_special_tokens(const Tokenizer& tokenizer, std::string_view text,
                                    std::vector<std::int32_t>& ids);

/// Each byte is its own id; id 256 ends a document, so vocab_size() is 257. Without appended
/// end-of-document ids, all ids are below 256 and fit a model with vocab_size = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// The encoder for a sentencepiece model. `fastest`: our own encoder for models of the types BPE
/// and unigram that it supports, otherwise the library. `library`: always the library, which gives
/// the same ids much more slowly.
enum class SentencepieceEncoder { fastest, library };

/// Loads a sentencepiece .model file (any type, from any trainer).
Result<std::unique_ptr<Tokenizer>> load_sentencepiece(
    const std::filesystem::path& model,
    SentencepieceEncoder encoder = SentencepieceEncoder::fastest);

/// Loads a Hugging Face tokenizer.json, or the one in a folder. Supports byte-level BPE with one of
/// the known patterns, and BPE over characters with byte fallback. The ids are those of the
/// `tokenizers` package without special tokens. Invalid UTF-8 is read as U+FFFD.
Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(const std::filesystem::path& path);

/// The same from the content of such a file. `file` is its name.
Result<std::unique_ptr<Tokenizer>> hf_tokenizer_from_text(std::string_view text, std::string file);

/// Loads the tokenizer "byte", "sentencepiece:FILE" or "hf:FILE".
Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view name);

}  // namespace sortie::trainer

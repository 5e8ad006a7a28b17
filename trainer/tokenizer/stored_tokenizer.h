// The files of a tokenizer in a checkpoint, and the identity of a tokenizer.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "trainer/tokenizer/chat_format.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// Folder of a checkpoint with the tokenizer of the run: tokenizer.json or tokenizer.model, its
/// companion files, and about.json.
inline constexpr std::string_view kTokenizerFolder = "tokenizer";
/// Folder of a checkpoint with the files of an imported Hugging Face folder, except its weights.
inline constexpr std::string_view kHfNotes = "huggingface";

/// Names of the files of a Hugging Face folder that belong to its tokenizer or to text generation.
std::span<const std::string_view> tokenizer_file_names();

/// Identifies a tokenizer.
struct TokenizerId {
  std::string name{};        // in the syntax of make_tokenizer: "byte", "hf:FILE"
  std::string sha256{};      // of its file; empty for "byte"
  std::string vocabulary{};  // vocabulary_hash(); empty = unknown
};
TokenizerId id_of(const Tokenizer& tokenizer);
/// Returns whether both have the same file or the same vocabulary. An unknown vocabulary is
/// computed from the tokenizer's file, if that still exists unchanged.
bool same_vocabulary(const TokenizerId& a, const TokenizerId& b);
/// "hf:FILE (SHA-256 12ab34cd56ef)", for messages.
std::string describe(const TokenizerId& id);

/// How the texts of a run were tokenized. Text generation and export use the same form.
struct TextForm {
  /// The texts had the tokenizer's special tokens around them (encode_with_special_tokens).
  /// nullopt: unknown, as for token files without a manifest.
  std::optional<bool> special_tokens{};
  bool chatml = false;  // the texts were conversations in ChatML
};

/// The files of a tokenizer in memory, so that they can be written after the originals are gone.
struct TokenizerFiles {
  TokenizerId id{};
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> eod_id{};
  std::string eod_token{};  // as spelled in the vocabulary
  SpecialTokens special_tokens{};
  ChatMarks chat_marks{};
  TextForm form{};                                // of the run; not set by read_tokenizer_files
  std::map<std::string, std::string> contents{};  // by file name; empty for "byte"
};
/// Loads and checks the tokenizer `name` (in the syntax of make_tokenizer) and reads its file. For
/// a tokenizer.json, also reads the companion files in the same folder (tokenizer_file_names()).
Result<TokenizerFiles> read_tokenizer_files(const std::string& name);
/// Writes the files to `folder`/tokenizer and syncs them to disk.
Result<> write_tokenizer_files(const TokenizerFiles& files, const std::filesystem::path& folder);
/// Copies the folder `tokenizer` of one checkpoint to another that is being written. No-op if the
/// first has none.
Result<> carry_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Returns the tokenizer that a checkpoint holds, with a name that make_tokenizer accepts: the
/// tokenizer of the run that wrote it, otherwise that of the Hugging Face folder from which it was
/// imported. Returns nullopt if it holds none.
Result<std::optional<TokenizerId>> find_stored_tokenizer(const std::filesystem::path& checkpoint);

/// Returns how the training texts of a checkpoint were tokenized. Nothing is known for imported
/// checkpoints and those of older versions.
Result<TextForm> find_text_form(const std::filesystem::path& checkpoint);

/// Returns the byte tokenizer as a tokenizer.json with the same ids.
std::string byte_tokenizer_json();

}  // namespace sortie::trainer

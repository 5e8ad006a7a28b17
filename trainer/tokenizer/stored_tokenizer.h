// A tokenizer as files: what a checkpoint holds of it, and what identifies it.
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

/// The folder of a checkpoint with the tokenizer of the run: tokenizer.json or tokenizer.model, the
/// files that belong to it, and about.json.
inline constexpr std::string_view kTokenizerFolder = "tokenizer";
/// The folder of a checkpoint with what an imported Hugging Face folder has besides weights.
inline constexpr std::string_view kHfNotes = "huggingface";

/// Files of a Hugging Face folder that belong to its tokenizer, or to the generation of text.
std::span<const std::string_view> tokenizer_file_names();

/// What makes a tokenizer the same as another one.
struct TokenizerId {
  std::string name{};        // as make_tokenizer takes it: "byte", "hf:FILE"
  std::string sha256{};      // of its file; empty for "byte"
  std::string vocabulary{};  // vocabulary_hash(); empty = unknown
};
TokenizerId id_of(const Tokenizer& tokenizer);
/// The same file, or the same vocabulary; the latter is looked up in the files where it is not
/// known and they are still there unchanged.
bool same_vocabulary(const TokenizerId& a, const TokenizerId& b);
/// "hf:FILE (SHA-256 12ab34cd56ef)", for messages.
std::string describe(const TokenizerId& id);

/// How the texts of a run became tokens: what generates text with its model, or exports it, does
/// the same.
struct TextForm {
  /// They had the tokenizer's special tokens around them (encode_with_special_tokens). Absent:
  /// unknown, as of token files without a manifest.
  std::optional<bool> special_tokens{};
  bool chatml = false;  // they were conversations in ChatML
};

/// A tokenizer's files in memory, so that they can be written when the originals are gone.
struct TokenizerFiles {
  TokenizerId id{};
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> eod_id{};
  std::string eod_token{};  // as the vocabulary spells it
  SpecialTokens special_tokens{};
  ChatMarks chat_marks{};
  TextForm form{};                                // of the run; read_tokenizer_files knows none
  std::map<std::string, std::string> contents{};  // by file name; empty for "byte"
};
/// Loads and checks the tokenizer `name` (as make_tokenizer takes it), and reads its files: the
/// tokenizer's own, and beside a tokenizer.json the other files of its Hugging Face folder.
Result<TokenizerFiles> read_tokenizer_files(const std::string& name);
/// Writes them into `folder`/tokenizer, synced to the disk.
Result<> write_tokenizer_files(const TokenizerFiles& files, const std::filesystem::path& folder);
/// Copies the folder `tokenizer` of one checkpoint, if it has one, into another that is being
/// written.
Result<> carry_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// The tokenizer that a checkpoint holds, by a name that make_tokenizer takes: that of the run
/// which wrote it, else that of the Hugging Face folder which it was imported from. Absent: it has
/// none.
Result<std::optional<TokenizerId>> find_stored_tokenizer(const std::filesystem::path& checkpoint);

/// What a checkpoint says of the texts that it was trained on; of an imported one, or one of an
/// older version, nothing is known.
Result<TextForm> find_text_form(const std::filesystem::path& checkpoint);

/// The byte tokenizer as a tokenizer.json, id for id.
std::string byte_tokenizer_json();

}  // namespace sortie::trainer

#include "trainer/tokenizer/stored_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "trainer/storage/make_folder.h"
#include "trainer/storage/sha256.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kAbout = "about.json";
constexpr std::string_view kChatMl = "chatml";
constexpr std::string_view kNames[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer.model",
                                       "generation_config.json",
                                       "chat_template.jinja",
                                       "chat_template.json"};

/// FILE of "hf:FILE" and "sentencepiece:FILE"; empty for "byte".
fs::path file_of(std::string_view name) {
  const std::size_t colon = name.find(':');
  if (colon == name.npos) return {};
  const fs::path file = name.substr(colon + 1);
  std::error_code ignored;
  return fs::is_directory(file, ignored) ? file / "tokenizer.json" : file;
}

std::string_view kind_of(std::string_view name) {
  return name.substr(0, name.find(':'));
}

/// Returns the vocabulary, loading the file if it is unchanged; empty if that is not possible.
std::string vocabulary_of(const TokenizerId& id) {
  if (!id.vocabulary.empty()) return id.vocabulary;
  const auto tokenizer = make_tokenizer(id.name);
  if (!tokenizer || (*tokenizer)->model_hash() != id.sha256) return {};
  return vocabulary_hash(**tokenizer);
}

Error damaged(const fs::path& file, std::string_view problem) {
  return {ErrorCode::checkpoint,
          fmt::format("{}: damaged: {}; use an older checkpoint, or name the "
                      "tokenizer yourself",
                      file.string(), problem)};
}

Result<TokenizerId> read_about(const fs::path& folder) {
  const fs::path file = folder / kAbout;
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  const OrderedJson about = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  TokenizerId id;
  for (const auto& [key, value] : {std::pair("tokenizer", &id.name),
                                   {"sha256", &id.sha256},
                                   {"vocabulary_sha256", &id.vocabulary}}) {
    const auto found = about.is_object() ? about.find(key) : about.end();
    if (found == about.end() || !found->is_string())
      return std::unexpected(damaged(file, fmt::format("no text \"{}\"", key)));
    *value = found->get<std::string>();
  }
  return id;
}

}  // namespace

std::span<const std::string_view> tokenizer_file_names() {
  return kNames;
}

TokenizerId id_of(const Tokenizer& tokenizer) {
  return {tokenizer.name(), tokenizer.model_hash(), vocabulary_hash(tokenizer)};
}

bool same_vocabulary(const TokenizerId& a, const TokenizerId& b) {
  if (kind_of(a.name) == kind_of(b.name) && a.sha256 == b.sha256) return true;
  const std::string first = vocabulary_of(a);
  return !first.empty() && first == vocabulary_of(b);
}

std::string describe(const TokenizerId& id) {
  if (id.sha256.empty()) return id.name;
  return fmt::format("{} (SHA-256 {})", id.name, id.sha256.substr(0, 12));
}

Result<TokenizerFiles> read_tokenizer_files(const std::string& name) {
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, make_tokenizer(name));
  TokenizerFiles files;
  files.id = id_of(*tokenizer);
  files.vocab_size = tokenizer->vocab_size();
  files.eod_id = tokenizer->eod_id();
  if (files.eod_id) files.eod_token = tokenizer->token_text(*files.eod_id);
  files.special_tokens = tokenizer->special_tokens();
  files.chat_marks = chat_marks(*tokenizer);
  const fs::path file = file_of(name);
  if (file.empty()) return files;
  const char* stored = kind_of(name) == "hf" ? "tokenizer.json" : "tokenizer.model";
  SORTIE_ASSIGN_OR_RETURN(files.contents[stored], read_file(file));
  if (sha256_hex(files.contents[stored]) != files.id.sha256)
    return fail(ErrorCode::data, fmt::format("{}: changed while it was read; start again when it "
                                             "is complete",
                                             file.string()));
  if (file.filename() != "tokenizer.json") return files;
  for (const std::string_view companion : kNames) {
    std::error_code ignored;
    const fs::path path = file.parent_path() / companion;
    if (files.contents.contains(std::string(companion)) || !fs::is_regular_file(path, ignored))
      continue;
    SORTIE_ASSIGN_OR_RETURN(files.contents[std::string(companion)], read_file(path));
  }
  return files;
}

Result<> write_tokenizer_files(const TokenizerFiles& files, const fs::path& folder) {
  const fs::path to = folder / kTokenizerFolder;
  SORTIE_TRY(make_folder(to));
  for (const auto& [name, content] : files.contents)
    SORTIE_TRY(write_file_atomic(to / name, content));
  OrderedJson about = {{"tokenizer", files.id.name},
                       {"sha256", files.id.sha256},
                       {"vocabulary_sha256", files.id.vocabulary},
                       {"vocab_size", files.vocab_size},
                       {"eod_id", nullptr},
                       {"eod_token", files.eod_token},
                       {"add_special_tokens", nullptr},
                       {"conversations", nullptr}};
  if (files.eod_id) about["eod_id"] = *files.eod_id;
  if (files.form.special_tokens) about["add_special_tokens"] = *files.form.special_tokens;
  if (files.form.chatml) about["conversations"] = kChatMl;
  return write_file_atomic(to / kAbout, json_text(about, 1) + "\n");
}

Result<> carry_tokenizer_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (from.empty() || !fs::is_directory(from / kTokenizerFolder, error)) return {};
  SORTIE_TRY(make_folder(to / kTokenizerFolder));
  for (const auto& file : fs::directory_iterator(from / kTokenizerFolder, error)) {
    SORTIE_ASSIGN_OR_RETURN(const std::string content, read_file(file.path()));
    SORTIE_TRY(write_file_atomic(to / kTokenizerFolder / file.path().filename(), content));
  }
  if (error) return std::unexpected(os_error(error.value(), (from / kTokenizerFolder).string()));
  return {};
}

Result<std::optional<TokenizerId>> find_stored_tokenizer(const fs::path& checkpoint) {
  std::error_code ignored;
  const fs::path own = checkpoint / kTokenizerFolder;
  if (fs::exists(own / kAbout, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(TokenizerId id, read_about(own));
    if (kind_of(id.name) == "hf") id.name = "hf:" + (own / "tokenizer.json").string();
    if (kind_of(id.name) == "sentencepiece")
      id.name = "sentencepiece:" + (own / "tokenizer.model").string();
    return id;
  }
  for (const auto& [file, kind] :
       {std::pair("tokenizer.json", "hf:"), std::pair("tokenizer.model", "sentencepiece:")}) {
    const fs::path path = checkpoint / kHfNotes / file;
    if (!fs::exists(path, ignored)) continue;
    SORTIE_ASSIGN_OR_RETURN(const std::string content, read_file(path));
    return TokenizerId{kind + path.string(), sha256_hex(content), {}};
  }
  return std::nullopt;
}

Result<TextForm> find_text_form(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kTokenizerFolder / kAbout;
  TextForm form;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return form;
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  const OrderedJson about = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto value = [&about](const char* key) {  // null if missing
    const auto found = about.is_object() ? about.find(key) : about.end();
    return found == about.end() ? OrderedJson() : *found;
  };
  const OrderedJson special = value("add_special_tokens"), conversations = value("conversations");
  if (!special.is_null() && !special.is_boolean())
    return std::unexpected(
        damaged(file, fmt::format("\"add_special_tokens\" is {}", special.dump())));
  if (!conversations.is_null() && conversations != kChatMl)
    return std::unexpected(
        damaged(file, fmt::format("\"conversations\" is {}", conversations.dump())));
  if (special.is_boolean()) form.special_tokens = special.get<bool>();
  form.chatml = !conversations.is_null();
  return form;
}

std::string byte_tokenizer_json() {
  const auto tokenizer = make_byte_tokenizer();
  const std::int32_t end = *tokenizer->eod_id();
  std::vector<std::string> bytes;
  for (std::int32_t id = 0; id < end; ++id) bytes.push_back(tokenizer->token_text(id));
  OrderedJson root = empty_tokenizer_json();
  root["added_tokens"].push_back(special_token_json(end, tokenizer->token_text(end)));
  root["pre_tokenizer"] = root["decoder"] =
      byte_level_json(/*trim_offsets=*/false, /*use_regex=*/false);
  return tokenizer_json_text(std::move(root), bytes, {});
}

}  // namespace sortie::trainer

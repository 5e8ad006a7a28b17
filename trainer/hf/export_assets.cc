#include "trainer/hf/export_assets.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "trainer/tokenizer/spm_json.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Writes `json` to `path` unless the file exists.
Result<> add(const fs::path& path, const Json& json) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return {};
  return write_file_atomic(path, json_text(json, 2) + "\n");
}

Result<Json> read_object(const fs::path& path) {
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return fail(ErrorCode::data, fmt::format("{}: not a JSON object, so the end of an answer can not "
                                           "be set in it; repair the file, or remove it",
                                           path.string()));
}

/// Changes a JSON file of the folder. If it does not exist: creates it if `must_be`, otherwise
/// no-op.
Result<> change(const fs::path& path, bool must_be, const std::function<void(Json&)>& set) {
  std::error_code ignored;
  Json json = Json::object();
  if (fs::exists(path, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(json, read_object(path));
  } else if (!must_be) {
    return {};
  }
  set(json);
  return write_file_atomic(path, json_text(json, 2) + "\n");
}

/// Returns the ids in a value of eos_token_id.
std::vector<std::int64_t> ids_in(const Json& value) {
  std::vector<std::int64_t> ids;
  for (const Json& id : value.is_array() ? value : Json::array({value}))
    if (id.is_number_integer()) ids.push_back(id.get<std::int64_t>());
  return ids;
}

/// For a model that was trained on conversations in ChatML: writes their template, and makes the
/// mark that ends an answer the end of a text. Other ends are kept in generation_config.json.
Result<> export_chatml(const Tokenizer& tokenizer, Json& config, const fs::path& folder) {
  SORTIE_TRY(write_file_atomic(folder / "chat_template.jinja", chatml_template()));
  std::error_code error;
  fs::remove(folder / "chat_template.json", error);  // a template of the older kind
  if (error) return std::unexpected(os_error(error.value(), folder.string()));
  const std::optional<std::int32_t> end = chat_marks(tokenizer).end;
  SORTIE_TRY(change(folder / "tokenizer_config.json", /*must_be=*/false, [&](Json& json) {
    json["chat_template"] = chatml_template();  // for versions that do not read the other file
    if (end) json["eos_token"] = kChatEnd;
  }));
  if (!end) return {};
  SORTIE_TRY(change(folder / "special_tokens_map.json", /*must_be=*/true,
                    [](Json& json) { json["eos_token"] = kChatEnd; }));
  const std::vector<std::int64_t> config_ends = ids_in(config.value("eos_token_id", Json()));
  config["eos_token_id"] = *end;
  return change(folder / "generation_config.json", /*must_be=*/true, [&](Json& json) {
    const Json before = json.value("eos_token_id", Json());
    std::vector<std::int64_t> ends = {*end};
    for (const std::int64_t id : before.is_null() ? config_ends : ids_in(before))
      if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
    json["eos_token_id"] = ends.size() == 1 ? Json(ends[0]) : Json(ends);
  });
}

/// Returns an id or null. Without the key, transformers assumes default ids.
Json id_or_null(std::optional<std::int32_t> id) {
  return id ? Json(*id) : Json(nullptr);
}

Result<> add_companions(const Tokenizer& tokenizer, Json& config, const fs::path& folder) {
  const std::vector<std::int32_t>& before = tokenizer.special_tokens().before;
  const std::optional<std::int32_t> begin =
      before.empty() ? std::nullopt : std::optional(before.front());
  const std::optional<std::int32_t> end = tokenizer.eod_id();
  // A model whose vocabulary lacks the end (byte tokens without end marks) never predicts it.
  const bool ends = end && *end < config.value("vocab_size", std::int64_t{0});
  Json special = Json::object();
  if (begin) special["bos_token"] = tokenizer.token_text(*begin);
  if (ends) special["eos_token"] = tokenizer.token_text(*end);
  // Which class of transformers reads a sentencepiece model depends on how it was made, which is
  // not known here.
  if (tokenizer.name().starts_with("hf:")) {
    Json about = special;
    about["tokenizer_class"] = "PreTrainedTokenizerFast";
    about["clean_up_tokenization_spaces"] = false;
    SORTIE_TRY(add(folder / "tokenizer_config.json", about));
  }
  SORTIE_TRY(add(folder / "special_tokens_map.json", special));
  config["bos_token_id"] = id_or_null(begin);
  config["eos_token_id"] = id_or_null(ends ? end : std::nullopt);
  Json generation = Json::object();
  if (begin) generation["bos_token_id"] = *begin;
  if (ends) generation["eos_token_id"] = *end;
  return add(folder / "generation_config.json", generation);
}

}  // namespace

Result<> export_assets(const OpenedModel& opened, Json& config, const fs::path& folder) {
  for (const fs::path& asset : hf_assets(opened.assets)) SORTIE_TRY(copy_into(asset, folder));
  if (!opened.checkpoint) return {};
  for (const fs::path& asset : hf_assets(*opened.checkpoint / kTokenizerFolder))
    SORTIE_TRY(copy_into(asset, folder));
  SORTIE_ASSIGN_OR_RETURN(const auto stored, find_stored_tokenizer(*opened.checkpoint));
  SORTIE_ASSIGN_OR_RETURN(const TextForm form, find_text_form(*opened.checkpoint));
  const bool imported = opened.config_json.is_object();
  if (!stored || (imported && !form.chatml)) return {};
  if (imported) {
    SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, make_tokenizer(stored->name));
    return export_chatml(*tokenizer, config, folder);
  }
  if (stored->name == "byte")
    SORTIE_TRY(write_file_atomic(folder / "tokenizer.json", byte_tokenizer_json()));
  bool only_pieces = stored->name.starts_with("sentencepiece:");
  if (only_pieces) {
    SORTIE_ASSIGN_OR_RETURN(const std::string model, read_file(folder / "tokenizer.model"));
    if (const auto json = tokenizer_json_of_sentencepiece(model)) {
      SORTIE_TRY(write_file_atomic(folder / "tokenizer.json", *json));
      only_pieces = false;
    }
  }
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, only_pieces
                                                    ? load_sentencepiece(folder / "tokenizer.model")
                                                    : load_hf_tokenizer(folder));
  SORTIE_TRY(add_companions(*tokenizer, config, folder));
  if (!form.chatml) return {};
  return export_chatml(*tokenizer, config, folder);
}

}  // namespace sortie::trainer

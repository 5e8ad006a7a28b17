#include "trainer/hf/export_assets.h"

#include "common/base/atomic_file.h"
#include "trainer/tokenizer/spm_json.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Writes `json` under a name that is not there yet.
Result<> add(const fs::path& path, const Json& json) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return {};
  return write_file_atomic(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

/// An id, or null: without the key transformers assumes ids of its own.
Json id_or_null(std::optional<std::int32_t> id) {
  return id ? Json(*id) : Json(nullptr);
}

Result<> add_companions(const Tokenizer& tokenizer, Json& config, const fs::path& folder) {
  const std::vector<std::int32_t>& before = tokenizer.special_tokens().before;
  const std::optional<std::int32_t> begin =
      before.empty() ? std::nullopt : std::optional(before.front());
  const std::optional<std::int32_t> end = tokenizer.eod_id();
  Json special = Json::object();
  if (begin) special["bos_token"] = tokenizer.token_text(*begin);
  if (end) special["eos_token"] = tokenizer.token_text(*end);
  // Which class reads a sentencepiece model alone depends on how that was made; its user knows.
  if (tokenizer.name().starts_with("hf:")) {
    Json about = special;
    about["tokenizer_class"] = "PreTrainedTokenizerFast";
    about["clean_up_tokenization_spaces"] = false;
    SORTIE_TRY(add(folder / "tokenizer_config.json", about));
  }
  SORTIE_TRY(add(folder / "special_tokens_map.json", special));
  // A model whose vocabulary lacks the end (bytes without end marks) never predicts it.
  const bool ends = end && *end < config.value("vocab_size", std::int64_t{0});
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
  const bool imported = opened.config_json.is_object();
  SORTIE_ASSIGN_OR_RETURN(const auto stored, find_stored_tokenizer(*opened.checkpoint));
  if (!stored || imported) return {};
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
  return add_companions(*tokenizer, config, folder);
}

}  // namespace sortie::trainer

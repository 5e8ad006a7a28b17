#include "trainer/state/model_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/atomic_file.h"
#include "common/config/saved.h"
#include "trainer/checkpoint/open_checkpoint.h"
#include "trainer/hf/import.h"
#include "trainer/hf/open_model.h"
#include "trainer/loop/trainer.h"
#include "trainer/nn/lora.h"
#include "trainer/ops/copy.h"
#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {
namespace {

/// Reads eos_token_id of a file that an import has kept: one token, several, or none.
Result<std::vector<std::int32_t>> end_tokens(const std::filesystem::path& file) {
  std::vector<std::int32_t> tokens;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return tokens;
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = json.is_object() ? json.find("eos_token_id") : json.end();
  if (found == json.end() || found->is_null()) return tokens;
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_integer()) tokens.push_back(id.get<std::int32_t>());
    return id.is_number_integer();
  };
  const bool good = found->is_array() ? std::ranges::all_of(*found, add) : add(*found);
  if (!good)
    return fail(ErrorCode::data, fmt::format("{}: eos_token_id is {}, which is no token",
                                             file.string(), found->dump()));
  return tokens;
}

/// Returns the tokens of the folder's files, otherwise the tokenizer's end-of-document token.
Result<std::vector<std::int32_t>> end_of_texts(const std::filesystem::path& folder,
                                               const Tokenizer& tokenizer) {
  for (const auto& [room, file] :
       {std::pair(kTokenizerFolder, "generation_config.json"),
        std::pair(kHfNotes, "generation_config.json"), std::pair(kHfNotes, "config.json")}) {
    SORTIE_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens, end_tokens(folder / room / file));
    if (!tokens.empty()) return tokens;
  }
  if (const auto end = tokenizer.eod_id()) return std::vector<std::int32_t>{*end};
  return std::vector<std::int32_t>{};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> LoadedModel::tokenizer(const std::string& named) const {
  SORTIE_ASSIGN_OR_RETURN(const auto stored, find_stored_tokenizer(folder));
  if (!named.empty()) {
    SORTIE_ASSIGN_OR_RETURN(auto tokenizer, make_tokenizer(named));
    std::vector<TokenizerClaim> claims = {{"--tokenizer", id_of(*tokenizer)}};
    if (stored) claims.push_back({fmt::format("checkpoint {}", folder.string()), *stored});
    SORTIE_TRY(check_tokenizers_agree(claims));
    return tokenizer;
  }
  if (stored) return make_tokenizer(stored->name);
  // Checkpoints of older versions have none.
  if (!job.data.tokenizer.empty()) return make_tokenizer(job.data.tokenizer);
  return fail(
      ErrorCode::data,
      fmt::format("{}: the checkpoint holds no tokenizer; name the one that its token files "
                  "were built with, as --tokenizer hf:FILE",
                  folder.string()));
}

Result<> LoadedModel::encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                    std::vector<std::int32_t>& ids) const {
  SORTIE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> before, tokens_before_prompt(tokenizer));
  ids.insert(ids.end(), before.begin(), before.end());
  return tokenizer.encode(text, ids);
}

Result<std::vector<std::int32_t>> LoadedModel::tokens_before_prompt(
    const Tokenizer& tokenizer) const {
  SORTIE_ASSIGN_OR_RETURN(const TextForm form, find_text_form(folder));
  if (form.special_tokens.value_or(true)) return tokenizer.special_tokens().before;
  return std::vector<std::int32_t>{};
}

Result<std::vector<std::int32_t>> LoadedModel::stop_tokens(const Tokenizer& tokenizer) const {
  SORTIE_ASSIGN_OR_RETURN(const TextForm form, find_text_form(folder));
  SORTIE_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens, end_of_texts(folder, tokenizer));
  if (!form.chatml) return tokens;
  if (const auto end = chat_marks(tokenizer).end;
      end && std::ranges::find(tokens, *end) == tokens.end())
    tokens.insert(tokens.begin(), *end);
  return tokens;
}

Result<std::unique_ptr<LoadedModel>> load_model(const std::filesystem::path& place, int threads,
                                                const std::string& precision, Device device,
                                                const OnProgress& progress, CheckDepth depth) {
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader, open_checkpoint(place, depth, {}, progress));
  const std::filesystem::path& folder = reader.folder();
  // The model is the one that was trained: its config is part of the checkpoint.
  SORTIE_ASSIGN_OR_RETURN(
      config::JobConfig job,
      config::parse_saved_model(reader.manifest().config, (folder / kManifestFile).string()));
  std::optional<GpuFacts> gpu;
  if (device.kind == DeviceKind::cuda) gpu.emplace();  // all supported ones compute alike
  SORTIE_ASSIGN_OR_RETURN(const DType dtype, choose_precision(precision, cpu_facts(), gpu));
  SORTIE_TRY(check_device_limits(job.model, device));
  auto result = std::make_unique<LoadedModel>(threads, device);
  result->folder = folder;
  result->job = std::move(job);
  result->step = reader.manifest().step;
  result->run_id = reader.manifest().run_id;
  ParameterStore& store = result->store;
  result->model = std::make_unique<LanguageModel>(result->context, result->job.model, store,
                                                  /*recompute_layers=*/false);
  SORTIE_TRY(add_lora(result->job.lora, store));
  const auto bytes_of = [](const auto& parameter) {
    return static_cast<std::uint64_t>(parameter->elements()) * sizeof(float);
  };
  std::uint64_t done = 0, all = 0;
  std::set<std::string> names;
  for (const auto& parameter : store.parameters()) {
    all += bytes_of(parameter);
    names.insert("model." + parameter->name());
  }
  SORTIE_TRY(reader.expect_no_others("model.", names));
  if (progress) progress({"loading checkpoint", 0, all});
  store.finalize(result->context, dtype, 16, /*with_optimizer=*/false);
  for (const auto& parameter : store.parameters()) {
    const Dims shape = dims_of(parameter->spec().shape);
    const ops::HostAccess<float> values(
        store.context(), store.master().slice(0, parameter->offset(), parameter->elements()),
        ops::HostValues::replaced);
    SORTIE_TRY(
        reader.read_f32("model." + parameter->name(), shape, Piece::whole(shape), values.span()));
    done += bytes_of(parameter);
    if (progress) progress({"loading checkpoint", done, all});
  }
  store.refresh_compute_copy(result->context);
  return result;
}

}  // namespace sortie::trainer

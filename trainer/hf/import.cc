#include "trainer/hf/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>

#include "common/base/atomic_file.h"
#include "common/base/log.h"
#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/store.h"
#include "trainer/checkpoint/weight_types.h"
#include "trainer/storage/make_folder.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTensorNotes = "tensors.json";

Result<> write_import_notes(const OpenedModel& opened, const fs::path& folder) {
  const fs::path notes = folder / kHfNotes;
  SORTIE_TRY(make_folder(notes));
  for (const fs::path& asset : hf_assets(opened.assets)) SORTIE_TRY(copy_into(asset, notes));
  SORTIE_TRY(write_file_atomic(notes / "config.json", opened.config_json.dump(2) + "\n"));
  Json types = Json::object();
  for (std::size_t i = 0; i < opened.tensors.size(); ++i)
    types[opened.tensors[i].name] = storage_name(opened.types[i]);
  const Json json = {{"left_out_prefix", opened.left_out_prefix}, {"types", types}};
  return write_file_atomic(notes / kTensorNotes, json.dump(1) + "\n");
}

/// Returns the type of all tensors of each parameter; f32 if they differ.
std::map<const Parameter*, StorageType> parameter_types(const OpenedModel& opened) {
  std::map<const Parameter*, StorageType> types;
  for (std::size_t i = 0; i < opened.tensors.size(); ++i) {
    const auto [place, first] = types.emplace(opened.tensors[i].parameter, opened.types[i]);
    if (!first && place->second != opened.types[i]) place->second = StorageType::f32;
  }
  return types;
}

/// Checks the tokenizer that the checkpoint will use: find_stored_tokenizer() takes the first of
/// the two files. One that is damaged is an error; one of a kind that Sortie does not support a
/// warning, because the weights are of use without it.
Result<> check_tokenizer(const OpenedModel& opened) {
  const auto is_one = [&](const char* name) {
    return std::ranges::any_of(hf_assets(opened.assets),
                               [&](const fs::path& file) { return file.filename() == name; });
  };
  const bool json = is_one("tokenizer.json");
  if (!json && !is_one("tokenizer.model")) return {};
  const fs::path file = opened.assets / (json ? "tokenizer.json" : "tokenizer.model");
  const auto tokenizer = json ? load_hf_tokenizer(file) : load_sentencepiece(file);
  if (!tokenizer && tokenizer.error().code == ErrorCode::unsupported) {
    log::warning(
        "{}; `generate`, `eval` and `data build` can not use this tokenizer, and the weights are "
        "imported without it",
        tokenizer.error().message);
    return {};
  }
  if (!tokenizer)
    return fail(ErrorCode::data,
                fmt::format("{}; or move the file away to import the weights alone",
                            tokenizer.error().message));
  const std::int64_t ids = (*tokenizer)->vocab_size(), rows = opened.config.vocab_size;
  if (ids > rows)
    log::warning(
        "{}: it has {} ids, and the model has {}: texts with the others can not be used; is it "
        "the tokenizer of this model?",
        file.string(), ids, rows);
  return {};
}

}  // namespace

Result<> read_import_notes(OpenedModel& opened, const fs::path& checkpoint) {
  const fs::path notes = checkpoint / kHfNotes;
  opened.types.assign(opened.tensors.size(), StorageType::f32);
  std::error_code ignored;
  if (!fs::exists(notes / kTensorNotes, ignored)) return {};
  const auto damaged = [&](const char* name) {
    return fail(ErrorCode::checkpoint, fmt::format("{}: damaged", (notes / name).string()));
  };
  SORTIE_ASSIGN_OR_RETURN(const std::string config, read_file(notes / "config.json"));
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(notes / kTensorNotes));
  opened.config_json = Json::parse(config, nullptr, false);
  const Json json = Json::parse(text, nullptr, false);
  if (!opened.config_json.is_object()) return damaged("config.json");
  if (!json.is_object() || !json.contains("types") || !json["types"].is_object() ||
      !json.contains("left_out_prefix") || !json["left_out_prefix"].is_string())
    return damaged(kTensorNotes);
  opened.assets = notes;
  opened.left_out_prefix = json["left_out_prefix"];
  for (std::size_t i = 0; i < opened.tensors.size(); ++i) {
    const auto found = json["types"].find(opened.tensors[i].name);
    if (found == json["types"].end() || !found->is_string()) continue;  // only in Sortie
    const auto type = storage_from_name(found->get_ref<const std::string&>());
    if (!type || !is_weight_type(*type)) return damaged(kTensorNotes);
    opened.types[i] = *type;
  }
  return {};
}

Result<> carry_import_notes(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (from.empty() || !fs::is_directory(from / kHfNotes, error)) return {};
  SORTIE_TRY(make_folder(to / kHfNotes));
  for (const auto& file : fs::directory_iterator(from / kHfNotes, error))
    SORTIE_TRY(copy_into(file.path(), to / kHfNotes));
  if (error) return std::unexpected(os_error(error.value(), (from / kHfNotes).string()));
  return sync_path(to / kHfNotes);
}

Result<ImportReport> import_hf(const fs::path& source, const fs::path& out,
                               const OnProgress& progress) {
  std::error_code problem;
  const bool there = fs::exists(source, problem);
  if (problem) return std::unexpected(os_error(problem.value(), source.string()));
  if (!there)
    return fail(ErrorCode::not_found,
                fmt::format("{}: no such file or folder; name a Hugging Face model folder, or a "
                            "file of llm.c",
                            source.string()));
  if (!HfFolder::is_one(source) && !fs::is_regular_file(source, problem))
    return fail(
        ErrorCode::not_found,
        fmt::format("{}: neither a Hugging Face model folder (no config.json) nor a file of "
                    "llm.c",
                    source.string()));
  SORTIE_TRY(check_has_no_checkpoint(out));
  SORTIE_ASSIGN_OR_RETURN(const StoredModel found, find_model(source));
  const OpenedModel& opened = found.opened;
  SORTIE_TRY(check_tokenizer(opened));
  SORTIE_ASSIGN_OR_RETURN(CheckpointStore store, CheckpointStore::open(out, {"import"}));
  std::vector<PieceToWrite> pieces;
  std::uint64_t bytes = 0;
  const auto types = parameter_types(opened);
  for (const auto& parameter : opened.store->parameters()) {
    const Dims shape = dims_of(parameter->spec().shape);
    const StorageType type = types.at(parameter.get());
    pieces.push_back({"model." + parameter->name(), type, shape, Piece::whole(shape),
                      found.parameter_data(*parameter, type)});
    bytes += pieces.back().data.size;
  }
  config::JobConfig job;
  job.model = opened.config;
  Manifest manifest;
  manifest.run_id = kImportRun;
  manifest.created = std::time(nullptr);
  manifest.config = config::to_toml(job);
  SORTIE_ASSIGN_OR_RETURN(const fs::path work, store.begin(0, bytes));
  std::uint64_t written = 0;
  const OnWritten count = [&](std::uint64_t size) {
    // A shard has a header and padding besides the bytes of its pieces.
    const std::uint64_t before = std::min(written, bytes), now = std::min(written += size, bytes);
    if (progress && now > before) progress({"writing the checkpoint", now, bytes});
  };
  const auto finish = [&]() -> Result<fs::path> {
    SORTIE_ASSIGN_OR_RETURN(const ShardInfo shard,
                            write_shard(work, 0, 1, pieces, {.on_written = count}));
    manifest.lineage = lineage_of_content(manifest.config + shard.sha256);
    SORTIE_TRY(write_import_notes(opened, work));
    return store.commit(work, std::move(manifest), {shard});
  };
  Result<fs::path> path = finish();
  if (!path) {
    const auto abandoned = store.abandon(work);
    Error error = std::move(path).error();
    if (!abandoned) error.message += "; and " + abandoned.error().message;
    return std::unexpected(std::move(error));
  }
  return ImportReport{*path, static_cast<std::int64_t>(opened.tensors.size()),
                      parameter_elements(opened.tensors)};
}

}  // namespace sortie::trainer

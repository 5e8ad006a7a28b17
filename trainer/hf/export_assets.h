// What an exported folder has besides weights and config.json: the tokenizer and what belongs to
// it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "trainer/hf/open_model.h"

namespace sortie::trainer {

/// Copies the assets of the folder that the model was imported from, and over them the tokenizer of
/// the run that trained it, into `folder`. For a model that was not imported it adds what
/// transformers needs to find the tokenizer and to end a text (tokenizer_config.json,
/// special_tokens_map.json, generation_config.json, and in `config` the ids of begin and end) where
/// the run had no such files. A model that was trained on conversations in ChatML gets the template
/// of ChatML, and its mark of an answer's end as the end of a text, whatever it was imported with.
Result<> export_assets(const OpenedModel& opened, nlohmann::json& config,
                       const std::filesystem::path& folder);

}  // namespace sortie::trainer

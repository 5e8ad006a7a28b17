// Writes the files of an exported folder besides weights and config.json: the tokenizer and its
// companion files.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "trainer/hf/open_model.h"

namespace sortie::trainer {

/// Copies into `folder` the assets of the folder that the model was imported from, then the
/// tokenizer of the run that trained it, which replaces files of the same name. For a model that
/// was not imported, also sets the ids of begin and end in `config`, and adds the files that
/// transformers needs to find the tokenizer and to end a text, unless the run has them
/// (tokenizer_config.json, special_tokens_map.json, generation_config.json). A model that was
/// trained on conversations in ChatML gets the template of ChatML, and its mark of an answer's end
/// as the end of a text, whatever it was imported with.
Result<> export_assets(const OpenedModel& opened, nlohmann::json& config,
                       const std::filesystem::path& folder);

}  // namespace sortie::trainer

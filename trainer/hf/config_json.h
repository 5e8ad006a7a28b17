// Converts between config.json of a Hugging Face folder and the section [model] of a config.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "common/base/result.h"
#include "trainer/models/families.h"

namespace sortie::trainer {

/// Returns the model that a config.json of transformers 4 or 5 describes. Sets sequence_length to
/// all of its positions. An error lists every problem; each begins with `where`.
Result<config::ModelConfig> read_hf_config(const nlohmann::json& json, std::string_view where);

/// Writes the model into `json`, which may be an empty object or the config.json that the model
/// came from. Keys that have no meaning here are kept, and so is the spelling of transformers 4.
Result<> write_hf_config(const config::ModelConfig& model, nlohmann::json& json);

}  // namespace sortie::trainer

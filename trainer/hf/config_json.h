// config.json of a Hugging Face folder and [model], both ways.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "common/base/result.h"
#include "trainer/models/families.h"

namespace sortie::trainer {

/// The model that a config.json of transformers 4 or 5 describes; sequence_length is all of its
/// positions. Every problem at once, `where` opens the message.
Result<config::ModelConfig> read_hf_config(const nlohmann::json& json, std::string_view where);

/// Writes the model into `json`, which may be an empty object or the config.json that the model
/// came from: keys that have no meaning here stay, and so does the spelling of transformers 4.
Result<> write_hf_config(const config::ModelConfig& model, nlohmann::json& json);

}  // namespace sortie::trainer

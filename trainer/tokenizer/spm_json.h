// A sentencepiece model as a tokenizer.json, for programs that read no .model file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sortie::trainer {

/// The tokenizer.json with the ids of the sentencepiece model `file` (its bytes). One difference
/// is left: a control piece ("</s>") that a text spells out is that token, as in every
/// tokenizer.json.
///
/// Absent where the format has no such thing or would give other ids: models that are not BPE
/// with bytes for unknown characters, or have precompiled normalisation rules, take away spaces, do
/// not escape them or put them behind words, have pieces of the user's or unused ones, pieces of
/// equal score, or characters that are no pieces. Those that `data train-tokenizer` makes have none
/// of that.
std::optional<std::string> tokenizer_json_of_sentencepiece(std::string_view file);

}  // namespace sortie::trainer

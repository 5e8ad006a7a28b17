// Converts a sentencepiece model to a tokenizer.json, for programs that can not read .model files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sortie::trainer {

/// Returns a tokenizer.json that gives the same ids as the sentencepiece model `file` (its bytes).
/// One difference remains: a control piece ("</s>") that is spelled out in a text becomes that
/// token, as with every tokenizer.json.
///
/// Returns nullopt if the format can not express the model or would give other ids. These are
/// models that are not BPE with byte fallback; that have precompiled normalisation rules; that
/// remove spaces, do not escape them or put them after words; or that have user-defined or unused
/// pieces, longer pieces of equal score, or characters that are not pieces. None of this applies to
/// models of `data train-tokenizer`.
std::optional<std::string> tokenizer_json_of_sentencepiece(std::string_view file);

}  // namespace sortie::trainer

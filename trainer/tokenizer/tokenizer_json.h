// The common parts of every tokenizer.json (the format of Hugging Face's tokenizers) that Sortie
// writes. Each has a BPE model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace sortie::trainer {

/// A tokenizer.json without tokens: no normalizer, pre_tokenizer, post_processor, decoder or
/// added_tokens; `model` has neither byte fallback nor an unknown token. tokenizer_json_text() adds
/// vocab and merges.
nlohmann::ordered_json empty_tokenizer_json();

/// An entry of added_tokens: a special token that is matched literally.
nlohmann::ordered_json special_token_json(std::int32_t id, std::string_view text);

/// The component ByteLevel, for pre_tokenizer or decoder, without a space added before the text.
nlohmann::ordered_json byte_level_json(bool trim_offsets, bool use_regex);

struct TokenPair {
  std::int32_t left, right;
};

/// Returns the content of the file. `tokens` are by id. `merges` are in the order of their ranks.
std::string tokenizer_json_text(nlohmann::ordered_json root, std::span<const std::string> tokens,
                                std::span<const TokenPair> merges);

}  // namespace sortie::trainer

// tokenizer.json, the file of Hugging Face's tokenizers: what all those that Sortie writes have in
// common. Each has a BPE model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace sortie::trainer {

/// A file without tokens: no normalizer, pre_tokenizer, post_processor, decoder, added_tokens;
/// `model` has neither bytes nor unknown tokens. Its vocab and merges come with
/// tokenizer_json_text().
nlohmann::ordered_json empty_tokenizer_json();

/// An entry of added_tokens: a special token, which is matched literally.
nlohmann::ordered_json special_token_json(std::int32_t id, std::string_view text);

/// The component ByteLevel, as pre_tokenizer or decoder, without a space before the text.
nlohmann::ordered_json byte_level_json(bool trim_offsets, bool use_regex);

struct TokenPair {
  std::int32_t left, right;
};

/// The text of the file. `tokens` by id; `merges` in their order, the first one goes first.
std::string tokenizer_json_text(nlohmann::ordered_json root, std::span<const std::string> tokens,
                                std::span<const TokenPair> merges);

}  // namespace sortie::trainer

// The patterns by which byte-level BPE tokenizers cut text into words, as hand-written matchers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::trainer {

/// A cut of text into words that follow one another without gaps.
enum class WordPattern {
  whole,   // no cut at all
  gpt2,    // GPT-2, GPT-Neo, GPT-NeoX
  llama3,  // numbers in groups of up to three digits
  qwen2,   // each digit for itself; Qwen 2 and 3
  qwen35,  // as qwen2, and marks count as letters; Qwen 3.5
  o200k,  // a word begins at an upper case letter behind a lower case one; GPT-4o, gpt-oss, Llama 4
  tekken,       // as o200k, each digit for itself, contractions apart; Mistral Nemo and later
  deepseek_v3,  // DeepSeek-V3 and R1: three patterns one after the other
};

/// The pattern that regular expressions of a tokenizer.json, one after the other, stand for; absent
/// for all others.
std::optional<WordPattern> word_pattern_of_regexes(const std::vector<std::string>& regexes);
/// The other way; not for `whole`, which has none.
std::vector<std::string> regexes_of_word_pattern(WordPattern pattern);
/// By names: "gpt2", "llama3", "qwen2", "qwen35", "o200k", "tekken", "deepseek-v3".
std::optional<WordPattern> word_pattern_by_name(std::string_view name);

/// The end of the word that begins at `at`; `text` is valid UTF-8 and at < text.size().
std::size_t word_end(WordPattern pattern, std::string_view text, std::size_t at);

/// The first place from `from` on where a word ends under every pattern but `whole`, whatever is
/// before and after it: after a line break between visible ASCII and an ASCII letter or digit. npos
/// when there is none. (Of several spaces in a row the last is a word or not by what follows.)
std::size_t find_word_cut(std::string_view text, std::size_t from);

}  // namespace sortie::trainer

// The patterns by which byte-level BPE tokenizers split text into words, as hand-written matchers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::trainer {

/// How a text is split into words. The words are contiguous.
enum class WordPattern {
  whole,   // no split
  gpt2,    // GPT-2, GPT-Neo, GPT-NeoX
  llama3,  // numbers in groups of up to three digits
  qwen2,   // each digit separately; Qwen 2 and 3
  qwen35,  // like qwen2, but marks count as letters; Qwen 3.5
  o200k,   // a word begins at an upper case letter after a lower case one; GPT-4o, gpt-oss, Llama 4
  tekken,  // like o200k, but digits and contractions separately; Mistral Nemo and later
  deepseek_v3,  // DeepSeek-V3 and R1: three patterns, one after the other
};

/// Returns the pattern that corresponds to the regular expressions of a tokenizer.json, which are
/// applied one after the other. Returns nullopt for all others.
std::optional<WordPattern> word_pattern_of_regexes(const std::vector<std::string>& regexes);
/// Returns the regular expressions of a pattern; empty for `whole`.
std::vector<std::string> regexes_of_word_pattern(WordPattern pattern);
/// Names: "gpt2", "llama3", "qwen2", "qwen35", "o200k", "tekken", "deepseek-v3".
std::optional<WordPattern> word_pattern_by_name(std::string_view name);

/// Returns the end of the word that begins at `at`. `text` must be valid UTF-8 and `at` below
/// text.size().
std::size_t word_end(WordPattern pattern, std::string_view text, std::size_t at);

/// Returns the first position from `from` on where a word ends under every pattern but `whole`,
/// whatever text precedes and follows: after a line break between visible ASCII and an ASCII letter
/// or digit. Returns npos if there is none. (Spaces are no safe positions: whether the last of
/// several spaces is a separate word depends on the text after it.)
std::size_t find_word_cut(std::string_view text, std::size_t from);

}  // namespace sortie::trainer

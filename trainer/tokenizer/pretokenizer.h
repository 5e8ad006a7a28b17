// The patterns by which byte-level BPE tokenizers cut text into words, as hand-written matchers.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace sortie::trainer {

/// A cut of text into words that follow one another without gaps.
enum class WordPattern {
  whole,   // no cut at all
  gpt2,    // GPT-2, GPT-Neo, GPT-NeoX
  llama3,  // numbers in groups of up to three digits
  qwen2,   // each digit for itself; Qwen 2 and 3
  qwen35,  // as qwen2, and marks count as letters; Qwen 3.5
};

/// The pattern that a regular expression of a tokenizer.json stands for; absent for every other.
std::optional<WordPattern> word_pattern_of_regex(std::string_view regex);
/// The other way; not for `whole`, which has none.
std::string_view regex_of_word_pattern(WordPattern pattern);
/// By the names above: "gpt2", "llama3", "qwen2", "qwen35".
std::optional<WordPattern> word_pattern_by_name(std::string_view name);

/// The end of the word that begins at `at`; `text` is valid UTF-8 and at < text.size().
std::size_t word_end(WordPattern pattern, std::string_view text, std::size_t at);

/// The first place from `from` on where a word ends under every pattern but `whole`, whatever is
/// before and after it: after a line break between visible ASCII and an ASCII letter or digit. npos
/// when there is none. (Of several spaces in a row the last is a word or not by what follows.)
std::size_t find_word_cut(std::string_view text, std::size_t from);

}  // namespace sortie::trainer

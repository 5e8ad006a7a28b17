// Normalizer: reproduces sentencepiece's normaliser byte for byte, and works incrementally.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/spm_model.h"
#include "trainer/tokenizer/spm_trie.h"

namespace sortie::trainer::spm {

/// Immutable and thread-safe.
class Normalizer {
 public:
  /// Returns nullopt if the precompiled rules are damaged.
  static std::optional<Normalizer> create(const Model& model);

  /// Whether normalisation leaves valid text unchanged, except that each space is escaped.
  bool keeps_text() const { return keeps_text_; }

  /// Returns the length of the user-defined symbol at the beginning of `text`; 0 = none.
  std::size_t user_symbol(std::string_view text) const { return symbols_.longest_prefix(text); }
  bool has_user_symbols() const { return !symbols_.empty(); }

  /// Normalises one text incrementally. The normaliser and the text must outlive it.
  class Pass {
   public:
    Pass(const Normalizer& normalizer, std::string_view text);
    /// Appends about `bytes` more bytes. At the end of the text it may also remove spaces at the
    /// end of `out`. Until done(), the caller must therefore leave trailing spaces, and the word
    /// before them, in `out`.
    void append(std::string& out, std::size_t bytes);
    bool done() const { return done_; }

   private:
    const Normalizer& normalizer_;
    std::string_view rest_;
    bool after_space_ = false;
    bool prefix_due_ = false;
    bool done_ = false;
  };

 private:
  struct Step {
    std::string_view text;
    std::size_t used;  // consumed bytes of the input
  };
  /// Returns what the beginning of `input` becomes. `input` must not be empty.
  Step step(std::string_view input) const;
  Step rule_step(std::string_view input) const;
  void append_escaped(std::string_view text, std::string& out) const;
  void find_plain_bytes();

  bool dummy_prefix_ = true, suffix_ = false, trim_ = true, escape_ = true, keeps_text_ = false;
  std::vector<std::uint32_t> units_;  // double array of the rules
  std::string replacements_;          // each is terminated by NUL
  PieceTrie symbols_;
  /// Bytes that stay unchanged if the next byte is ASCII too.
  std::array<bool, 128> plain_{};
};

}  // namespace sortie::trainer::spm

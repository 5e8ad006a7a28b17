// Normalizer: text as sentencepiece's normaliser gives it, byte for byte, piece by piece.
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

/// Immutable and safe to share between threads.
class Normalizer {
 public:
  /// Absent when the precompiled rules are damaged.
  static std::optional<Normalizer> create(const Model& model);

  /// Whether normalising leaves any valid text alone, but for spaces, which are escaped one for
  /// one.
  bool keeps_text() const { return keeps_text_; }

  /// The user-defined symbol that `text` begins with; 0 = none.
  std::size_t user_symbol(std::string_view text) const { return symbols_.longest_prefix(text); }
  bool has_user_symbols() const { return !symbols_.empty(); }

  /// One text on its way. The normaliser and the text must outlive it.
  class Pass {
   public:
    Pass(const Normalizer& normalizer, std::string_view text);
    /// Appends about `bytes` more bytes. At the end of the text it may also take away spaces that
    /// `out` ends with: until done() the caller leaves those, and what they follow, in `out`.
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
    std::size_t used;  // bytes of the input
  };
  /// What the beginning of `input`, which is not empty, becomes.
  Step step(std::string_view input) const;
  Step rule_step(std::string_view input) const;
  void append_escaped(std::string_view text, std::string& out) const;
  void find_plain_bytes();

  bool dummy_prefix_ = true, suffix_ = false, trim_ = true, escape_ = true, keeps_text_ = false;
  std::vector<std::uint32_t> units_;  // of the double array of the rules
  std::string replacements_;          // each ends with NUL
  PieceTrie symbols_;
  /// Bytes that stay as they are where the next byte is ASCII too.
  std::array<bool, 128> plain_{};
};

}  // namespace sortie::trainer::spm

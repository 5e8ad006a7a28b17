// BpeEncoder: the ids of single words under a vocabulary and its merge rules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/bpe_merges.h"
#include "trainer/tokenizer/hf_spec.h"
#include "trainer/tokenizer/word_cache.h"

namespace sortie::trainer {

/// Immutable and shared between threads; what a thread changes is in its Scratch.
class BpeEncoder {
 public:
  struct Scratch {
    MergeScratch merge{};
    WordCache cache{};
  };

  /// `byte_level`: symbols are bytes, written as the 256 letters of byte-level BPE; else
  /// characters.
  BpeEncoder(const hf::Model& model, bool byte_level);

  /// Appends the ids of `word`, which is not empty; `readable` bytes from it on may be read.
  void encode(std::string_view word, std::size_t readable, Scratch& scratch,
              std::vector<std::int32_t>& ids) const;

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  void symbols_of(std::string_view word, std::vector<std::int32_t>& ids) const;
  /// The id of a symbol; negative when the vocabulary has none.
  std::int32_t id_of(std::string_view symbol) const;
  bool append_as_bytes(std::string_view symbol, std::vector<std::int32_t>& ids) const;

  bool byte_level_;
  bool whole_words_;  // a word that is a token is not merged
  bool fuse_unknown_;
  std::optional<std::int32_t> unknown_;
  std::array<std::int32_t, 256> byte_ids_;      // byte level: of each byte
  std::array<std::int32_t, 256> fallback_ids_;  // <0x00> to <0xFF>
  bool byte_fallback_;
  /// Tokens by their text (byte level: by their bytes); empty when only bytes are looked up.
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
  BpeMerges merges_;
};

}  // namespace sortie::trainer

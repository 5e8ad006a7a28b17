// BpeEncoder: converts single words to ids with a vocabulary and its merge rules.
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

/// Immutable and thread-safe. Mutable state is in Scratch, one per thread.
class BpeEncoder {
 public:
  struct Scratch {
    MergeScratch merge{};
    WordCache cache{};
  };

  /// `byte_level`: symbols are bytes, written as the 256 letters of byte-level BPE. Otherwise
  /// symbols are characters.
  BpeEncoder(const hf::Model& model, bool byte_level);

  /// Appends the ids of `word`, which must not be empty. `readable` is the number of bytes that may
  /// be read from the beginning of `word`.
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
  /// Returns the id of a symbol; negative if the vocabulary has none.
  std::int32_t id_of(std::string_view symbol) const;
  bool append_as_bytes(std::string_view symbol, std::vector<std::int32_t>& ids) const;

  bool byte_level_;
  bool whole_words_;  // a word that is a token is not merged (ignore_merges)
  bool fuse_unknown_;
  std::optional<std::int32_t> unknown_;
  std::array<std::int32_t, 256> byte_ids_;      // byte level: id of each byte
  std::array<std::int32_t, 256> fallback_ids_;  // ids of <0x00> to <0xFF>
  bool byte_fallback_;
  /// Ids by token text (byte level: by token bytes). Empty if only single bytes are looked up.
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
  BpeMerges merges_;
};

}  // namespace sortie::trainer

// Converts ids to text with the decoders of a tokenizer.json.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/tokenizer/hf_spec.h"

namespace sortie::trainer::hf {

class TokenDecoder {
 public:
  explicit TokenDecoder(const Spec& spec);

  /// Special tokens yield no text; ids without a token yield U+FFFD. The result is valid UTF-8.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  std::string decode_bytes(std::span<const std::int32_t> ids) const;
  bool is_known(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < tokens_.size() &&
           !tokens_[static_cast<std::size_t>(id)].empty();
  }

  std::vector<std::string> tokens_;  // by id; if bytes_only_, their bytes
  std::vector<bool> special_;
  std::vector<Decoder> decoders_;
  bool bytes_only_;
};

}  // namespace sortie::trainer::hf

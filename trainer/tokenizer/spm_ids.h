// Rules that convert pieces to ids: unknown pieces become bytes, or one id for a run of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/spm_model.h"

namespace sortie::trainer::spm {

class IdRules {
 public:
  /// Returns nullopt for a model without an unknown piece, which the library rejects.
  static std::optional<IdRules> create(const Model& model);

  std::int32_t unknown() const { return unknown_; }
  /// Appends the id of a piece. `begin` is where the ids of this text begin in `ids`. Without byte
  /// fallback, adjacent unknown pieces get one id.
  void add(std::string_view piece, std::int32_t id, std::size_t begin,
           std::vector<std::int32_t>& ids) const {
    if (id != unknown_) return ids.push_back(id);
    if (byte_fallback_) {
      for (const char c : piece) ids.push_back(bytes_[static_cast<unsigned char>(c)]);
    } else if (ids.size() == begin || ids.back() != unknown_) {
      ids.push_back(id);
    }
  }
  /// Whether the ids of two adjacent pieces of text, concatenated, are those of both together.
  bool independent() const { return byte_fallback_; }

 private:
  std::int32_t unknown_ = -1;
  bool byte_fallback_ = false;
  std::array<std::int32_t, 256> bytes_{};
};

}  // namespace sortie::trainer::spm

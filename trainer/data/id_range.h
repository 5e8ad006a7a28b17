// The smallest and the largest id among stored tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "trainer/data/index_format.h"

namespace sortie::trainer {

struct IdRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::max();
  std::int64_t max = -1;
};

/// `tokens`: whole tokens in the byte format of a .bin, at least one.
inline IdRange id_range(TokenType type, std::span<const std::byte> tokens) {
  return with_token_type(type, [&]<class T>(T) {
    T low = std::numeric_limits<T>::max();
    T high = std::numeric_limits<T>::min();
    for (std::size_t at = 0; at + sizeof(T) <= tokens.size(); at += sizeof(T)) {
      const T id = load_unaligned<T>(tokens.data() + at);
      low = std::min(low, id);
      high = std::max(high, id);
    }
    return IdRange{static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)};
  });
}

}  // namespace sortie::trainer

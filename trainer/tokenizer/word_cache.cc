#include "trainer/tokenizer/word_cache.h"

#include <xxhash.h>

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {

WordCache::Key WordCache::long_key(std::string_view word) {
  // The length is part of the key, so that words of equal keys have the same length.
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
  return {hash, std::uint64_t{255} << 56 | word.size()};
}

void WordCache::insert(std::string_view word, std::span<const std::int32_t> ids) {
  SORTIE_CHECK(!ids.empty() && word.size() <= kMaxWord);
  const bool is_long = last_key_.is_long();
  const std::size_t in_place = is_long ? 1 : 3;
  if (many_ids_.size() + ids.size() > kManyIds || long_words_.size() + word.size() > kLongBytes) {
    std::fill(lines_.begin(), lines_.end(), Line{});
    many_ids_.clear();
    long_words_.clear();
  }
  Entry entry{.key = last_key_, .count = static_cast<std::uint32_t>(ids.size())};
  if (ids.size() <= in_place) {
    std::transform(ids.begin(), ids.end(), entry.ids.begin(),
                   [](std::int32_t id) { return static_cast<std::uint32_t>(id); });
  } else {
    entry.ids[0] = static_cast<std::uint32_t>(many_ids_.size());
    for (const std::int32_t id : ids) many_ids_.push_back(static_cast<std::uint32_t>(id));
  }
  if (is_long) {
    entry.ids[2] = static_cast<std::uint32_t>(long_words_.size());
    long_words_.insert(long_words_.end(), word.begin(), word.end());
  }
  Set& set = set_of(last_key_);
  set[1] = set[0];  // drops the older of the two
  set[0] = entry;
}

}  // namespace sortie::trainer

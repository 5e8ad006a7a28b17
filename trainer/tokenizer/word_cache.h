// WordCache: caches the ids of words. Words repeat in a text, and a look-up is several times
// cheaper than merging.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace sortie::trainer {

/// One per thread. May drop words at any time; results do not depend on its history.
class WordCache {
 public:
  static constexpr std::size_t kMaxWord = 256;

  /// Returns the word's ids, or an empty span if it is not cached. The span is valid until the next
  /// insert. `readable` is the number of bytes that may be read from the beginning of the word.
  std::span<const std::int32_t> find(std::string_view word, std::size_t readable) {
    last_key_ = make_key(word, readable);
    for (const Entry& entry : set_of(last_key_))
      if (entry.key == last_key_ && is_word(entry, word)) return ids_of(entry);
    return {};
  }

  /// Adds the word of the last find(), which must have returned nothing. `ids` must not be empty.
  void insert(std::string_view word, std::span<const std::int32_t> ids);

 private:
  /// A word of up to 15 bytes is its own key, with the length in the last byte (1 to 15). The key
  /// of a longer word is its hash and length, with 255 in the last byte; its bytes are in
  /// long_words_.
  struct Key {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Key&) const = default;
    bool is_long() const { return high >> 56 == 255; }
  };
  struct Entry {
    Key key{};
    std::uint32_t count = 0;
    /// Up to three ids. If there are more, ids[0] is their index in many_ids_. For a long word,
    /// ids[2] is its index in long_words_, and at most one id is stored here.
    std::array<std::uint32_t, 3> ids{};
  };
  /// The two entries that can hold a word. They share one cache line of the CPU.
  using Set = std::array<Entry, 2>;
  struct alignas(64) Line {
    Set set{};
  };
  static constexpr std::size_t kSetBits = 15;
  static constexpr std::size_t kManyIds = std::size_t{1} << 21;
  static constexpr std::size_t kLongBytes = std::size_t{1} << 23;

  static Key make_key(std::string_view word, std::size_t readable) {
    Key key;
    if (word.size() > 15) return long_key(word);
    if (readable >= 16) {
      std::memcpy(&key, word.data(), 16);
      const std::size_t bits = word.size() * 8;
      if (bits <= 64) {
        key.low &= bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
        key.high = 0;
      } else {
        key.high &= (std::uint64_t{1} << (bits - 64)) - 1;
      }
    } else {
      std::memcpy(&key, word.data(), word.size());
    }
    key.high |= std::uint64_t{word.size()} << 56;
    return key;
  }
  static Key long_key(std::string_view word);

  Set& set_of(const Key& key) {
    const std::uint64_t mixed = (key.low ^ (key.high * 0x9e3779b97f4a7c15u)) * 0xd6e8feb86659fd93u;
    return lines_[static_cast<std::size_t>(mixed >> (64 - kSetBits))].set;
  }
  bool is_word(const Entry& entry, std::string_view word) const {
    return !entry.key.is_long() ||
           std::memcmp(long_words_.data() + entry.ids[2], word.data(), word.size()) == 0;
  }
  std::span<const std::int32_t> ids_of(const Entry& entry) const {
    const std::size_t in_place = entry.key.is_long() ? 1 : entry.ids.size();
    const void* ids = entry.count <= in_place ? entry.ids.data() : many_ids_.data() + entry.ids[0];
    return {static_cast<const std::int32_t*>(ids), entry.count};
  }

  std::vector<Line> lines_ = std::vector<Line>(std::size_t{1} << kSetBits);
  std::vector<std::uint32_t> many_ids_;
  std::vector<char> long_words_;
  Key last_key_;
};

}  // namespace sortie::trainer

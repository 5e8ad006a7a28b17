// PieceTrie: finds the texts of a set that begin at a position.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace sortie::trainer::spm {

/// A double-array trie: a step is one look-up. Immutable.
class PieceTrie {
 public:
  PieceTrie() = default;
  /// The texts must be distinct, not empty and without NUL bytes. Each value must be >= 0.
  explicit PieceTrie(std::vector<std::pair<std::string_view, std::int32_t>> entries);

  bool empty() const { return nodes_.empty(); }

  /// State of a walk. A walk begins with Place{}.
  using Place = std::uint32_t;
  /// Moves by one byte. Returns false if no text continues with it.
  bool step(Place& place, char byte) const {
    const auto label = static_cast<unsigned char>(byte);
    const std::uint32_t next = nodes_[place].base + label;
    if (label == 0 || next >= nodes_.size() || nodes_[next].parent != place) return false;
    place = next;
    return true;
  }
  /// Returns the value of the text that ends at `place`, or -1.
  std::int32_t value(Place place) const { return nodes_[place].value; }

  /// Returns the length of the longest text that is a prefix of `text`; 0 = none.
  std::size_t longest_prefix(std::string_view text) const;

 private:
  static constexpr std::uint32_t kNoParent = ~std::uint32_t{0};
  struct Node {
    std::uint32_t base = 0;
    std::uint32_t parent = kNoParent;
    std::int32_t value = -1;
  };
  std::vector<Node> nodes_;
};

}  // namespace sortie::trainer::spm

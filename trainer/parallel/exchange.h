// Collectives that only move bytes: every pair of ranks has a block for each other.
#pragma once

#include <algorithm>
#include <vector>

#include "trainer/parallel/engine.h"
#include "trainer/parallel/tags.h"

namespace sortie::trainer {

/// Each rank sends a block to each of its peers and gets one from each: all-gather, all-to-all,
/// send and receive. In pieces, a few per peer in flight, beginning with the nearest rank above.
class Exchange final : public LaneOperation {
 public:
  struct Block {
    int member;  // of the group; not this rank
    std::span<const std::byte> send;
    std::span<std::byte> receive;
  };
  /// `blocks` in any order, at most one per peer; an empty span is no message. `window` messages of
  /// `piece` bytes are in flight in a direction.
  Exchange(const GroupRanks& group, Transport& transport, std::string what, int tag,
           std::vector<Block> blocks, std::int64_t window = Lane::kWindow,
           std::size_t piece = kSegmentBytes);
  bool advance() override;

 private:
  struct Peer {
    Block block;
    Lane* out = nullptr;
    Lane* in = nullptr;
  };
  std::vector<Peer> peers_;
  std::size_t piece_;
};

/// Returns when all have come: in log2(size) rounds of empty messages.
class Barrier final : public LaneOperation {
 public:
  Barrier(const GroupRanks& group, Transport& transport, std::string what, int tag);
  bool advance() override;

 private:
  struct Round {
    Lane *out, *in;
  };
  std::vector<Round> rounds_;
  std::size_t at_ = 0;
};

/// The root's bytes to all. Few bytes: down a binomial tree. Many: the root sends each piece to one
/// rank, which passes it on to the others, so that no rank sends the whole more than once.
class Broadcast final : public LaneOperation {
 public:
  static constexpr std::size_t kTreeBelow = std::size_t{64} << 10;

  Broadcast(const GroupRanks& group, Transport& transport, std::string what, int sequence_tag,
            std::span<std::byte> bytes, int root);
  bool advance() override;

 private:
  /// Piece `index` of those that member `owner` passes on.
  std::span<std::byte> piece_of(int owner, std::int64_t index) const;
  std::int64_t pieces_of(int owner) const;
  bool advance_tree();
  bool advance_root();
  bool advance_relay();
  int owner_at(int turn) const { return (root_ + turn) % group_.size(); }

  std::span<std::byte> bytes_;
  int root_;
  bool tree_;
  Lane* from_root_ = nullptr;     // or from the parent in the tree
  std::vector<Lane*> to_, from_;  // by member; to_ is of the children in the tree
};

/// The bytes of piece `index` when `bytes` are cut into pieces of `piece`.
template <class Byte>
std::span<Byte> piece_at(std::span<Byte> bytes, std::size_t piece, std::int64_t index) {
  const std::size_t begin = static_cast<std::size_t>(index) * piece;
  return bytes.subspan(begin, std::min(piece, bytes.size() - begin));
}
inline std::int64_t piece_count(std::size_t bytes, std::size_t piece) {
  return static_cast<std::int64_t>((bytes + piece - 1) / piece);
}

}  // namespace sortie::trainer

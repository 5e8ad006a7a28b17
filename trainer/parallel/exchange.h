// Operations that only move bytes: exchange of blocks, barrier and broadcast.
#pragma once

#include <algorithm>
#include <vector>

#include "trainer/parallel/engine.h"
#include "trainer/parallel/tags.h"

namespace sortie::trainer {

/// Sends a block to each peer and receives one from each: all-gather, all-to-all, send and receive.
/// Blocks are sent in pieces, a few per peer in flight, beginning with the next higher rank.
class Exchange final : public LaneOperation {
 public:
  struct Block {
    int member;  // rank in the group; not this rank
    std::span<const std::byte> send;
    std::span<std::byte> receive;
  };
  /// `blocks` are in any order, at most one per peer; an empty span means no message. Up to
  /// `window` messages of `piece` bytes are in flight per peer and direction.
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

/// Completes when all ranks have reached it, after log2(size) rounds of empty messages.
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

/// Sends the root's bytes to all ranks. Less than kTreeBelow bytes are sent down a binomial tree.
/// Otherwise the root sends each piece to one rank, which relays it to the others, so that no rank
/// sends all bytes more than once.
class Broadcast final : public LaneOperation {
 public:
  static constexpr std::size_t kTreeBelow = std::size_t{64} << 10;

  Broadcast(const GroupRanks& group, Transport& transport, std::string what, int sequence_tag,
            std::span<std::byte> bytes, int root);
  bool advance() override;

 private:
  /// Piece `index` of those that member `owner` relays.
  std::span<std::byte> piece_of(int owner, std::int64_t index) const;
  std::int64_t pieces_of(int owner) const;
  bool advance_tree();
  bool advance_root();
  bool advance_relay();
  int owner_at(int turn) const { return (root_ + turn) % group_.size(); }

  std::span<std::byte> bytes_;
  int root_;
  bool tree_;
  Lane* from_root_ = nullptr;     // with a tree: from the parent
  std::vector<Lane*> to_, from_;  // by member; with a tree, to_ has the children
};

/// The bytes of piece `index` when `bytes` are cut into pieces of `piece` bytes.
template <class Byte>
std::span<Byte> piece_at(std::span<Byte> bytes, std::size_t piece, std::int64_t index) {
  const std::size_t begin = static_cast<std::size_t>(index) * piece;
  return bytes.subspan(begin, std::min(piece, bytes.size() - begin));
}
inline std::int64_t piece_count(std::size_t bytes, std::size_t piece) {
  return static_cast<std::int64_t>((bytes + piece - 1) / piece);
}

}  // namespace sortie::trainer

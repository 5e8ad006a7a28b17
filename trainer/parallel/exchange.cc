#include "trainer/parallel/exchange.h"

#include <algorithm>
#include <bit>

namespace sortie::trainer {

Exchange::Exchange(const GroupRanks& group, Transport& transport, std::string what, int tag,
                   std::vector<Block> blocks, std::int64_t window, std::size_t piece)
    : LaneOperation(group, std::move(what)), piece_(piece) {
  const int size = group.size();
  // The next higher rank first, so that no two ranks begin with the same receiver.
  std::ranges::sort(blocks, {},
                    [&](const Block& block) { return (block.member - group.rank + size) % size; });
  for (const Block& block : blocks) {
    Peer& peer = peers_.emplace_back(Peer{block});
    if (!block.send.empty()) peer.out = &add_lane(transport, block.member, tag, false, window);
    if (!block.receive.empty()) peer.in = &add_lane(transport, block.member, tag, true, window);
  }
}

bool Exchange::advance() {
  bool posted = true;
  while (posted) {
    posted = false;
    for (Peer& peer : peers_) {
      const auto& [member, send, receive] = peer.block;
      if (peer.in != nullptr && peer.in->posted() < piece_count(receive.size(), piece_) &&
          !peer.in->full()) {
        peer.in->receive(piece_at(receive, piece_, peer.in->posted()));
        posted = true;
      }
      if (peer.out != nullptr && peer.out->posted() < piece_count(send.size(), piece_) &&
          !peer.out->full()) {
        peer.out->send(piece_at(send, piece_, peer.out->posted()));
        posted = true;
      }
    }
  }
  return lanes_idle();
}

Barrier::Barrier(const GroupRanks& group, Transport& transport, std::string what, int tag)
    : LaneOperation(group, std::move(what)) {
  const int size = group.size();
  for (int distance = 1; distance < size; distance *= 2)
    rounds_.push_back({&add_lane(transport, (group.rank + distance) % size, tag, false),
                       &add_lane(transport, (group.rank - distance + size) % size, tag, true)});
  for (const Round& round : rounds_) round.in->receive({});
}

bool Barrier::advance() {
  for (; at_ < rounds_.size(); ++at_) {
    if (rounds_[at_].out->posted() == 0) rounds_[at_].out->send({});
    if (!rounds_[at_].in->idle()) return false;
  }
  return lanes_idle();
}

Broadcast::Broadcast(const GroupRanks& group, Transport& transport, std::string what,
                     int sequence_tag, std::span<std::byte> bytes, int root)
    : LaneOperation(group, std::move(what)),
      bytes_(bytes),
      root_(root),
      tree_(bytes.size() < kTreeBelow) {
  const int size = group.size();
  const int results_tag = sequence_tag | static_cast<int>(Part::results);
  to_.resize(static_cast<std::size_t>(size));
  from_.resize(static_cast<std::size_t>(size));
  if (tree_) {
    // Places count from the root. The parent of a place is that place without its lowest bit.
    const int place = (group.rank - root + size) % size;
    const int lowest =
        place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : place & -place;
    if (place != 0)
      from_root_ = &add_lane(transport, (place - lowest + root) % size, sequence_tag, true);
    for (int bit = lowest / 2; bit > 0; bit /= 2) {
      if (place + bit >= size) continue;
      const int child = (place + bit + root) % size;
      to_[static_cast<std::size_t>(child)] = &add_lane(transport, child, sequence_tag, false);
    }
    return;
  }
  if (group.rank != root) from_root_ = &add_lane(transport, root, sequence_tag, true);
  for (int step = 1; step < size; ++step) {
    const int to = (group.rank + step) % size;
    const int from = (group.rank - step + size) % size;
    if (group.rank == root) {
      to_[static_cast<std::size_t>(to)] = &add_lane(transport, to, sequence_tag, false);
      continue;
    }
    if (to != root)
      to_[static_cast<std::size_t>(to)] = &add_lane(transport, to, results_tag, false);
    if (from != root)
      from_[static_cast<std::size_t>(from)] = &add_lane(transport, from, results_tag, true);
  }
}

std::int64_t Broadcast::pieces_of(int owner) const {
  if (owner == root_) return 0;
  // Pieces are assigned to the other members round-robin.
  const int turn = (owner - root_ + group_.size()) % group_.size() - 1;
  const std::int64_t all = piece_count(bytes_.size(), kSegmentBytes);
  return (all - turn + group_.size() - 2) / (group_.size() - 1);
}

std::span<std::byte> Broadcast::piece_of(int owner, std::int64_t index) const {
  const int turn = (owner - root_ + group_.size()) % group_.size() - 1;
  return piece_at(bytes_, kSegmentBytes, index * (group_.size() - 1) + turn);
}

bool Broadcast::advance() {
  if (tree_) return advance_tree();
  return group_.rank == root_ ? advance_root() : advance_relay();
}

bool Broadcast::advance_tree() {
  if (from_root_ != nullptr) {
    if (from_root_->posted() == 0) from_root_->receive(bytes_);
    if (!from_root_->idle()) return false;
  }
  for (Lane* child : to_)
    if (child != nullptr && child->posted() == 0) child->send(bytes_);
  return lanes_idle();
}

bool Broadcast::advance_root() {
  bool posted = true;
  bool complete = true;
  while (posted) {
    posted = false;
    complete = true;
    for (int turn = 1; turn < group_.size(); ++turn) {
      const int owner = owner_at(turn);
      Lane& lane = *to_[static_cast<std::size_t>(owner)];
      if (lane.posted() == pieces_of(owner)) continue;
      complete = false;
      if (lane.full()) continue;
      lane.send(piece_of(owner, lane.posted()));
      posted = true;
    }
  }
  return complete && lanes_idle();
}

bool Broadcast::advance_relay() {
  const int rank = group_.rank;
  while (from_root_->posted() < pieces_of(rank) && !from_root_->full())
    from_root_->receive(piece_of(rank, from_root_->posted()));
  bool complete = from_root_->posted() == pieces_of(rank);
  const std::int64_t have = from_root_->finished();
  for (int member = 0; member < group_.size(); ++member) {
    if (Lane* lane = to_[static_cast<std::size_t>(member)]) {
      while (lane->posted() < have && !lane->full()) lane->send(piece_of(rank, lane->posted()));
      complete = complete && lane->posted() == pieces_of(rank);
    }
    if (Lane* lane = from_[static_cast<std::size_t>(member)]) {
      while (lane->posted() < pieces_of(member) && !lane->full())
        lane->receive(piece_of(member, lane->posted()));
      complete = complete && lane->posted() == pieces_of(member);
    }
  }
  return complete && lanes_idle();
}

}  // namespace sortie::trainer

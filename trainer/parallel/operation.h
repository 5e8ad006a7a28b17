// Operation: a collective as a state machine over messages. Lane: its messages with one peer.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/transport.h"

namespace sortie::trainer {

/// The part of a group that operations need.
struct GroupRanks {
  std::string name;
  std::vector<int> world_ranks;  // of each member
  int rank = 0;                  // this one's
  int size() const { return static_cast<int>(world_ranks.size()); }
};

/// What many bytes are cut into: a message of this size needs no answer before it is sent (eager;
/// the limit of Open MPI over TCP is 64 KiB with its header), so that neither side has to look at
/// it at the right moment. Measured over links of 1 Gbit/s: 256 KiB take 1.3 times as long.
inline constexpr std::size_t kSegmentBytes = std::size_t{60} << 10;

/// Messages to, or from, one peer under one tag, a few of them in flight. Positions count messages
/// from the first.
class Lane {
 public:
  static constexpr std::int64_t kWindow = 8;

  /// `peer` is a rank of the world.
  Lane(Transport& transport, int peer, int tag, std::int64_t window = kWindow)
      : transport_(&transport), peer_(peer), tag_(tag), flight_(static_cast<std::size_t>(window)) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  int peer() const { return peer_; }
  std::int64_t posted() const { return posted_; }
  /// How many messages of those posted, from the first on, are complete. Throws CommunicatorError
  /// when one is lost.
  std::int64_t finished();
  bool full() { return posted_ - finished() == static_cast<std::int64_t>(flight_.size()); }
  bool idle() { return posted_ == finished(); }

  void send(std::span<const std::byte> bytes) { transport_->send(peer_, tag_, bytes, next()); }
  void receive(std::span<std::byte> bytes) { transport_->receive(peer_, tag_, bytes, next()); }

 private:
  Message& next();

  Transport* transport_;
  int peer_, tag_;
  std::int64_t posted_ = 0, finished_ = 0;
  std::deque<Message> flight_;  // a ring
};

class Operation {
 public:
  /// `what` as in "all-reduce 17"; the group outlives the operation.
  Operation(const GroupRanks& group, std::string what) : group_(group), what_(std::move(what)) {}
  virtual ~Operation() = default;

  /// Posts what can be posted and takes what has arrived; true once complete. Never blocks. Throws
  /// CommunicatorError.
  virtual bool advance() = 0;
  /// World ranks whose messages it waits for, or, without such, who do not take its own.
  virtual std::vector<int> missing() = 0;

  const GroupRanks& group() const { return group_; }
  const std::string& what() const { return what_; }
  bool done = false;

 protected:
  const GroupRanks& group_;

 private:
  std::string what_;
};

/// An operation whose messages lie in lanes.
class LaneOperation : public Operation {
 public:
  using Operation::Operation;
  std::vector<int> missing() override;

 protected:
  /// A lane to or from a member of the group. The reference stays valid.
  Lane& add_lane(Transport& transport, int member, int tag, bool receives,
                 std::int64_t window = Lane::kWindow);
  bool lanes_idle();

 private:
  struct Kept {
    Kept(Transport& transport, int peer, int tag, std::int64_t window, bool in)
        : lane(transport, peer, tag, window), receives(in) {}
    Lane lane;
    bool receives;
  };
  std::deque<Kept> lanes_;
};

}  // namespace sortie::trainer

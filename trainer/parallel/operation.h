// Operation: a collective as a state machine over messages. Lane: the messages of an operation with
// one peer.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/transport.h"

namespace sortie::trainer {

/// The properties of a group that operations need.
struct GroupRanks {
  std::string name;
  std::vector<int> world_ranks;  // by member
  int rank = 0;                  // of this process, in the group
  int size() const { return static_cast<int>(world_ranks.size()); }
};

/// Size of the messages that larger data is cut into. A message of this size is sent eagerly,
/// without a handshake (Open MPI's limit over TCP is 64 KiB with its header), so that neither side
/// has to poll at the right moment. Measured over links of 1 Gbit/s: 256 KiB take 1.3 times as
/// long.
inline constexpr std::size_t kSegmentBytes = std::size_t{60} << 10;

/// Messages to, or from, one peer under one tag, at most `window` of them in flight. posted() and
/// finished() count messages from the first.
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
  /// Number of messages that are complete, up to the first unfinished one. Throws CommunicatorError
  /// if one is lost.
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
  std::deque<Message> flight_;  // ring buffer
};

class Operation {
 public:
  /// `what` is for messages: "all-reduce 17". The group must outlive the operation.
  Operation(const GroupRanks& group, std::string what) : group_(group), what_(std::move(what)) {}
  virtual ~Operation() = default;

  /// Posts the messages that can be posted and processes those that have arrived. Returns true once
  /// complete. Never blocks. Throws CommunicatorError.
  virtual bool advance() = 0;
  /// World ranks whose messages it waits for; if there are none, those that have not received its
  /// messages yet.
  virtual std::vector<int> missing() = 0;

  const GroupRanks& group() const { return group_; }
  const std::string& what() const { return what_; }
  bool done = false;

 protected:
  const GroupRanks& group_;

 private:
  std::string what_;
};

/// An operation whose messages use lanes.
class LaneOperation : public Operation {
 public:
  using Operation::Operation;
  std::vector<int> missing() override;

 protected:
  /// Adds a lane to or from a member of the group. The reference stays valid.
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

// Reads the output of ranks, fairly and within the launcher's credit. Nothing is buffered here: a
// chunk is read from a rank's pipe when it can be sent. If the launcher is slow, the pipes fill and
// the ranks block, and the runner's memory does not grow.
//
// Credit: a rank may have at most as many bytes in flight as are still free of the window of W
// bytes. So one busy rank gets W/2, k of them get W/(k+1) each, and a quiet rank always finds room.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

class OutputPump {
 public:
  /// `on_work`: next() may have a chunk. `on_drained(slot)`: all bytes of both streams of a
  /// finished rank have been returned by next().
  OutputPump(boost::asio::io_context& io, std::uint64_t window, std::function<void()> on_work,
             std::function<void(std::size_t slot)> on_drained);

  /// Takes ownership of the read ends of a rank's pipes. Slots are numbered from 0 in the order of
  /// the calls.
  void add(std::uint32_t rank, Fd out, Fd err);

  /// The next chunk, round-robin, at most 64 KiB; nullopt if there is none until on_work is called.
  std::optional<wire::Output> next();

  /// The launcher has written `bytes`. Error: more than are in flight.
  Result<> acknowledge(std::uint64_t bytes);

  /// The rank has ended: no data will follow what its pipes contain now.
  void finish(std::size_t slot);

  /// Keeps chunks until they are acknowledged, for resend(). Call before the first next().
  void keep_unacknowledged() { keeping_ = true; }
  /// For a new connection: next() first returns again those kept bytes that are not covered by
  /// `sizes` (the sizes of the launcher's files), then new output. Calls `on_resent` at the
  /// transition.
  void resend(const std::vector<wire::LogSize>& sizes, std::function<void()> on_resent);

  /// The launcher is gone: reads and drops everything from now on, so that no rank blocks in a
  /// write.
  void discard();

 private:
  struct Source {
    explicit Source(boost::asio::io_context& io) : pipe(io) {}
    boost::asio::posix::stream_descriptor pipe;
    std::size_t slot = 0;
    wire::Stream stream = wire::Stream::out;
    bool in_ring = false;
    bool wide = false;       // its pipe was enlarged
    std::uint64_t sent = 0;  // bytes returned by next() so far
  };
  struct Kept {
    std::size_t source = 0;
    std::uint64_t begin = 0;  // offset in the source
    std::string bytes;
  };
  struct Rank {
    std::uint32_t number = 0;
    std::uint64_t in_flight = 0;
    int open_streams = 2;
    bool finishing = false;
  };
  struct InFlight {
    std::size_t slot = 0;
    std::uint64_t bytes = 0;
  };

  std::size_t allowance(const Rank& rank) const;
  void await_data(std::size_t index);
  void enter_ring(std::size_t index);
  void close_source(Source& source);
  void widen(Source& source);
  void charge(std::size_t slot, std::uint64_t bytes);
  void read_and_forget();
  void keep(std::size_t source, std::uint64_t begin, std::string bytes);
  std::optional<wire::Output> next_resent();

  boost::asio::io_context& io_;
  std::uint64_t window_;
  std::uint64_t free_;
  std::function<void()> on_work_;
  std::function<void(std::size_t)> on_drained_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Source>> sources_;  // 2 * slot + (err ? 1 : 0)
  std::deque<std::size_t> ring_;                  // sources that may have data, round-robin
  std::deque<InFlight> in_flight_;
  std::unique_ptr<char[]> buffer_;  // not zeroed: most commands write little
  int wide_pipes_ = 0;
  std::deque<Kept> kept_, resend_;       // in the order in which next() returned them
  std::uint64_t kept_acknowledged_ = 0;  // acknowledged bytes of kept_.front()
  std::function<void()> on_resent_;
  bool keeping_ = false;
  bool discarding_ = false;
  bool forgetting_ = false;
};

}  // namespace sortie::runner

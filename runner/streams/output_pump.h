// Reads what ranks write, fairly and within the credit that the launcher has given. Nothing is
// stored here: a chunk is read from a rank's pipe at the moment it can be sent, so when the
// launcher is slow the pipes fill and the ranks wait, and the runner's memory does not grow.
//
// Credit: of the window of W bytes, a rank may have at most as much in flight as is still free. One
// chatty rank so takes W/2, k of them W/(k+1) each, and a quiet rank always finds room.
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
  /// `on_work`: next() may have something. `on_drained(slot)`: both streams of a finished rank have
  /// been handed out to the last byte.
  OutputPump(boost::asio::io_context& io, std::uint64_t window, std::function<void()> on_work,
             std::function<void(std::size_t slot)> on_drained);

  /// Takes the read ends of a rank's pipes. Slots count from 0 in order of the calls.
  void add(std::uint32_t rank, Fd out, Fd err);

  /// The next chunk in turn, at most 64 KiB, or nothing until on_work.
  std::optional<wire::Output> next();

  /// The launcher has written `bytes`. Error when that is more than was sent.
  Result<> acknowledge(std::uint64_t bytes);

  /// Nothing of the rank lives any more: what its pipes hold now is all there will be.
  void finish(std::size_t slot);

  /// Keeps what is handed out until it is acknowledged, for resend(). Before the first next().
  void keep_unacknowledged() { keeping_ = true; }
  /// Another launcher: of what was handed out, next() gives again what `sizes` (what the launcher's
  /// files hold) do not cover, then what is new. `on_resent` is called when that point is reached.
  void resend(const std::vector<wire::LogSize>& sizes, std::function<void()> on_resent);

  /// The launcher is gone: read and forget from now on, so that no rank hangs in a write.
  void discard();

 private:
  struct Source {
    explicit Source(boost::asio::io_context& io) : pipe(io) {}
    boost::asio::posix::stream_descriptor pipe;
    std::size_t slot = 0;
    wire::Stream stream = wire::Stream::out;
    bool in_ring = false;
    bool wide = false;       // its pipe has been given more room
    std::uint64_t sent = 0;  // bytes handed out, ever
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
  std::deque<std::size_t> ring_;                  // sources that may have data, in turn
  std::deque<InFlight> in_flight_;
  std::unique_ptr<char[]> buffer_;  // not zeroed: most commands say little
  int wide_pipes_ = 0;
  std::deque<Kept> kept_, resend_;       // in the order of handing out
  std::uint64_t kept_acknowledged_ = 0;  // of kept_.front()
  std::function<void()> on_resent_;
  bool keeping_ = false;
  bool discarding_ = false;
  bool forgetting_ = false;
};

}  // namespace sortie::runner

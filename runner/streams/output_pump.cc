#include "runner/streams/output_pump.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kChunkBytes = 64u << 10;
/// Smaller chunks are not worth a frame while the rank has other bytes in flight.
constexpr std::uint64_t kMinChunk = 4096;
/// Beyond this many entries, the order in which credit returns to ranks is only approximate.
constexpr std::size_t kMaxInFlightEntries = 4096;
/// Maximum number of chunks kept for another launcher. The launcher acknowledges much earlier (256
/// chunks).
constexpr std::size_t kMaxKept = 4096;
constexpr int kWidePipeBytes = 512 << 10;
constexpr int kMaxWidePipes = 16;

}  // namespace

OutputPump::OutputPump(boost::asio::io_context& io, std::uint64_t window,
                       std::function<void()> on_work, std::function<void(std::size_t)> on_drained)
    : io_(io),
      window_(window),
      free_(window),
      on_work_(std::move(on_work)),
      on_drained_(std::move(on_drained)),
      buffer_(std::make_unique_for_overwrite<char[]>(kChunkBytes)) {}

void OutputPump::add(std::uint32_t rank, Fd out, Fd err) {
  ranks_.push_back({.number = rank});
  for (Fd* fd : {&out, &err}) {
    auto source = std::make_unique<Source>(io_);
    // Only our end: the rank's end is another open file description and stays blocking.
    ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    source->pipe.assign(fd->release());
    source->slot = ranks_.size() - 1;
    source->stream = fd == &out ? wire::Stream::out : wire::Stream::err;
    sources_.push_back(std::move(source));
    await_data(sources_.size() - 1);
  }
}

void OutputPump::await_data(std::size_t index) {
  sources_[index]->pipe.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                                   [this, index](const boost::system::error_code& error) {
                                     if (!error) enter_ring(index);
                                   });
}

void OutputPump::enter_ring(std::size_t index) {
  Source& source = *sources_[index];
  if (source.in_ring || !source.pipe.is_open()) return;
  source.in_ring = true;
  ring_.push_back(index);
  if (discarding_)
    read_and_forget();
  else
    on_work_();
}

void OutputPump::close_source(Source& source) {
  source.pipe.close();
  Rank& rank = ranks_[source.slot];
  if (--rank.open_streams == 0 && rank.finishing) on_drained_(source.slot);
}

// Enlarges the pipe of a rank that fills it, so that both sides are woken less often. The number is
// limited, because the system limits all pipes of a user (pipe-user-pages-soft, 64 MiB).
void OutputPump::widen(Source& source) {
  if (source.wide || wide_pipes_ == kMaxWidePipes) return;
  source.wide = true;
  if (::fcntl(source.pipe.native_handle(), F_SETPIPE_SZ, kWidePipeBytes) > 0) ++wide_pipes_;
}

std::size_t OutputPump::allowance(const Rank& rank) const {
  if (discarding_) return kChunkBytes;
  if (kept_.size() >= kMaxKept) return 0;
  if (free_ <= rank.in_flight) return 0;
  const std::uint64_t room = free_ - rank.in_flight;
  if (room < kMinChunk && rank.in_flight > 0) return 0;
  return static_cast<std::size_t>(std::min<std::uint64_t>(room, kChunkBytes));
}

std::optional<wire::Output> OutputPump::next() {
  std::optional<wire::Output> chunk;
  if (!resend_.empty() && !discarding_) return next_resent();
  if (on_resent_) std::exchange(on_resent_, nullptr)();
  // Visit each source in the ring at most once per call; those without credit return to its end.
  for (std::size_t turns = ring_.size(); turns > 0 && !chunk; --turns) {
    const std::size_t index = ring_.front();
    ring_.pop_front();
    Source& source = *sources_[index];
    Rank& rank = ranks_[source.slot];
    const std::size_t room = allowance(rank);
    if (room == 0) {
      ring_.push_back(index);
      continue;
    }
    const ssize_t count = ::read(source.pipe.native_handle(), buffer_.get(), room);
    if (count > 0) {
      const auto bytes = static_cast<std::size_t>(count);
      ring_.push_back(index);
      if (bytes == kChunkBytes) widen(source);
      if (discarding_) continue;
      charge(source.slot, bytes);
      if (keeping_) keep(index, source.sent, std::string(buffer_.get(), bytes));
      source.sent += bytes;
      chunk = wire::Output{rank.number, source.stream, std::string(buffer_.get(), bytes)};
      continue;
    }
    source.in_ring = false;
    const bool waiting = count < 0 && (errno == EAGAIN || errno == EINTR);
    if (waiting && !rank.finishing) {
      await_data(index);
      continue;
    }
    close_source(source);
  }
  return chunk;
}

void OutputPump::charge(std::size_t slot, std::uint64_t bytes) {
  free_ -= bytes;
  ranks_[slot].in_flight += bytes;
  if (!in_flight_.empty() && in_flight_.back().slot == slot) {
    in_flight_.back().bytes += bytes;
    return;
  }
  if (in_flight_.size() >= kMaxInFlightEntries) {
    auto same = std::find_if(in_flight_.rbegin(), in_flight_.rend(),
                             [slot](const InFlight& entry) { return entry.slot == slot; });
    if (same != in_flight_.rend()) {
      same->bytes += bytes;
      return;
    }
  }
  in_flight_.push_back({slot, bytes});
}

Result<> OutputPump::acknowledge(std::uint64_t bytes) {
  if (bytes > window_ - free_)
    return fail(ErrorCode::protocol, fmt::format("OutputCredit of {} bytes for {} bytes in flight",
                                                 bytes, window_ - free_));
  free_ += bytes;
  kept_acknowledged_ += keeping_ ? bytes : 0;
  while (!kept_.empty() && kept_acknowledged_ >= kept_.front().bytes.size()) {
    kept_acknowledged_ -= kept_.front().bytes.size();
    kept_.pop_front();
  }
  while (bytes > 0) {
    SORTIE_CHECK(!in_flight_.empty(), "{} bytes acknowledged beyond the list", bytes);
    InFlight& oldest = in_flight_.front();
    const std::uint64_t part = std::min(bytes, oldest.bytes);
    ranks_[oldest.slot].in_flight -= part;
    oldest.bytes -= part;
    bytes -= part;
    if (oldest.bytes == 0) in_flight_.pop_front();
  }
  if (!ring_.empty()) on_work_();
  return {};
}

void OutputPump::keep(std::size_t source, std::uint64_t begin, std::string bytes) {
  kept_.push_back({source, begin, std::move(bytes)});
}

void OutputPump::resend(const std::vector<wire::LogSize>& sizes, std::function<void()> on_resent) {
  std::map<std::pair<std::uint32_t, wire::Stream>, std::uint64_t> have;
  for (const wire::LogSize& size : sizes) have[{size.rank, size.stream}] = size.bytes;
  // Chunks that an earlier adopter has not received come after those that it has.
  for (Kept& piece : resend_) kept_.push_back(std::move(piece));
  resend_.clear();
  for (Kept& piece : kept_) {
    const Source& source = *sources_[piece.source];
    const std::uint64_t from = have[{ranks_[source.slot].number, source.stream}];
    const std::uint64_t end = piece.begin + piece.bytes.size();
    if (from >= end) continue;
    if (from > piece.begin) {
      piece.bytes.erase(0, static_cast<std::size_t>(from - piece.begin));
      piece.begin = from;
    }
    resend_.push_back(std::move(piece));
  }
  kept_.clear();
  kept_acknowledged_ = 0;
  in_flight_.clear();
  free_ = window_;
  for (Rank& rank : ranks_) rank.in_flight = 0;
  on_resent_ = std::move(on_resent);
  on_work_();
}

std::optional<wire::Output> OutputPump::next_resent() {
  // It fits into the window, because it did before.
  Kept piece = std::move(resend_.front());
  resend_.pop_front();
  const Source& source = *sources_[piece.source];
  charge(source.slot, piece.bytes.size());
  wire::Output out{ranks_[source.slot].number, source.stream, piece.bytes};
  keep(piece.source, piece.begin, std::move(piece.bytes));
  return out;
}

void OutputPump::finish(std::size_t slot) {
  ranks_[slot].finishing = true;
  if (ranks_[slot].open_streams == 0) return on_drained_(slot);
  for (std::size_t index : {2 * slot, 2 * slot + 1}) enter_ring(index);
}

void OutputPump::discard() {
  discarding_ = true;
  read_and_forget();
}

void OutputPump::read_and_forget() {
  // Posted, one round at a time, so that a rank that writes without end does not occupy the thread.
  if (forgetting_) return;
  forgetting_ = true;
  boost::asio::post(io_, [this] {
    next();
    forgetting_ = false;
    if (!ring_.empty()) read_and_forget();
  });
}

}  // namespace sortie::runner

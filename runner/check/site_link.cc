#include "runner/check/site_link.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <memory>
#include <vector>

#include "common/asio/task_group.h"
#include "runner/check/peer_listener.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::check {
namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
namespace {

using LinkClock = std::chrono::steady_clock;

constexpr std::size_t kWayBlock = 64u << 10;
constexpr std::size_t kNumbersSize = 64;  // four numbers as text, padded with blanks
/// Time for a slow link to deliver the rest after the duration.
constexpr milliseconds kDrainLimit{15000};

/// The kernel's tcp_info. netinet/tcp.h ends with tcpi_total_retrans; these members follow in
/// linux/tcp.h, which can not be included together with it.
struct KernelCounts {
  ::tcp_info first;
  std::uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
  std::uint32_t segments_out, segments_in, unsent, min_round_trip, data_in, data_out;
};

void count_segments(tcp::socket& socket, WayRate& rate) {
  KernelCounts counts{};
  ::socklen_t size = sizeof counts;
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &counts, &size) != 0 ||
      size < sizeof counts)
    return;
  rate.segments += counts.data_out;
  rate.again += counts.first.tcpi_total_retrans;
}

/// Limits unsent bytes, so that the stream ends soon after the duration, even on slow links.
void keep_little_unsent(tcp::socket& socket) {
  const int bytes = 2 * static_cast<int>(kWayBlock);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

asio::awaitable<boost::system::error_code> send_for(tcp::socket& socket, milliseconds duration) {
  const std::vector<char> block(kWayBlock, 's');
  const auto out = asio::buffer(block);
  keep_little_unsent(socket);
  boost::system::error_code error;
  for (const auto end = LinkClock::now() + duration; !error && LinkClock::now() < end;) {
    const auto [write_error, count] = co_await socket.async_write_some(out, kToken);
    error = write_error;
  }
  co_return error;
}

/// Reads to the end; does not count the first quarter of the time. `tail`: the last bytes.
asio::awaitable<boost::system::error_code> take_all(tcp::socket& socket, milliseconds duration,
                                                    WayRate& rate, std::string& tail) {
  std::vector<char> block(4 * kWayBlock);
  const auto in = asio::buffer(block);
  const auto begin = LinkClock::now();
  auto counts_from = begin, last = begin;
  for (;;) {
    const auto [error, count] = co_await socket.async_read_some(in, kToken);
    if (count > 0) {
      const auto now = LinkClock::now();
      if (now - begin < duration / 4)
        counts_from = now;
      else
        rate.bytes += count;
      last = now;
      tail.append(block.data(), count);
      if (tail.size() > kNumbersSize) tail.erase(0, tail.size() - kNumbersSize);
    }
    if (!error) continue;
    rate.us = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(last - counts_from).count());
    co_return error == asio::error::eof ? boost::system::error_code() : error;
  }
}

std::string numbers_text(const WayRate& rate) {
  const std::string numbers =
      fmt::format("{} {} {} {}", rate.bytes, rate.us, rate.segments, rate.again);
  return fmt::format("{:<{}}", numbers, kNumbersSize);
}

bool read_numbers(const std::string& text, WayRate& rate) {
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint64_t* number : {&rate.bytes, &rate.us, &rate.segments, &rate.again}) {
    const auto [after, error] = std::from_chars(at, end, *number);
    if (error != std::errc()) return false;
    at = std::min(after + 1, end);
  }
  return true;
}

/// One connection of a direction; its timer closes it.
struct WayStream {
  WayStream(asio::io_context& io) : socket(io), timer(io) {}
  tcp::socket socket;
  asio::steady_timer timer;
  bool late = false;
  std::string error;
  WayRate rate;
};

asio::awaitable<boost::system::error_code> run_stream(WayStream& stream, const Peer& peer,
                                                      const std::string& token, char mode,
                                                      milliseconds duration) {
  const tcp::endpoint endpoint(peer.address, peer.port);
  const auto [connect_error] = co_await stream.socket.async_connect(endpoint, kToken);
  if (connect_error) co_return connect_error;
  const std::string opening =
      fmt::format("{}{}{:0{}}", token, mode, duration.count(), kDurationDigits);
  const auto out = asio::buffer(opening);
  const auto [write_error, written] = co_await asio::async_write(stream.socket, out, kToken);
  boost::system::error_code error = write_error;
  std::string tail;
  if (mode == kGive) {
    WayRate there;
    if (!error) error = co_await take_all(stream.socket, duration, stream.rate, tail);
    if (!error && !read_numbers(tail, there)) error = asio::error::invalid_argument;
    stream.rate.segments = there.segments;
    stream.rate.again = there.again;
    co_return error;
  }
  if (!error) error = co_await send_for(stream.socket, duration);
  if (!error) stream.socket.shutdown(tcp::socket::shutdown_send, error);
  WayRate ignored;
  if (!error) error = co_await take_all(stream.socket, duration, ignored, tail);
  if (!error && !read_numbers(tail, stream.rate)) error = asio::error::invalid_argument;
  count_segments(stream.socket, stream.rate);
  co_return error;
}

asio::awaitable<void> one_stream(std::shared_ptr<WayStream> stream, Peer peer, std::string token,
                                 char mode, milliseconds duration) {
  stream->timer.expires_after(duration + kDrainLimit);
  stream->timer.async_wait([stream](boost::system::error_code cancelled) {
    if (cancelled) return;
    stream->late = true;
    boost::system::error_code ignored;
    stream->socket.close(ignored);
  });
  const auto error = co_await run_stream(*stream, peer, token, mode, duration);
  stream->timer.cancel();
  if (error) stream->error = stream->late ? "bytes did not arrive in time" : error.message();
  boost::system::error_code ignored;
  stream->socket.close(ignored);
}

asio::awaitable<std::string> measure_way(asio::io_context& io, Peer peer, std::string token,
                                         char mode, milliseconds duration, int streams,
                                         WayRate& sum) {
  std::vector<std::shared_ptr<WayStream>> all;
  TaskGroup group(io.get_executor());
  for (int i = 0; i < streams; ++i) {
    all.push_back(std::make_shared<WayStream>(io));
    group.spawn(one_stream(all.back(), peer, token, mode, duration));
  }
  co_await group.wait();
  double byte_s = 0.0;
  for (const auto& stream : all) {
    if (!stream->error.empty()) co_return stream->error;
    sum.segments += stream->rate.segments;
    sum.again += stream->rate.again;
    sum.us = std::max(sum.us, stream->rate.us);
    if (stream->rate.us > 0)
      byte_s +=
          static_cast<double>(stream->rate.bytes) * 1e6 / static_cast<double>(stream->rate.us);
  }
  // Streams may end at different times, so add up their rates.
  sum.bytes = static_cast<std::uint64_t>(byte_s * static_cast<double>(sum.us) / 1e6);
  co_return sum.bytes > 0 ? "" : "no bytes arrived";
}

}  // namespace

asio::awaitable<LinkFacts> measure_link(asio::io_context& io, const Peer& peer,
                                        const std::string& token, milliseconds limit,
                                        milliseconds duration, int streams) {
  LinkFacts facts;
  const std::vector<Peer> one = {peer};
  const std::vector<PeerFacts> reached = co_await reach_peers(io, one, token, limit);
  facts.reached = reached.front();
  if (!facts.reached.error.empty() || duration.count() == 0) co_return facts;
  facts.rate_error = co_await measure_way(io, peer, token, kTake, duration, streams, facts.out);
  if (facts.rate_error.empty())
    facts.rate_error = co_await measure_way(io, peer, token, kGive, duration, streams, facts.back);
  co_return facts;
}

asio::awaitable<void> take_way(tcp::socket& socket, milliseconds duration) {
  WayRate rate;
  std::string tail;
  if (co_await take_all(socket, duration, rate, tail)) co_return;
  const std::string answer = numbers_text(rate);
  const auto out = asio::buffer(answer);
  co_await asio::async_write(socket, out, kToken);
}

asio::awaitable<void> give_way(tcp::socket& socket, milliseconds duration) {
  if (co_await send_for(socket, duration)) co_return;
  WayRate rate;
  count_segments(socket, rate);
  const std::string numbers = numbers_text(rate);
  const auto out = asio::buffer(numbers);
  const auto [error, count] = co_await asio::async_write(socket, out, kToken);
  boost::system::error_code ignored;
  if (!error) socket.shutdown(tcp::socket::shutdown_send, ignored);
  // Wait until the other side has read everything and closes.
  char byte = 0;
  const auto in = asio::buffer(&byte, 1);
  co_await socket.async_read_some(in, kToken);
}

}  // namespace sortie::runner::check

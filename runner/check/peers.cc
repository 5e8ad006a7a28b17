#include "runner/check/peers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <memory>

#include "common/asio/task_group.h"
#include "runner/check/peer_listener.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::check {
namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPings = 5;
constexpr milliseconds kAnswerLimit{3000};

std::uint64_t us_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
}

/// One attempt to reach a peer; shared by its coroutine and its timer.
struct Attempt {
  Attempt(asio::io_context& io, const Peer& p) : peer(p), socket(io), timer(io) {}
  const Peer peer;
  tcp::socket socket;
  asio::steady_timer timer;
  bool late = false;
  PeerFacts facts;

  std::string reason(const boost::system::error_code& error, milliseconds limit) const {
    return late ? fmt::format("no answer within {} ms", limit.count()) : error.message();
  }
};

void limit_attempt(const std::shared_ptr<Attempt>& attempt, milliseconds limit) {
  attempt->timer.expires_after(limit);
  attempt->timer.async_wait([attempt](boost::system::error_code cancelled) {
    if (cancelled) return;
    attempt->late = true;
    boost::system::error_code ignored;
    attempt->socket.close(ignored);
  });
}

/// Connects and sends the token.
asio::awaitable<boost::system::error_code> open_to(const std::shared_ptr<Attempt> attempt,
                                                   const std::string token, char mode) {
  const tcp::endpoint endpoint(attempt->peer.address, attempt->peer.port);
  const auto begin = Clock::now();
  const auto [error] = co_await attempt->socket.async_connect(endpoint, kToken);
  if (error) co_return error;
  attempt->facts.connect_us = us_since(begin);
  boost::system::error_code ignored;
  attempt->socket.set_option(tcp::no_delay(true), ignored);
  const std::string opening = token + mode;
  const auto out = asio::buffer(opening);
  const auto [write_error, written] = co_await asio::async_write(attempt->socket, out, kToken);
  co_return write_error;
}

asio::awaitable<void> greet(std::shared_ptr<Attempt> attempt, std::string token,
                            milliseconds limit) {
  limit_attempt(attempt, limit);
  boost::system::error_code error = co_await open_to(attempt, token, kPing);
  if (!error) {
    char byte = 0;
    const auto in = asio::buffer(&byte, 1);
    const auto [read_error, count] = co_await attempt->socket.async_read_some(in, kToken);
    error = read_error;
  }
  if (error) attempt->facts.error = attempt->reason(error, limit);
  attempt->timer.cancel();  // the timer must not run while others take longer
}

asio::awaitable<void> ping(std::shared_ptr<Attempt> attempt, milliseconds limit) {
  limit_attempt(attempt, limit);
  char byte = kPing;
  const auto buffer = asio::buffer(&byte, 1);
  std::uint64_t best = UINT64_MAX;
  for (int i = 0; i < kPings; ++i) {
    const auto begin = Clock::now();
    const auto [out_error, sent] = co_await asio::async_write(attempt->socket, buffer, kToken);
    const auto [in_error, count] = co_await attempt->socket.async_read_some(buffer, kToken);
    if (out_error || in_error) {
      attempt->facts.error = attempt->reason(out_error ? out_error : in_error, limit);
      co_return;
    }
    best = std::min(best, us_since(begin));
  }
  attempt->facts.round_trip_us = best;
}

asio::awaitable<void> measure_mtu(asio::io_context& io, std::shared_ptr<Attempt> attempt,
                                  std::string token) {
  const asio::ip::udp::endpoint endpoint(attempt->peer.address, attempt->peer.port);
  attempt->facts.mtu = co_await find_path_mtu(io, endpoint, token);
}

}  // namespace

asio::awaitable<std::vector<PeerFacts>> reach_peers(asio::io_context& io,
                                                    const std::vector<Peer>& peers,
                                                    const std::string& token, milliseconds limit) {
  std::vector<std::shared_ptr<Attempt>> attempts;
  for (const Peer& peer : peers) attempts.push_back(std::make_shared<Attempt>(io, peer));
  TaskGroup group(io.get_executor());
  for (const auto& attempt : attempts) group.spawn(greet(attempt, token, limit));
  co_await group.wait();
  // Retry peers that did not answer: a lost packet or a full neighbour table is no broken path.
  for (auto& attempt : attempts) {
    if (!attempt->late) continue;
    attempt = std::make_shared<Attempt>(io, attempt->peer);
    group.spawn(greet(attempt, token, limit));
  }
  co_await group.wait();
  // One at a time, so that they measure the network and not each other.
  for (const auto& attempt : attempts) {
    if (attempt->facts.error.empty()) co_await ping(attempt, limit);
    attempt->timer.cancel();
    boost::system::error_code ignored;
    attempt->socket.close(ignored);
  }
  for (const auto& attempt : attempts)
    if (attempt->facts.error.empty()) group.spawn(measure_mtu(io, attempt, token));
  co_await group.wait();
  std::vector<PeerFacts> facts;
  for (const auto& attempt : attempts) facts.push_back(attempt->facts);
  co_return facts;
}

asio::awaitable<Bandwidth> measure_bandwidth(asio::io_context& io, const Peer& peer,
                                             const std::string& token, milliseconds duration) {
  Bandwidth result;
  const auto attempt = std::make_shared<Attempt>(io, peer);
  const milliseconds limit = duration + kAnswerLimit;
  limit_attempt(attempt, limit);
  boost::system::error_code error = co_await open_to(attempt, token, kBandwidth);
  const std::vector<char> block(kBandwidthBlock, 'b');
  const auto out = asio::buffer(block);
  const auto end = Clock::now() + duration;
  while (!error && Clock::now() < end) {
    const auto [write_error, count] = co_await attempt->socket.async_write_some(out, kToken);
    error = write_error;
  }
  std::string answer(64, '\0');
  if (!error) attempt->socket.shutdown(tcp::socket::shutdown_send, error);
  if (!error) {
    const auto in = asio::buffer(answer);
    const auto [read_error, count] = co_await asio::async_read(attempt->socket, in, kToken);
    if (read_error != asio::error::eof) error = read_error;
    answer.resize(count);
  }
  attempt->timer.cancel();
  if (error) {
    result.error = attempt->reason(error, limit);
    co_return result;
  }
  const char* const last = answer.data() + answer.size();
  const auto [middle, trouble] = std::from_chars(answer.data(), last, result.bytes);
  if (trouble != std::errc{} || middle == last ||
      std::from_chars(middle + 1, last, result.us).ec != std::errc{})
    result.error = "a strange answer";
  co_return result;
}

}  // namespace sortie::runner::check

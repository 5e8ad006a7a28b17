#include "runner/tunnel/prober.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <cstring>

#include "common/asio/spawn.h"
#include "runner/never_fragment.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::tunnel {
namespace asio = boost::asio;
using asio::ip::udp;
using std::chrono::microseconds;
using std::chrono::milliseconds;
namespace {

constexpr milliseconds kRound{60};
constexpr int kTries = 3;
/// How long to wait for an answer after the last datagram.
constexpr milliseconds kPatience{200};
constexpr std::size_t kMaxDatagram = 65535;
constexpr std::size_t kMaxCandidates = 16;

// Layout of a datagram: token, kind, from, to, size, candidate, time of sending.
constexpr std::size_t kKindAt = 16, kFromAt = 17, kToAt = 19, kSizeAt = 21, kCandidateAt = 23,
                      kTimeAt = 24;
constexpr char kAsks = 'p', kAnswers = 'a';

std::uint16_t word_at(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[at]) << 8 |
                                    static_cast<unsigned char>(bytes[at + 1]));
}
void put_word(std::string& bytes, std::size_t at, std::size_t value) {
  bytes[at] = static_cast<char>(value >> 8 & 0xff);
  bytes[at + 1] = static_cast<char>(value & 0xff);
}
std::int64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<microseconds>(now).count();
}

}  // namespace

Prober::Prober(asio::io_context& io, Token token, std::uint16_t me)
    : io_(io), token_(token), me_(me), v4_(io), v6_(io) {}

Result<> Prober::bind(udp::socket& socket, const UdpEndpoint& at) {
  boost::system::error_code error;
  socket.open(at.protocol(), error);
  if (!error && at.address().is_v6()) socket.set_option(asio::ip::v6_only(true), error);
  if (!error) socket.bind(at, error);
  if (!error) socket.non_blocking(true, error);
  if (error) {
    boost::system::error_code ignored;
    socket.close(ignored);
    return std::unexpected(os_error(error.value(), fmt::format("UDP port {}", at.port())));
  }
  never_fragment(socket.native_handle(), at.address().is_v6());
  return {};
}

Result<> Prober::open(std::uint16_t port) {
  SORTIE_TRY(bind(v4_, UdpEndpoint(udp::v4(), port)));
  if (const Result<> v6 = bind(v6_, UdpEndpoint(udp::v6(), port)); !v6) {
    const Result<> taken = bind(v6_, UdpEndpoint(udp::v6(), 0));
    close_if_open(v6_);
    if (taken) {  // this host has IPv6, and another process has the port there
      close_if_open(v4_);
      return v6;
    }
  }
  spawn(io_, listen(v4_));
  if (v6_.is_open()) spawn(io_, listen(v6_));
  return {};
}

Result<std::uint16_t> Prober::open_at(const asio::ip::address& address) {
  udp::socket& socket = address.is_v6() ? v6_ : v4_;
  SORTIE_TRY(bind(socket, UdpEndpoint(address, 0)));
  spawn(io_, listen(socket));
  boost::system::error_code ignored;
  return socket.local_endpoint(ignored).port();
}

void Prober::close_if_open(udp::socket& socket) {
  boost::system::error_code ignored;
  if (socket.is_open()) socket.close(ignored);
}

void Prober::close() {
  close_if_open(v4_);
  close_if_open(v6_);
}

asio::awaitable<void> Prober::listen(udp::socket& socket) {
  const auto self = shared_from_this();
  std::vector<char> buffer(kMaxDatagram);
  while (socket.is_open()) {
    UdpEndpoint from;
    const auto [error, count] =
        co_await socket.async_receive_from(asio::buffer(buffer), from, kToken);
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    // Any other error is an ICMP report about an earlier datagram.
    if (!error) take(std::string_view(buffer.data(), count), from);
  }
}

void Prober::take(std::string_view bytes, const UdpEndpoint& from) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), token_.data(), kTokenBytes) != 0 ||
      word_at(bytes, kToAt) != me_)
    return;
  if (bytes[kKindAt] == kAnswers) return take_answer(bytes);
  if (bytes[kKindAt] != kAsks || word_at(bytes, kSizeAt) != bytes.size()) return;
  const std::uint16_t asker = word_at(bytes, kFromAt);
  heard_[asker] = from;
  // The answer is never larger than the probe.
  std::string answer(bytes.substr(0, kHeaderBytes));
  answer[kKindAt] = kAnswers;
  put_word(answer, kFromAt, me_);
  put_word(answer, kToAt, asker);
  send(answer, from);
}

void Prober::take_answer(std::string_view bytes) {
  const auto target = std::ranges::find(targets_, word_at(bytes, kFromAt), &Target::index);
  const auto candidate = static_cast<unsigned char>(bytes[kCandidateAt]);
  if (target == targets_.end() || candidate >= target->candidates.size()) return;
  std::int64_t sent = 0;
  std::memcpy(&sent, bytes.data() + kTimeAt, sizeof sent);
  const std::int64_t took = now_us() - sent;
  if (took < 0) return;
  if (!target->chosen) target->chosen = candidate;
  if (*target->chosen != candidate) return;
  target->best = std::max<std::size_t>(target->best, word_at(bytes, kSizeAt));
  const auto us = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(took));
  if (target->round_trip_us == 0 || us < target->round_trip_us) target->round_trip_us = us;
}

std::string Prober::datagram(char kind, std::uint16_t to, std::size_t size,
                             std::uint8_t candidate) const {
  std::string bytes(size, 't');
  std::memcpy(bytes.data(), token_.data(), kTokenBytes);
  bytes[kKindAt] = kind;
  put_word(bytes, kFromAt, me_);
  put_word(bytes, kToAt, to);
  put_word(bytes, kSizeAt, size);
  bytes[kCandidateAt] = static_cast<char>(candidate);
  const std::int64_t now = now_us();
  std::memcpy(bytes.data() + kTimeAt, &now, sizeof now);
  return bytes;
}

bool Prober::send(const std::string& bytes, const UdpEndpoint& to) {
  udp::socket& socket = to.address().is_v6() ? v6_ : v4_;
  if (!socket.is_open()) return true;
  boost::system::error_code error;
  socket.send_to(asio::buffer(bytes), to, 0, error);
  return error != asio::error::message_size;
}

void Prober::ask_around(Target& target) {
  if (Clock::now() < target.begin && !heard_.contains(target.index)) return;
  if (const auto heard = heard_.find(target.index);
      heard != heard_.end() && target.candidates.size() < kMaxCandidates &&
      std::ranges::find(target.candidates, heard->second, &Candidate::endpoint) ==
          target.candidates.end())
    target.candidates.push_back({heard->second, true});
  if (!target.chosen) {
    for (std::size_t i = 0; i < target.candidates.size(); ++i)
      send(datagram(kAsks, target.index, kSmall, static_cast<std::uint8_t>(i)),
           target.candidates[i].endpoint);
    return;
  }
  const UdpEndpoint& to = target.candidates[*target.chosen].endpoint;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] <= target.best || target.tries[i] >= kTries) continue;
    ++target.tries[i];
    target.last_try = Clock::now();
    if (!send(datagram(kAsks, target.index, sizes_[i], static_cast<std::uint8_t>(*target.chosen)),
              to))
      target.tries[i] = kTries;
  }
}

bool Prober::is_done(const Target& target) const {
  if (!target.chosen) return false;
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    if (sizes_[i] > target.best && target.tries[i] < kTries) return false;
  return target.best == sizes_.front() ||
         Clock::now() - target.last_try >
             std::max<Clock::duration>(kPatience, 2 * microseconds(target.round_trip_us));
}

asio::awaitable<std::vector<ProbeOutcome>> Prober::probe(std::vector<ProbePeer> peers,
                                                         std::vector<std::size_t> sizes,
                                                         milliseconds limit) {
  const auto self = shared_from_this();
  sizes_ = std::move(sizes);
  targets_.clear();
  for (ProbePeer& peer : peers) {
    Target& target = targets_.emplace_back();
    target.index = peer.index;
    target.begin = Clock::now() + peer.after;
    target.tries.resize(sizes_.size());
    for (const UdpEndpoint& endpoint : peer.endpoints)
      if (target.candidates.size() + 1 < kMaxCandidates)
        target.candidates.push_back({endpoint, false});
  }
  const auto deadline = Clock::now() + limit;
  asio::steady_timer timer(io_);
  for (;;) {
    for (Target& target : targets_)
      if (!is_done(target)) ask_around(target);
    timer.expires_after(kRound);
    co_await timer.async_wait(kToken);
    const bool all = std::ranges::all_of(targets_, [this](const Target& t) { return is_done(t); });
    if (all || Clock::now() >= deadline) break;
  }
  std::vector<ProbeOutcome> outcomes;
  for (const Target& target : targets_) {
    ProbeOutcome& outcome = outcomes.emplace_back();
    outcome.index = target.index;
    if (!target.chosen) continue;
    outcome.endpoint = target.candidates[*target.chosen].endpoint;
    outcome.learned = target.candidates[*target.chosen].learned;
    outcome.size = target.best;
    outcome.round_trip_us = target.round_trip_us;
  }
  co_return outcomes;
}

std::optional<UdpEndpoint> parse_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string host(text.substr(0, colon));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  std::uint16_t port = 0;
  const auto [end, bad] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (error || bad != std::errc() || end != text.data() + text.size() || port == 0)
    return std::nullopt;
  return UdpEndpoint(address, port);
}

std::string endpoint_text(const UdpEndpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

}  // namespace sortie::runner::tunnel

// TcpLinks: SiteLinks over TCP. Both ends listen; whichever reaches the other connects, so one open
// port at one of two sites is enough. A pair of sites has several connections, over which the
// pieces of messages are spread as each has room; all of them are sealed with keys made of the
// order's key (common/seal). link_record.h has the bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "trainer/outer/site_links.h"

namespace sortie::trainer::outer {

struct TcpLinksSettings {
  std::string site;
  std::int64_t part = 0;
  /// Listened on: of leaders of one host each needs its own (outer.port + part); 0 = any free one.
  std::uint16_t port = 0;
  std::int64_t streams = 4;  // connections to each other site
  std::string host;          // numeric address that others are told; empty = of the route outwards
  /// By way of the launcher: the socket of the runner for that; `host` is then what the launcher
  /// calls this host. Empty: directly.
  std::string forward;
  /// A connection says something at least that often; one that hears nothing for `silence` is lost.
  std::chrono::milliseconds alive{3000}, silence{15000};
  std::chrono::milliseconds connect_limit{15000};  // of open()
};

class TcpLinks : public SiteLinks {
 public:
  /// Listens. ErrorCode::io: the port can not be had.
  static Result<std::unique_ptr<TcpLinks>> make(TcpLinksSettings settings);
  /// Tells the others that it leaves, and waits a little until they have what was sent.
  ~TcpLinks() override;

  std::string address() const override;
  Result<> open(const training::OuterExchange& order, std::size_t self) override;
  Result<> send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes) override;
  Result<> receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes) override;
  Result<> flush() override;
  void cancel() override;
  LinkCounters counters() const override;

 private:
  class Engine;
  explicit TcpLinks(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace sortie::trainer::outer

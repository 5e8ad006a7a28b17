// TcpLinks: SiteLinks over TCP. Both ends listen, and whichever can reach the other connects: one
// open port at one of two sites is enough. A pair of sites has several connections; each piece of a
// message is sent over one that has room. All connections are sealed with keys derived from the
// order's key (common/seal). link_record.h has the wire format.
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
  /// Port to listen on. Leaders on one host need different ports (outer.port + part). 0 = any free
  /// one.
  std::uint16_t port = 0;
  std::int64_t streams = 4;  // connections to each other site
  std::string host;          // numeric address for others; empty = outward_address()
  /// Connect through the launcher: path of the runner's forwarding socket. `host` is then the
  /// launcher's name of this host. Empty: connect directly.
  std::string forward;
  /// A connection sends at least one record per `alive`. One that receives nothing for `silence` is
  /// lost.
  std::chrono::milliseconds alive{3000}, silence{15000};
  std::chrono::milliseconds connect_limit{15000};  // timeout of open()
};

class TcpLinks : public SiteLinks {
 public:
  /// Starts to listen. ErrorCode::io if the port is not available.
  static Result<std::unique_ptr<TcpLinks>> make(TcpLinksSettings settings);
  /// Informs the other sites that it leaves, and waits for a limited time until they have received
  /// what was sent.
  ~TcpLinks() override;

  std::string address() const override;
  Result<> open(const training::OuterExchange& order, std::size_t self) override;
  std::optional<std::size_t> unreached() const override;
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

// Compares the count of bytes on the wire with that of the interface, with two network namespaces
// and a veth pair between them. Needs root, like every test with separate hosts.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "trainer/outer/tcp_links.h"

namespace sortie::trainer::outer {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  std::array<char, 4096> buffer;
  FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), count);
  REQUIRE(::pclose(pipe) == 0);
  return text;
}

constexpr double kFullPacket = 1514;  // Ethernet header and an MTU of 1500 bytes

/// Hosts 10.199.0.1 and 10.199.0.2, named after this process.
class TwoNamespaces {
 public:
  TwoNamespaces() {
    REQUIRE(::geteuid() == 0);
    for (const std::string& name : names_) output_of("ip netns add " + name);
    output_of(
        fmt::format("ip -n {} link add v0 type veth peer name v0 netns {}", names_[0], names_[1]));
    for (int i = 0; i < 2; ++i) {
      output_of(fmt::format("ip -n {} addr add 10.199.0.{}/24 dev v0", names_[i], i + 1));
      // One segment per packet, as on a real wire: the interface would count larger ones.
      output_of(fmt::format("ip -n {} link set v0 up gso_max_segs 1", names_[i]));
    }
  }
  ~TwoNamespaces() {
    for (const std::string& name : names_)
      (void)!std::system(("ip netns del " + name + " 2> /dev/null").c_str());
  }

  /// Moves this thread, and threads that it starts later, to that host.
  void enter(int host) const {
    const Fd file(::open(("/run/netns/" + names_[host]).c_str(), O_RDONLY | O_CLOEXEC));
    REQUIRE(file);
    REQUIRE(::setns(file.get(), CLONE_NEWNET) == 0);
  }
  double bytes(int host, const char* way) const {
    const auto shown =
        nlohmann::json::parse(output_of(fmt::format("ip -n {} -s -j link show v0", names_[host])));
    return shown[0]["stats64"][way]["bytes"].get<double>();
  }

 private:
  const std::string names_[2] = {fmt::format("links{}a", ::getpid()),
                                 fmt::format("links{}b", ::getpid())};
};

TEST_CASE("bytes on the wire are within 3 % of what the interface has counted") {
  const TwoNamespaces hosts;
  std::unique_ptr<TcpLinks> links[2];
  for (int i = 0; i < 2; ++i)
    std::thread([&] {
      hosts.enter(i);
      TcpLinksSettings settings;
      settings.site = i == 0 ? "a" : "b";
      settings.host = fmt::format("10.199.0.{}", i + 1);
      auto made = TcpLinks::make(settings);
      REQUIRE(made);
      links[i] = std::move(*made);
    }).join();
  const double sent_before = hosts.bytes(0, "tx"), received_before = hosts.bytes(0, "rx");
  training::OuterExchange order;
  order.epoch = 1;
  order.key.assign(64, 'c');
  order.members = {{"a", links[0]->address(), 0.5}, {"b", links[1]->address(), 0.5}};
  const std::size_t sizes[2] = {std::size_t{16} << 20, std::size_t{3} << 20};
  const auto exchange = [&](std::size_t self) {
    const std::vector<std::byte> own(sizes[self], std::byte{5});
    std::vector<std::byte> theirs(sizes[1 - self]);
    return links[self]->open(order, self) && links[self]->send(1 - self, 0, own) &&
           links[self]->receive(1 - self, 0, theirs) && links[self]->flush();
  };
  auto other = std::async(std::launch::async, exchange, std::size_t{1});
  REQUIRE(exchange(0));
  REQUIRE(other.get());
  const LinkCounters counters = links[0]->counters();
  const double sent = hosts.bytes(0, "tx") - sent_before;
  const double received = hosts.bytes(0, "rx") - received_before;
  CAPTURE(sent);
  CAPTURE(received);
  CAPTURE(counters.wire_sent);
  CAPTURE(counters.wire_received);
  CHECK(counters.payload_sent == sizes[0]);
  CHECK(counters.payload_received == sizes[1]);
  CHECK(sent > 1.03 * static_cast<double>(sizes[0]));  // headers are included
  CHECK(std::abs(static_cast<double>(counters.wire_sent) / sent - 1.0) < 0.03);
  // What the peer sent again may arrive twice, and TCP counts it once.
  const double twice = static_cast<double>(links[1]->counters().retransmitted) * kFullPacket;
  CAPTURE(twice);
  CHECK(static_cast<double>(counters.wire_received) < 1.03 * received);
  CHECK(static_cast<double>(counters.wire_received) + twice > 0.97 * received);
}

}  // namespace
}  // namespace sortie::trainer::outer

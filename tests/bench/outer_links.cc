// bench_outer_links [STREAMS [MIB [ROUNDS]]]: throughput of the links between two sites on this
// machine's loopback device, sealed, in one direction and in both at once, compared with sealing
// alone. Prints GB/s, and the CPU seconds of both ends together per GB.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/seal/record_cipher.h"
#include "trainer/outer/link_record.h"
#include "trainer/outer/tcp_links.h"

using namespace sortie;
using namespace sortie::trainer::outer;

namespace {

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Prints the median of `rounds` rounds of `work`, which moves `bytes`.
void measure(const char* what, double bytes, int rounds, const std::function<void()>& work) {
  std::vector<double> times, cpu;
  for (int i = 0; i < rounds; ++i) {
    const double cpu_before = cpu_seconds();
    const auto begun = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    cpu.push_back(cpu_seconds() - cpu_before);
  }
  std::ranges::sort(times);
  std::ranges::sort(cpu);
  fmt::print("{:34} {:6.2f} GB/s  {:5.2f} CPU s/GB\n", what, bytes / times[times.size() / 2] / 1e9,
             cpu[cpu.size() / 2] / bytes * 1e9);
}

std::unique_ptr<TcpLinks> make_links(const char* site, std::int64_t streams) {
  TcpLinksSettings settings;
  settings.site = site;
  settings.host = "127.0.0.1";
  settings.streams = streams;
  auto made = TcpLinks::make(settings);
  SORTIE_CHECK(made);
  return std::move(*made);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t streams = argc > 1 ? std::atoll(argv[1]) : 4;
  const std::size_t size = static_cast<std::size_t>(argc > 2 ? std::atoll(argv[2]) : 256) << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  SORTIE_CHECK(streams > 0 && size > 0 && rounds > 0);
  std::vector<std::byte> sent[2], received[2];
  for (int i = 0; i < 2; ++i) {
    sent[i].assign(size, std::byte{42});
    received[i].resize(size);
  }
  const auto bytes = static_cast<double>(size);

  seal::RecordCipher cipher;
  cipher.begin(seal::RecordCipher::best(), {});
  std::vector<unsigned char> record(kLinkPieceBytes + seal::RecordCipher::kTagBytes);
  measure("sealing alone", bytes, rounds, [&] {
    for (std::size_t done = 0; done < size; done += kLinkPieceBytes)
      cipher.seal(record.data(), kLinkPieceBytes);
  });

  std::unique_ptr<TcpLinks> links[2] = {make_links("a", streams), make_links("b", streams)};
  training::OuterExchange order;
  order.epoch = 1;
  order.key.assign(64, '1');
  order.members = {{"a", links[0]->address(), 0.5}, {"b", links[1]->address(), 0.5}};
  const auto at_both = [&](const std::function<void(std::size_t)>& work) {
    std::jthread other([&] { work(1); });
    work(0);
  };
  at_both([&](std::size_t self) { SORTIE_CHECK(links[self]->open(order, self)); });
  measure("links, one way", bytes, rounds, [&] {
    at_both([&](std::size_t self) {
      if (self == 0) SORTIE_CHECK(links[0]->send(1, 1, sent[0]) && links[0]->flush());
      if (self == 1) SORTIE_CHECK(links[1]->receive(0, 1, received[1]));
    });
  });
  measure("links, both ways at once (sum)", 2 * bytes, rounds, [&] {
    at_both([&](std::size_t self) {
      SORTIE_CHECK(links[self]->send(1 - self, 2, sent[self]));
      SORTIE_CHECK(links[self]->receive(1 - self, 2, received[self]));
      SORTIE_CHECK(links[self]->flush());
    });
  });
  SORTIE_CHECK(received[0] == sent[1] && received[1] == sent[0]);
  const LinkCounters counters = links[0]->counters();
  fmt::print("headers and acknowledgements: {:.3f} % of what was sent\n",
             100.0 * (static_cast<double>(counters.wire_sent) /
                          static_cast<double>(counters.payload_sent) -
                      1.0));
}

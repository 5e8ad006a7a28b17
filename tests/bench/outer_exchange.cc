// An exchange between sites (trainer/outer/exchange.h) over links that cost only a copy: the time
// that the sites themselves add to a round. All sites are threads of this process, so the time is
// that of SITES leaders on the cores of this machine; the median of rounds.
//
//   bench_outer_exchange [SITES [VALUES [THREADS]]]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/elapsed.h"
#include "common/config/outer.h"
#include "tests/bench/median.h"
#include "tests/support/memory_links.h"
#include "trainer/outer/exchange.h"
#include "trainer/random/random.h"

using namespace sortie;
using namespace sortie::trainer;
using config::OuterWire;

namespace {

struct Site {
  outer::ExchangeMemory memory;  // outlives the links
  std::unique_ptr<outer::SiteLinks> links;
  std::vector<float> delta, mean;
  std::optional<outer::ErrorFeedback> feedback;
  outer::ExchangeFigures figures;
};

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 2;
  const std::size_t values = argc > 2 ? static_cast<std::size_t>(std::atoll(argv[2])) : 1 << 24;
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  testing::MemoryNetwork network({.silence = std::chrono::minutes(5)});
  std::vector<Site> sites(count);
  training::OuterExchange order;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("site{}", i);
    sites[i].links = network.links(name);
    sites[i].mean.resize(values);
    for (std::size_t j = 0; j < values; ++j) sites[i].delta.push_back(random_normal(i, j));
    order.members.push_back({name, sites[i].links->address(), 1.0 / static_cast<double>(count)});
  }
  const std::pair<std::string_view, OuterWire> wires[] = {{"f32", OuterWire::f32},
                                                          {"bf16", OuterWire::bf16},
                                                          {"e4m3", OuterWire::e4m3},
                                                          {"e2m1", OuterWire::e2m1}};
  fmt::print("{} sites, {} values, {} threads each\n{:6} {:>9} {:>9} {:>12} {:>8}\n", count, values,
             threads, "wire", "feedback", "seconds", "bytes/value", "SNR dB");
  for (const auto& [name, wire] : wires)
    for (const bool feedback : {false, true}) {
      if (feedback && wire != OuterWire::e2m1) continue;
      std::vector<double> took;
      for (int round = 0; round < 5; ++round) {
        ++order.epoch;
        const auto begin = std::chrono::steady_clock::now();
        std::vector<std::jthread> leaders;
        for (std::size_t i = 0; i < count; ++i)
          leaders.emplace_back([&, i] {
            Site& one = sites[i];
            if (feedback && !one.feedback) one.feedback.emplace(values);
            const auto done = outer::exchange(
                *one.links, order, i, {.format = {wire, 32}, .threads = threads}, one.delta,
                one.mean, feedback ? &*one.feedback : nullptr, one.memory, &one.figures);
            if (!done) {
              fmt::print(stderr, "{}\n", done.error().message);
              std::exit(1);
            }
          });
        leaders.clear();
        took.push_back(seconds_since(begin));
      }
      const outer::ExchangeFigures& figures = sites[0].figures;
      fmt::print("{:6} {:>9} {:9.3f} {:12.4f} {:8.1f}\n", name, feedback ? "yes" : "no",
                 bench::median(took),
                 static_cast<double>(figures.sent) / static_cast<double>(values),
                 10 * std::log10(figures.signal / figures.noise));
    }
}

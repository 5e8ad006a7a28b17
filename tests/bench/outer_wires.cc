// Wire formats between sites (trainer/outer/wire.h): GB/s of f32 that are encoded and decoded, and
// the signal-to-noise ratio on N(0, 1). One thread unless THREADS is given; medians of rounds.
//
//   bench_outer_wires [THREADS [VALUES]]
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/elapsed.h"
#include "common/config/outer.h"
#include "tests/bench/median.h"
#include "trainer/outer/wire.h"
#include "trainer/random/random.h"

using namespace sortie;
using namespace sortie::trainer;
using config::OuterWire;

namespace {

double gigabytes_per_second(std::size_t values, const std::function<bool()>& work) {
  std::vector<double> took;
  for (int round = 0; round < 9; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    if (!work()) std::abort();
    took.push_back(seconds_since(begin));
  }
  return static_cast<double>(values) * 4e-9 / bench::median(took);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::size_t count = argc > 2 ? static_cast<std::size_t>(std::atoll(argv[2])) : 1 << 24;
  std::vector<float> values(count), decoded(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random_normal(1, i);
  const std::pair<std::string_view, OuterWire> wires[] = {
      {"f32", OuterWire::f32},   {"bf16", OuterWire::bf16}, {"int8", OuterWire::int8},
      {"e4m3", OuterWire::e4m3}, {"e5m2", OuterWire::e5m2}, {"e2m1", OuterWire::e2m1},
      {"e3m0", OuterWire::e3m0}};
  fmt::print("{} values, {} threads; GB/s of f32\n{:6} {:9} {:>8} {:>8} {:>8} {:>8}\n", count,
             threads, "wire", "set", "encode", "decode", "add", "SNR dB");
  for (const auto& [name, wire] : wires) {
    for (const ops::Isa isa : {ops::Isa::baseline, ops::Isa::avx2, ops::Isa::avx512}) {
      if (isa > ops::best_isa()) continue;
      const outer::WireFormat format{wire, 32};
      const outer::WireWork work{threads, isa};
      std::vector<std::byte> bytes(outer::encoded_bytes(format, count));
      const double encode =
          gigabytes_per_second(count, [&] { return outer::encode(format, values, bytes, work); });
      const double add = gigabytes_per_second(
          count, [&] { return outer::decode_add(format, 0.5f, bytes, decoded, work); });
      const double decode =
          gigabytes_per_second(count, [&] { return outer::decode(format, bytes, decoded, work); });
      double signal = 0, noise = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double error = static_cast<double>(values[i]) - static_cast<double>(decoded[i]);
        signal += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        noise += error * error;
      }
      fmt::print("{:6} {:9} {:8.2f} {:8.2f} {:8.2f} {:8.1f}\n", name, ops::isa_name(isa), encode,
                 decode, add, 10 * std::log10(signal / noise));
    }
  }
}

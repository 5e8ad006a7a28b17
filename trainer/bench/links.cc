#include "trainer/bench/links.h"

#include <algorithm>
#include <chrono>

#include "common/base/elapsed.h"

namespace sortie::trainer {
namespace {

using LinkClock = std::chrono::steady_clock;

/// `both`: seconds until the bytes were sent to one rank and received from another. `came`: seconds
/// until they were received; in a ring, those that are sent use another link.
struct Exchange {
  double both = 0, came = 0;
};
Exchange exchange_seconds(Communicator& group, const Tensor& out, const Tensor& in, int to,
                          int from) {
  const auto begin = LinkClock::now();
  const auto receive = group.receive_async(in, from);
  const auto send = group.send_async(out, to);
  receive->wait();
  const double came = seconds_since(begin);
  send->wait();
  return {seconds_since(begin), came};
}

double one_way_us(Communicator& group, int peer) {
  constexpr int kRounds = 20;
  std::int64_t word = 0;
  const Tensor value = Tensor::wrap(&word, DType::i64, {1});
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = LinkClock::now();
    if (group.rank() < peer) {
      group.send(value, peer);
      group.receive(value, peer);
    } else {
      group.receive(value, peer);
      group.send(value, peer);
    }
    best = std::min(best, seconds_since(begin));
  }
  return best / 2 * 1e6;
}

/// A piece of work that takes some tenths of a millisecond within the caches.
void compute(std::vector<float>& values) {
  constexpr int kPasses = 32;
  for (int pass = 0; pass < kPasses; ++pass)
    for (float& value : values) value = value * 0.999f + 0.001f;
}

double beside_cost(Communicator& group, std::int64_t bytes) {
  constexpr std::size_t kFloats = 8192;
  constexpr int kAlone = 200, kRounds = 3;
  std::vector<float> work(kFloats, 1.0f);
  std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float) + 1);
  const Tensor sum =
      Tensor::wrap(values.data(), DType::f32, {static_cast<std::int64_t>(values.size())});
  const double d = group.size();
  const double sent = 2.0 * (d - 1) / d * static_cast<double>(sum.elements() * 4);
  double least = 0;
  for (int round = 0; round < kRounds; ++round) {
    group.barrier();
    const auto begin = LinkClock::now();
    for (int i = 0; i < kAlone; ++i) compute(work);
    const double alone = seconds_since(begin) / kAlone;
    group.barrier();
    const auto together = LinkClock::now();
    const auto handle = group.all_reduce_async(sum, ReduceOp::sum);
    int pieces = 0;
    for (; !handle->poll(); ++pieces) compute(work);
    const double cost = std::max(0.0, seconds_since(together) - alone * pieces) / sent;
    least = round == 0 ? cost : std::min(least, cost);
  }
  std::vector<double> costs(static_cast<std::size_t>(group.size()));
  costs[static_cast<std::size_t>(group.rank())] = least;
  group.all_reduce_sum(costs);
  return *std::ranges::max_element(costs);
}

}  // namespace

std::vector<std::vector<std::pair<int, int>>> pair_rounds(int ranks) {
  // The circle method: one rank stays, the others rotate. With an odd number, one rank pauses.
  const int seats = ranks + ranks % 2;
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    std::vector<std::pair<int, int>> pairs;
    for (int i = 0; i < seats / 2; ++i) {
      const auto seat = [&](int place) {
        return place == 0 ? 0 : (place - 1 + round) % (seats - 1) + 1;
      };
      const int a = seat(i), b = seat(seats - 1 - i);
      if (a < ranks && b < ranks) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
    rounds.push_back(std::move(pairs));
  }
  return rounds;
}

LinkReport bench_links(Communicator& group, std::int64_t bytes, int repeats) {
  const int ranks = group.size(), rank = group.rank();
  std::vector<std::uint8_t> sent(static_cast<std::size_t>(bytes)), received(sent.size());
  const Tensor out = Tensor::wrap(sent.data(), DType::u8, {bytes});
  const Tensor in = Tensor::wrap(received.data(), DType::u8, {bytes});
  const std::int64_t little = std::min<std::int64_t>(bytes, 1 << 20);
  // Measurements of this rank, by pair. The lower rank of a pair reports; the others contribute 0
  // to the sums that distribute the values.
  const auto size = static_cast<std::size_t>(ranks);
  std::vector<double> seconds(size * size), words(size * size), ring(size);
  const auto warm = [&](int to, int from) {
    exchange_seconds(group, out.slice(0, 0, little), in.slice(0, 0, little), to, from);
  };
  for (const auto& pairs : pair_rounds(ranks)) {
    group.barrier();
    for (const auto& [low, high] : pairs) {
      if (rank != low && rank != high) continue;
      const int peer = rank == low ? high : low;
      warm(peer, peer);
      const double word = one_way_us(group, peer);
      double took = exchange_seconds(group, out, in, peer, peer).both;
      for (int i = 1; i < repeats; ++i)
        took = std::min(took, exchange_seconds(group, out, in, peer, peer).both);
      if (rank != low) continue;
      const std::size_t at = static_cast<std::size_t>(low) * size + static_cast<std::size_t>(high);
      seconds[at] = took;
      words[at] = word;
    }
  }
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  warm(next, before);
  double& arrival = ring[static_cast<std::size_t>(before)];
  for (int i = 0; i < repeats; ++i) {
    group.barrier();
    const double came = exchange_seconds(group, out, in, next, before).came;
    arrival = i == 0 ? came : std::min(arrival, came);
  }
  group.all_reduce_sum(seconds);
  group.all_reduce_sum(words);
  group.all_reduce_sum(ring);

  const auto rate = [bytes](double took) { return 8e-9 * static_cast<double>(bytes) / took; };
  LinkReport report;
  for (int low = 0; low < ranks; ++low) {
    for (int high = low + 1; high < ranks; ++high) {
      const std::size_t at = static_cast<std::size_t>(low) * size + static_cast<std::size_t>(high);
      report.pairs.push_back({low, high, words[at], rate(seconds[at])});
    }
    report.ring.push_back({low, (low + 1) % ranks, 0, rate(ring[static_cast<std::size_t>(low)])});
  }
  report.beside = beside_cost(group, bytes);
  return report;
}

}  // namespace sortie::trainer

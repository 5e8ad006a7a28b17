#include "trainer/outer/exchange.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/config/outer.h"
#include "tests/support/memory_links.h"
#include "trainer/random/random.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
using config::OuterWire;
using outer::ErrorFeedback;
using outer::ExchangeFigures;
using outer::ExchangeSettings;
using sortie::testing::MemoryNetwork;
using Vector = std::vector<float>;

constexpr std::array kEvery{OuterWire::f32,  OuterWire::bf16, OuterWire::int8, OuterWire::e4m3,
                            OuterWire::e5m2, OuterWire::e2m1, OuterWire::e3m0};

Vector change_of(std::size_t count, std::uint64_t key) {
  Vector values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = 0.01f * static_cast<float>(1 + key % 3) * random_normal(key, i);
  return values;
}
std::vector<Vector> changes_of(std::size_t members, std::size_t count, std::uint64_t key = 100) {
  std::vector<Vector> changes;
  for (std::size_t i = 0; i < members; ++i) changes.push_back(change_of(count, key + i));
  return changes;
}

/// Returns settings with small pieces, so that each chunk has several pieces and there are several
/// windows.
ExchangeSettings small(OuterWire wire) {
  return {.format = {wire, 32}, .threads = 1, .piece = 130, .ahead = 1000, .window = 9000};
}

struct Member {
  std::string site;
  double weight = 0.0;
  outer::ExchangeMemory memory;  // outlives the links
  std::unique_ptr<outer::SiteLinks> links;
  Vector delta, mean;
  std::optional<ErrorFeedback> feedback;
  Result<> done;
  ExchangeFigures figures;
};

/// Sites "a", "b" ... with equal weights.
struct Sites {
  Sites(std::vector<Vector> changes, bool feedback, testing::MemoryNetworkOptions options = {})
      : network(std::move(options)), members(changes.size()) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& one = members[i];
      one.site = std::string(1, static_cast<char>('a' + i));
      one.weight = 1.0 / static_cast<double>(members.size());
      one.links = network.links(one.site);
      one.delta = std::move(changes[i]);
      if (feedback) one.feedback.emplace(one.delta.size());
    }
  }

  training::OuterExchange order(std::span<Member* const> of) {
    training::OuterExchange order;
    order.round = 3;
    order.fragment = 1;
    order.epoch = ++epoch;
    for (const Member* one : of)
      order.members.push_back({one->site, one->links->address(), one->weight});
    return order;
  }
  std::vector<Member*> all() {
    std::vector<Member*> all;
    for (Member& one : members) all.push_back(&one);
    return all;
  }
  /// Runs the exchange on all members at once. A member that fails, unless it was killed, cancels
  /// the exchange for the others, as the coordinator would.
  void exchange(std::span<Member* const> of, const ExchangeSettings& settings) {
    const auto agreed = order(of);
    std::vector<std::jthread> threads;
    for (std::size_t self = 0; self < of.size(); ++self)
      threads.emplace_back([&, self] {
        Member& one = *of[self];
        one.mean.assign(one.delta.size(), 0.0f);
        one.done =
            outer::exchange(*one.links, agreed, self, settings, one.delta, one.mean,
                            one.feedback ? &*one.feedback : nullptr, one.memory, &one.figures);
        if (!one.done && one.done.error().code != ErrorCode::interrupted)
          for (Member* other : of) other->links->cancel();
      });
  }
  void exchange(const ExchangeSettings& settings) {
    const auto of = all();
    exchange(of, settings);
  }

  MemoryNetwork network;
  std::vector<Member> members;
  std::uint64_t epoch = 5;
};

Vector through(const outer::WireFormat& format, std::span<const float> values) {
  std::vector<std::byte> bytes(outer::encoded_bytes(format, values.size()));
  Vector out(values.size());
  REQUIRE(outer::encode(format, values, bytes));
  REQUIRE(outer::decode(format, bytes, out));
  return out;
}

/// Returns the mean as exchange.h defines it, without pieces, messages and threads.
Vector plain_mean(const outer::WireFormat& format, const std::vector<Vector>& changes,
                  const std::vector<double>& weights) {
  const std::size_t count = changes[0].size(), members = changes.size();
  const auto block = static_cast<std::size_t>(format.block);
  const std::size_t blocks = (count + block - 1) / block;
  Vector mean;
  for (std::size_t owner = 0; owner < members; ++owner) {
    const std::size_t begin = blocks * owner / members * block;
    const std::size_t end = std::min(blocks * (owner + 1) / members * block, count);
    Vector sum(end - begin);
    for (std::size_t member = 0; member < members; ++member) {
      if (weights[member] == 0) continue;
      const auto own = std::span(changes[member]).subspan(begin, end - begin);
      const Vector seen = member == owner ? Vector(own.begin(), own.end()) : through(format, own);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const float part = static_cast<float>(weights[member]) * seen[i];
        sum[i] += part;
      }
    }
    const Vector rounded = through(format, sum);
    mean.insert(mean.end(), rounded.begin(), rounded.end());
  }
  return mean;
}

bool all_nan(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isnan(value); });
}

}  // namespace

TEST_CASE("an exchange gives all sites the bits of the plain mean, on every wire") {
  const std::size_t count = 1999;
  for (const OuterWire wire : kEvery)
    for (std::size_t members = 1; members <= 8; ++members) {
      CAPTURE(static_cast<int>(wire));
      CAPTURE(members);
      const auto changes = changes_of(members, count);
      Sites sites(changes, false,
                  {.max_delay = std::chrono::microseconds(members == 3 ? 200 : 0), .seed = 9});
      std::vector<double> weights(members, 1.0 / static_cast<double>(members));
      if (members == 4) weights = {0.1, 0.2, 0.3, 0.4};
      for (std::size_t i = 0; i < members; ++i) sites.members[i].weight = weights[i];
      sites.exchange(small(wire));
      const Vector wanted = plain_mean({wire, 32}, changes, weights);
      for (const Member& one : sites.members) {
        REQUIRE_MESSAGE(one.done, one.done.error().message);
        CHECK(one.mean == wanted);
        CHECK(one.figures.hash == outer::hash_of(wanted));
        CHECK(one.figures.sent == one.links->counters().payload_sent);
      }
    }
}

TEST_CASE("sizes of pieces and windows, and threads, have no part in the mean") {
  const std::size_t count = 40000;
  const auto changes = changes_of(3, count);
  const Vector wanted = plain_mean({OuterWire::e2m1, 64}, changes, {1.0 / 3, 1.0 / 3, 1.0 / 3});
  for (const auto& [piece, ahead, window] : {std::array<std::size_t, 3>{1, 1, 1},
                                             {64, 1 << 20, 1},
                                             {1000, 1, 1 << 20},
                                             {1 << 20, 1 << 20, 1 << 20}}) {
    Sites sites(changes, true);
    sites.exchange({{OuterWire::e2m1, 64}, 2, piece, ahead, window});
    for (const Member& one : sites.members) {
      REQUIRE_MESSAGE(one.done, one.done.error().message);
      CHECK(one.mean == wanted);
    }
  }
}

TEST_CASE("vectors shorter than a block per site, or empty, are exchanged") {
  for (const std::size_t count : {0u, 1u, 31u, 33u, 70u}) {
    const auto changes = changes_of(4, count);
    Sites sites(changes, true);
    sites.exchange(small(OuterWire::e4m3));
    for (const Member& one : sites.members) {
      REQUIRE(one.done);
      CHECK(one.mean == plain_mean({OuterWire::e4m3, 32}, changes, {0.25, 0.25, 0.25, 0.25}));
    }
  }
}

TEST_CASE("a site that abstains takes the mean of the others and keeps its error") {
  auto changes = changes_of(3, 999);
  changes[1][7] = NAN;
  Sites sites(changes, true);
  const Vector before = change_of(999, 55);
  sites.members[1].feedback->restore(before);
  sites.members[0].weight = 0.5;
  sites.members[1].weight = 0.0;
  sites.members[2].weight = 0.5;
  sites.exchange(small(OuterWire::e3m0));
  const Vector wanted = plain_mean({OuterWire::e3m0, 32}, changes, {0.5, 0.0, 0.5});
  for (Member& one : sites.members) {
    REQUIRE_MESSAGE(one.done, one.done.error().message);
    CHECK(one.mean == wanted);
  }
  ErrorFeedback& kept = *sites.members[1].feedback;
  kept.commit();
  CHECK(std::ranges::equal(kept.error().first(320), std::span(before).first(320)));
  CHECK(std::ranges::equal(kept.error().last(320), std::span(before).last(320)));
}

TEST_CASE("over rounds nothing is lost with error feedback, whoever takes part") {
  const std::size_t count = 600;
  for (const OuterWire wire : {OuterWire::e2m1, OuterWire::e3m0, OuterWire::int8}) {
    Sites sites(changes_of(3, count), true);
    std::vector<double> sent(count), arrived(count);
    for (int round = 0; round < 12; ++round) {
      const auto changes = changes_of(3, count, 1000 + 10 * static_cast<std::uint64_t>(round));
      for (std::size_t i = 0; i < 3; ++i) sites.members[i].delta = changes[i];
      std::vector<Member*> of = sites.all();
      if (round % 3 == 2) std::swap(of[0], of[2]);  // other members own the chunks
      sites.exchange(of, small(wire));
      for (Member* one : of) {
        REQUIRE_MESSAGE(one->done, one->done.error().message);
        if (round % 4 == 1) {  // the round counts for no member
          one->feedback->rollback();
          continue;
        }
        one->feedback->commit();
        for (std::size_t i = 0; i < count; ++i)
          sent[i] += one->weight * static_cast<double>(one->delta[i]);
      }
      if (round % 4 != 1)
        for (std::size_t i = 0; i < count; ++i)
          arrived[i] += static_cast<double>(sites.members[0].mean[i]);
    }
    double largest = 0.0, without = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      double kept = 0.0;
      for (const Member& one : sites.members)
        kept += one.weight * static_cast<double>(one.feedback->error()[i]);
      largest = std::max(largest, std::abs(sent[i] - arrived[i] - kept));
      without = std::max(without, std::abs(sent[i] - arrived[i]));
    }
    CHECK(largest < 1e-6);
    CHECK(without > 1e-5);  // the part that the errors hold
  }
}

TEST_CASE("a site that dies at any message leaves no partial mean, and its name") {
  const std::size_t count = 700;
  const auto changes = changes_of(3, count);
  const Vector with = plain_mean({OuterWire::e4m3, 32}, changes, {1.0 / 3, 1.0 / 3, 1.0 / 3});
  const std::vector<Vector> others{changes[0], changes[2]};
  const Vector without = plain_mean({OuterWire::e4m3, 32}, others, {0.5, 0.5});
  std::uint64_t deaths = 0, failures = 0, named = 0;
  for (bool died = true; died; ++deaths) {
    Sites sites(changes, true, {.seed = deaths});
    sites.network.kill_at("b", deaths);
    sites.exchange(small(OuterWire::e4m3));
    died = !sites.members[1].done;
    for (const std::size_t i : {0u, 2u}) {
      Member& one = sites.members[i];
      if (one.done) {
        CHECK(one.mean == with);
        one.feedback->rollback();
        continue;
      }
      ++failures;
      const bool of_the_dead = one.done.error().code == ErrorCode::lost;
      named += of_the_dead ? 1 : 0;
      if (of_the_dead)
        CHECK_MESSAGE(one.done.error().message.find("site b") != std::string::npos,
                      one.done.error().message);
      else
        CHECK(one.done.error().code == ErrorCode::interrupted);
      CHECK(all_nan(one.mean));
      CHECK(std::ranges::all_of(one.feedback->error(), [](float e) { return e == 0.0f; }));
    }
    if (!died) break;
    // The others continue without it, on the same links.
    std::vector<Member*> rest{&sites.members[0], &sites.members[2]};
    for (Member* one : rest) one->weight = 0.5;
    sites.exchange(rest, small(OuterWire::e4m3));
    for (const Member* one : rest) {
      REQUIRE_MESSAGE(one->done, one->done.error().message);
      CHECK(one->mean == without);
    }
  }
  CHECK(deaths >= 8);
  CHECK(failures >= deaths);
  CHECK(named >= deaths);
}

TEST_CASE("what is not of this exchange is refused, and says why") {
  Sites sites(changes_of(2, 500), false);
  const auto fails = [&](std::string_view text, ErrorCode code) {
    bool found = false;
    for (const Member& one : sites.members) {
      REQUIRE_FALSE(one.done);
      CHECK(all_nan(one.mean));
      found |=
          one.done.error().code == code && one.done.error().message.find(text) != std::string::npos;
    }
    CHECK(found);
  };
  SUBCASE("a flipped bit") {
    sites.network.corrupt_at("b", 0);
    sites.exchange(small(OuterWire::e4m3));
    fails("checksum", ErrorCode::protocol);
  }
  SUBCASE("a change that is not finite") {
    sites.members[1].delta[3] = INFINITY;
    sites.exchange(small(OuterWire::e4m3));
    fails("site b is not finite", ErrorCode::diverged);
  }
  SUBCASE("a sum beyond f32") {
    for (Member& one : sites.members) {
      one.delta.assign(500, 3e38f);
      one.weight = 1.0;
    }
    sites.exchange(small(OuterWire::f32));
    fails("sum of all changes", ErrorCode::diverged);
  }
  SUBCASE("weights of no use") {
    sites.members[0].weight = sites.members[1].weight = 0.0;
    sites.exchange(small(OuterWire::f32));
    fails("no site has a weight", ErrorCode::protocol);
  }
  SUBCASE("another round") {
    const auto order = sites.order(sites.all());
    auto other = order;
    other.round = 4;
    std::jthread thread([&] {
      Member& b = sites.members[1];
      b.mean.assign(500, 0.0f);
      b.done = outer::exchange(*b.links, other, 1, small(OuterWire::f32), b.delta, b.mean, nullptr,
                               b.memory);
    });
    Member& a = sites.members[0];
    a.mean.assign(500, 0.0f);
    a.done = outer::exchange(*a.links, order, 0, small(OuterWire::f32), a.delta, a.mean, nullptr,
                             a.memory);
    sites.members[1].links->cancel();
    thread.join();
    fails("site b sent something else: its round is 4, not 3", ErrorCode::protocol);
  }
}

TEST_CASE("bytes per site are those of owner-reduce") {
  const std::size_t count = 1 << 18;
  for (const std::size_t members : {2u, 8u}) {
    Sites sites(changes_of(members, count), false);
    sites.exchange({.format = {OuterWire::e2m1, 32}, .piece = 1 << 14});
    const double vector = 17.0 / 32 * static_cast<double>(count);
    const double wanted =
        2.0 * static_cast<double>(members - 1) / static_cast<double>(members) * vector;
    for (const Member& one : sites.members) {
      REQUIRE(one.done);
      const outer::LinkCounters bytes = one.links->counters();
      CHECK(static_cast<double>(bytes.payload_sent) <= 1.03 * wanted);
      CHECK(static_cast<double>(bytes.payload_sent) >= wanted);
      CHECK(static_cast<double>(bytes.payload_received) <= 1.03 * wanted);
      CHECK(10 * std::log10(one.figures.signal / one.figures.noise) > 18);
    }
  }
}

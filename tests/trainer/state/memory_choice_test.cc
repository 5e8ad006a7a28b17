// Tests of which host holds which share, and which snapshot a restart takes.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/text.h"
#include "trainer/state/memory_choice.h"

using namespace sortie::trainer;
using sortie::test::contains;

namespace {

ShareCopy copy_of(std::size_t host, std::size_t index, std::size_t count, std::int64_t step,
                  std::int64_t attempt = 1, char slot = 'a', const std::string& hash = "h") {
  return {host, {index, count, slot}, step, attempt, hash + std::to_string(index)};
}

/// Returns the copies that `hosts` hosts with one rank each have sealed.
std::vector<ShareCopy> whole_snapshot(std::size_t hosts, std::int64_t step,
                                      std::int64_t attempt = 1, char slot = 'a') {
  std::vector<ShareCopy> copies;
  for (std::size_t host = 0; host < hosts; ++host) {
    copies.push_back(copy_of(host, host, hosts, step, attempt, slot));
    copies.push_back(copy_of(host, (host + hosts - 1) % hosts, hosts, step, attempt, slot));
  }
  return copies;
}

std::vector<ShareCopy> without_host(std::vector<ShareCopy> copies, std::size_t host) {
  std::erase_if(copies, [&](const ShareCopy& copy) { return copy.host == host; });
  return copies;
}

}  // namespace

TEST_CASE("every share is on two hosts, once on each, and no rank has more than its part") {
  const std::vector<std::vector<std::string>> layouts = {
      {"a", "b"},           {"a", "b", "c", "d"},
      {"a", "a", "b", "b"}, {"a", "b", "a", "b", "c", "c"},
      {"a", "a", "a", "b"}, {"a", "b", "b", "b", "c"}};
  for (const auto& layout : layouts) {
    CAPTURE(layout.size());
    const MemoryHosts hosts(layout);
    for (std::size_t share = 0; share < hosts.ranks(); ++share) {
      std::vector<std::size_t> on;
      for (std::size_t rank = 0; rank < hosts.ranks(); ++rank)
        for (const std::size_t one : hosts.shares_of(rank))
          if (one == share) on.push_back(hosts.host_of(rank));
      REQUIRE(on.size() == 2);
      CHECK(on[0] != on[1]);
    }
  }
  const MemoryHosts even({"a", "a", "b", "b"});
  for (std::size_t rank = 0; rank < 4; ++rank) CHECK(even.shares_of(rank).size() == 2);
  CHECK(even.leads(0));
  CHECK_FALSE(even.leads(1));
  CHECK(even.leads(2));
  const MemoryHosts one({"a", "a"});
  CHECK(one.shares_of(1) == std::vector<std::size_t>{1});
}

TEST_CASE("the newest whole snapshot is taken, whichever host is lost") {
  std::vector<ShareCopy> copies = whole_snapshot(4, 20, 1, 'a');
  const auto newer = whole_snapshot(4, 40, 1, 'b');
  copies.insert(copies.end(), newer.begin(), newer.end());
  for (std::size_t lost = 0; lost < 4; ++lost) {
    const auto choice = choose_snapshot(without_host(copies, lost), {}, 0);
    REQUIRE(choice.snapshot);
    CHECK(choice.snapshot->step == 40);
    CHECK(choice.snapshot->slot == 'b');
    CHECK(choice.refused.empty());
  }
  // The loss of two hosts that are not neighbours leaves a copy of every share; the loss of two
  // neighbours does not.
  CHECK(choose_snapshot(without_host(without_host(copies, 0), 2), {}, 0).snapshot);
  const auto gone = choose_snapshot(without_host(without_host(copies, 0), 1), {}, 0);
  CHECK_FALSE(gone.snapshot);
  CHECK(gone.refused.size() == 2);
  CHECK_FALSE(choose_snapshot(copies, {}, 40).snapshot);  // the checkpoint on disk is as new
  CHECK(choose_snapshot(copies, {}, 39).snapshot);
}

TEST_CASE("one that is not whole, and shares of other attempts, do not make one together") {
  std::vector<ShareCopy> copies = whole_snapshot(3, 20);
  copies.push_back(copy_of(0, 0, 3, 40, 1, 'b'));
  copies.push_back(copy_of(1, 1, 3, 40, 1, 'b'));
  copies.push_back(copy_of(2, 2, 3, 40, 2, 'b'));  // of the next attempt
  const auto choice = choose_snapshot(copies, {}, 0);
  REQUIRE(choice.snapshot);
  CHECK(choice.snapshot->step == 20);
  REQUIRE(choice.refused.size() == 2);
  CHECK(contains(choice.refused[0], "step 40 in memory is passed over"));
}

TEST_CASE("replicas that were not equal are not gone on from") {
  std::vector<ShareCopy> copies = whole_snapshot(2, 20);
  copies[1].sha256 = "other";
  const auto choice = choose_snapshot(copies, {}, 0);
  CHECK_FALSE(choice.snapshot);
  REQUIRE(choice.refused.size() == 1);
  CHECK(contains(choice.refused[0], "the copies of share 1 differ"));
  // A copy whose bytes are damaged does not count.
  CHECK(choose_snapshot(copies, {copies[1]}, 0).snapshot);
}

TEST_CASE("copies come back from their text") {
  const auto copies = whole_snapshot(3, 20, 4, 'b');
  CHECK(parse_share_copies(serialize(copies)) == copies);
  CHECK(parse_share_copies("").empty());
}

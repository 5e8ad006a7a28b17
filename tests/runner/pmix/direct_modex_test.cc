// DirectModex: when a value requested by another host is looked up, fetched and sent.
#include "runner/pmix/direct_modex.h"

#include <doctest/doctest.h>
#include <pmix_common.h>

using namespace sortie;
using namespace sortie::runner;
using namespace std::chrono_literals;

namespace {

const DirectModex::Time kStart{1h};

/// Requests key "k" of rank 3. The first lookup and the first fetch find only other keys.
void bring_to_pause(DirectModex& modex, std::uint32_t timeout_s = 0) {
  REQUIRE(modex.ask({1, 3, "k", timeout_s}, kStart).look.size() == 1);
  REQUIRE(modex.on_looked(1, false, kStart).fetch.size() == 1);
  REQUIRE(modex.on_fetched(1, 0, "other keys").look.size() == 1);
  const auto steps = modex.on_looked(1, false, kStart);
  REQUIRE(steps.look.size() + steps.fetch.size() + steps.reply.size() == 0);
  REQUIRE(modex.next() == kStart + DirectModex::kFirstPause);
}

}  // namespace

TEST_CASE("a key that is there is fetched and answered at once") {
  DirectModex modex;
  const auto asked = modex.ask({1, 3, "k", 0}, kStart);
  REQUIRE(asked.look.size() == 1);
  CHECK(asked.look[0].id == 1);
  CHECK(asked.look[0].rank == 3);
  CHECK(asked.look[0].key == "k");
  CHECK(modex.on_looked(1, true, kStart).fetch.size() == 1);
  const auto answered = modex.on_fetched(1, 0, "data");
  REQUIRE(answered.reply.size() == 1);
  CHECK(answered.reply[0].id == 1);
  CHECK(answered.reply[0].rank == 3);
  CHECK(answered.reply[0].status == 0);
  CHECK(answered.reply[0].data == "data");
  CHECK(!modex.next());
}

TEST_CASE("without a key the answer is what there is, with its status") {
  DirectModex modex;
  const auto asked = modex.ask({1, 3, "", 0}, kStart);
  CHECK(asked.look.empty());
  CHECK(asked.fetch.size() == 1);
  const auto answered = modex.on_fetched(1, PMIX_ERR_NOT_FOUND, "");
  REQUIRE(answered.reply.size() == 1);
  CHECK(answered.reply[0].status == PMIX_ERR_NOT_FOUND);
}

TEST_CASE("a key of a later commit is looked for again, after growing pauses") {
  DirectModex modex;
  bring_to_pause(modex);
  auto now = kStart;
  auto pause = DirectModex::kFirstPause;
  for (int round = 0; round < 12; ++round) {
    REQUIRE(modex.next() == now + pause);
    CHECK(modex.due(now + pause - 1ms).look.empty());
    now += pause;
    CHECK(modex.due(now).look.size() == 1);
    CHECK(!modex.next());  // while the lookup is in progress
    CHECK(modex.on_looked(1, false, now).fetch.empty());
    pause = std::min(2 * pause, DirectModex::kLongestPause);
  }
  CHECK(pause == DirectModex::kLongestPause);
  now += pause;
  CHECK(modex.due(now).look.size() == 1);
  CHECK(modex.on_looked(1, true, now).fetch.size() == 1);
  REQUIRE(modex.on_fetched(1, 0, "with k").reply.size() == 1);
  CHECK(!modex.next());
}

TEST_CASE("a limit ends the wait, whatever is under way") {
  DirectModex modex;
  bring_to_pause(modex, 1);
  const auto late = modex.due(kStart + 1s);
  REQUIRE(late.reply.size() == 1);
  CHECK(late.reply[0].status == PMIX_ERR_TIMEOUT);
  CHECK(!modex.next());
  // The request waits in libpmix, because the rank has committed nothing.
  (void)modex.ask({2, 4, "k", 1}, kStart);
  (void)modex.on_looked(2, false, kStart);
  CHECK(modex.due(kStart + 999ms).reply.empty());
  CHECK(modex.due(kStart + 1s).reply.size() == 1);
  CHECK(modex.on_fetched(2, 0, "too late").reply.empty());
  CHECK(modex.on_looked(2, true, kStart).fetch.empty());
}

TEST_CASE("a rank that has finalized is not waited for") {
  DirectModex modex;
  bring_to_pause(modex);
  CHECK(modex.on_finalized(3, kStart).reply.empty());  // its last commit is checked first
  CHECK(modex.due(kStart).look.size() == 1);
  CHECK(modex.on_looked(1, false, kStart).fetch.size() == 1);
  CHECK(modex.on_fetched(1, 0, "all there is").reply.size() == 1);
  // The rank never committed anything: libpmix would hold the request forever.
  (void)modex.ask({2, 4, "k", 0}, kStart);
  (void)modex.on_looked(2, false, kStart);
  const auto ended = modex.on_finalized(4, kStart);
  REQUIRE(ended.reply.size() == 1);
  CHECK(ended.reply[0].status == PMIX_ERR_NOT_FOUND);
  (void)modex.ask({3, 4, "k", 0}, kStart);
  CHECK(modex.on_looked(3, false, kStart).reply.size() == 1);
  // A rank that initializes again is waited for again.
  modex.on_connected(4);
  (void)modex.ask({4, 4, "k", 0}, kStart);
  CHECK(modex.on_looked(4, false, kStart).reply.empty());
}

TEST_CASE("a request that is asked again over a new connection is answered once") {
  DirectModex modex;
  bring_to_pause(modex);
  const auto again = modex.ask({1, 3, "k", 0}, kStart);
  CHECK(again.look.size() + again.fetch.size() + again.reply.size() == 0);
  CHECK(modex.due(kStart + DirectModex::kFirstPause).look.size() == 1);
  CHECK(modex.on_looked(1, true, kStart).fetch.size() == 1);
  CHECK(modex.on_fetched(1, 0, "data").reply.size() == 1);
  CHECK(modex.on_fetched(1, 0, "data").reply.empty());
}

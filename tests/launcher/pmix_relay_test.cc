// Fences and direct modex between the hosts of an MPI job.
#include "launcher/mpi/pmix_relay.h"

#include <doctest/doctest.h>

#include "common/wire/codec.h"

namespace sortie::launcher {
namespace {

using Outgoing = std::vector<PmixRelay::Outgoing>;
using Hosts = std::vector<std::size_t>;

/// Four ranks on three hosts: rank 0 on host 0, ranks 1 and 2 on host 1, rank 3 on host 2.
PmixRelay make_relay() {
  return PmixRelay({0, 1, 1, 2});
}

const wire::PmixFenceDone& done(const Outgoing& out, std::size_t index) {
  return std::get<wire::PmixFenceDone>(out.at(index).message);
}

TEST_CASE("a fence is answered to all hosts when the last one has come, with all data") {
  PmixRelay relay = make_relay();
  CHECK(relay.on_fence(2, {"all-1", 3, "C"}).empty());
  CHECK(relay.on_fence(0, {"all-1", 3, std::string("A\0a", 3)}).empty());
  CHECK(relay.waiting() == std::vector<std::string>{"fence all-1: 2 of 3 hosts"});
  const Outgoing out = relay.on_fence(1, {"all-1", 3, ""});
  REQUIRE(out.size() == 1);  // one message for all, encoded once
  CHECK(out[0].hosts == Hosts{0, 1, 2});
  CHECK(done(out, 0).key == "all-1");
  CHECK(done(out, 0).status == 0);
  CHECK(done(out, 0).data == std::string("A\0aC", 4));  // in host order
  CHECK(relay.waiting().empty());
}

TEST_CASE("a fence of some hosts is answered to those only") {
  PmixRelay relay = make_relay();
  CHECK(relay.on_fence(0, {"part-1", 2, "x"}).empty());
  const Outgoing out = relay.on_fence(2, {"part-1", 2, "y"});
  REQUIRE(out.size() == 1);
  CHECK(out[0].hosts == Hosts{0, 2});
}

TEST_CASE("fences with other keys do not mix, and a key can be used again") {
  PmixRelay relay = make_relay();
  CHECK(relay.on_fence(0, {"a", 2, "1"}).empty());
  CHECK(relay.on_fence(1, {"b", 2, "2"}).empty());
  CHECK(relay.waiting().size() == 2);
  CHECK(done(relay.on_fence(1, {"a", 2, "3"}), 0).data == "13");
  CHECK(relay.on_fence(0, {"a", 2, "new"}).empty());  // the next round
  CHECK(done(relay.on_fence(1, {"a", 2, "round"}), 0).data == "newround");
}

TEST_CASE("a contribution that comes twice counts once") {
  PmixRelay relay = make_relay();
  CHECK(relay.on_fence(0, {"k", 2, "first"}).empty());
  CHECK(relay.on_fence(0, {"k", 2, "again"}).empty());
  CHECK(relay.waiting() == std::vector<std::string>{"fence k: 1 of 2 hosts"});
  CHECK(done(relay.on_fence(1, {"k", 2, "+"}), 0).data == "again+");
}

TEST_CASE("a fence that can not come true fails on every host that waits in it") {
  PmixRelay relay = make_relay();
  SUBCASE("hosts disagree on how many take part") {
    CHECK(relay.on_fence(0, {"k", 3, "x"}).empty());
    const Outgoing out = relay.on_fence(1, {"k", 2, "y"});
    REQUIRE(out.size() == 1);
    CHECK(out[0].hosts == Hosts{0, 1});
    CHECK(done(out, 0).status != 0);
    CHECK(done(out, 0).data.empty());
  }
  SUBCASE("more hosts than there are") {
    const Outgoing out = relay.on_fence(1, {"k", 4, "x"});
    REQUIRE(out.size() == 1);
    CHECK(out[0].hosts == Hosts{1});
    CHECK(done(out, 0).status != 0);
  }
  SUBCASE("no host at all") {
    const Outgoing out = relay.on_fence(1, {"k", 0, "x"});
    REQUIRE(out.size() == 1);
    CHECK(done(out, 0).status != 0);
  }
  CHECK(relay.waiting().empty());
}

TEST_CASE("data that fit no frame together are an error, not a crash of the launcher") {
  PmixRelay relay = make_relay();
  const std::string half(wire::kMaxPayloadBytes / 2, 'x');
  CHECK(relay.on_fence(0, {"big", 2, half}).empty());
  const Outgoing out = relay.on_fence(1, {"big", 2, half});
  REQUIRE(out.size() == 1);
  CHECK(out[0].hosts == Hosts{0, 1});
  CHECK(done(out, 0).status != 0);
  CHECK(wire::encode(out[0].message).size() < 1000);
  // Data just below the limit is delivered.
  const std::string less(wire::kMaxPayloadBytes / 2 - 1000, 'x');
  CHECK(relay.on_fence(0, {"fits", 2, less}).empty());
  const Outgoing fits = relay.on_fence(1, {"fits", 2, less});
  CHECK(done(fits, 0).status == 0);
  CHECK(done(fits, 0).data.size() == 2 * less.size());
  CHECK(wire::encode(fits[0].message).size() > 2 * less.size());
}

TEST_CASE("a modex request goes to the rank's host and the answer back under the asker's id") {
  PmixRelay relay = make_relay();
  const Outgoing first = relay.on_modex_request(0, {7, 2, {}, 0});
  const Outgoing second = relay.on_modex_request(2, {7, 2, {}, 0});  // ids are per host
  REQUIRE(first.size() == 1);
  REQUIRE(second.size() == 1);
  CHECK(first[0].hosts == Hosts{1});
  const auto& a = std::get<wire::PmixModexRequest>(first[0].message);
  const auto& b = std::get<wire::PmixModexRequest>(second[0].message);
  CHECK(a.rank == 2);
  CHECK(a.id != b.id);
  const Outgoing answer = relay.on_modex_reply(1, {b.id, 2, 0, "blob"});
  REQUIRE(answer.size() == 1);
  CHECK(answer[0].hosts == Hosts{2});
  const auto& reply = std::get<wire::PmixModexReply>(answer[0].message);
  CHECK(reply.id == 7);
  CHECK(reply.data == "blob");
  CHECK(relay.on_modex_reply(1, {b.id, 2, 0, "late"}).empty());  // already answered
  CHECK(relay.on_modex_reply(1, {12345, 2, 0, "?"}).empty());    // never requested
  CHECK(relay.on_modex_reply(2, {a.id, 2, 0, "?"}).empty());     // another host than the one asked
  CHECK(relay.on_modex_reply(1, {a.id, 2, 0, "mine"})[0].hosts == Hosts{0});
}

TEST_CASE("the key that is asked for and its limit go along, also when a host is asked again") {
  PmixRelay relay = make_relay();
  const Outgoing asked = relay.on_modex_request(0, {7, 2, "btl.tcp", 30});
  REQUIRE(asked.size() == 1);
  const auto& request = std::get<wire::PmixModexRequest>(asked[0].message);
  CHECK(request.key == "btl.tcp");
  CHECK(request.timeout_s == 30);
  const Outgoing again = relay.on_reconnected(1);
  REQUIRE(again.size() == 1);
  CHECK(std::get<wire::PmixModexRequest>(again[0].message).key == "btl.tcp");
  CHECK(std::get<wire::PmixModexRequest>(again[0].message).timeout_s == 30);
  // PMIx has no longer keys. Accepting them would let a host make this relay keep memory.
  const Outgoing refused = relay.on_modex_request(0, {8, 2, std::string(512, 'k')});
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].hosts == Hosts{0});
  CHECK(std::get<wire::PmixModexReply>(refused[0].message).status == -27);
}

TEST_CASE("a rank that does not exist is not found") {
  PmixRelay relay = make_relay();
  const Outgoing out = relay.on_modex_request(2, {9, 4, {}, 0});
  REQUIRE(out.size() == 1);
  CHECK(out[0].hosts == Hosts{2});
  const auto& reply = std::get<wire::PmixModexReply>(out[0].message);
  CHECK(reply.id == 9);
  CHECK(reply.status == -46);
}

TEST_CASE("a host with a new connection asks again, and is answered what the last one lost") {
  PmixRelay relay = make_relay();
  relay.keep_ended_fences();
  CHECK(relay.on_fence(0, {"all#1", 2, "a"}).empty());
  CHECK(relay.on_fence(1, {"all#1", 2, "b"}).size() == 1);
  const Outgoing again = relay.on_fence(1, {"all#1", 2, "b"});
  REQUIRE(again.size() == 1);
  CHECK(again[0].hosts == Hosts{1});
  CHECK(done(again, 0).data == "ab");
  CHECK(relay.waiting().empty());
  // Only the last kMaxEndedFences fences are remembered. An older one counts as new.
  for (std::size_t i = 0; i < PmixRelay::kMaxEndedFences; ++i) {
    const std::string key = "part#" + std::to_string(i);
    CHECK(relay.on_fence(0, {key, 1, ""}).size() == 1);
  }
  CHECK(relay.on_fence(0, {"all#1", 2, "a"}).empty());
}

TEST_CASE("what a host was asked while it was away is asked again") {
  PmixRelay relay = make_relay();
  const Outgoing asked = relay.on_modex_request(0, {5, 1, {}, 0});
  REQUIRE(asked.size() == 1);
  const auto id = std::get<wire::PmixModexRequest>(asked[0].message).id;
  CHECK(relay.on_reconnected(0).empty());
  const Outgoing again = relay.on_reconnected(1);
  REQUIRE(again.size() == 1);
  CHECK(again[0].hosts == Hosts{1});
  CHECK(std::get<wire::PmixModexRequest>(again[0].message).id == id);
  CHECK(std::get<wire::PmixModexRequest>(again[0].message).rank == 1);
  CHECK(relay.on_modex_reply(1, {id, 1, 0, "data"}).size() == 1);
  CHECK(relay.on_modex_reply(1, {id, 1, 0, "data"}).empty());  // a duplicate
  CHECK(relay.on_reconnected(1).empty());
}

}  // namespace
}  // namespace sortie::launcher

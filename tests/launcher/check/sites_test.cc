#include "launcher/check/sites.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "launcher/check/pairs.h"
#include "tests/launcher/check/reports.h"

using namespace sortie;
using namespace sortie::launcher::check;
using sortie::launcher::parse_site_link;
using sortie::launcher::SiteLink;

namespace {

constexpr const char* kGoodLink =
    R"({"part":"link","name":"%","error":"","rate_error":"","round_trip_us":24000,"mtu":1500,"own_mtu":1500,
        "mtu_reported":false,"out":{"bytes":12500000,"us":2000000,"segments":10000,"again":25},
        "back":{"bytes":25000000,"us":2000000,"segments":20000,"again":0}})";

std::string part_about(std::string part, const std::string& peer) {
  return part.replace(part.find('%'), 1, peer);
}

std::string failed_link(const std::string& peer, const std::string& error) {
  return nlohmann::json{{"part", "link"}, {"name", peer}, {"error", error}}.dump();
}

/// One host in each of two sites. Each is asked to reach the other: `there` is the answer of the
/// first, `back` that of the second.
std::vector<HostResult> two_sites(const std::string& there, const std::string& back) {
  std::vector<HostResult> hosts = {test::sound_host("o1"), test::sound_host("r1")};
  hosts[0].site = "oslo";
  hosts[1].site = "rome";
  for (HostResult& host : hosts) host.site_port = 51000;
  hosts[0].asked_links = {"r1"};
  hosts[1].asked_links = {"o1"};
  REQUIRE(add_part(hosts[0].report, there));
  REQUIRE(add_part(hosts[1].report, back));
  return hosts;
}

Finding sites_finding(const std::vector<HostResult>& hosts, const SiteExpectations& sites) {
  Expectations expect = test::sound_expectations();
  expect.sites = sites;
  const Finding first = test::finding_of(hosts, expect, "sites", 0);
  CHECK(first == test::finding_of(hosts, expect, "sites", 1));  // both hosts have the same line
  return first;
}

}  // namespace

TEST_CASE("sites: both ways of a pair come from the side that measured") {
  // The second host only checks whether it reaches the first.
  const auto reached = nlohmann::json{{"part", "link"},        {"name", "o1"}, {"error", ""},
                                      {"rate_error", ""},      {"mtu", 1500},  {"own_mtu", 1500},
                                      {"round_trip_us", 30000}};
  const auto hosts = two_sites(part_about(kGoodLink, "r1"), reached.dump());
  const auto links = site_links(hosts, 7.0);
  REQUIRE(links.size() == 2);
  CHECK(links[0].from == "oslo");
  CHECK(links[0].to_host == "r1");
  CHECK(links[0].works);
  CHECK(links[0].reached);
  CHECK(links[0].byte_s == 6.25e6);
  CHECK(links[0].loss == 0.0025);
  CHECK(links[0].round_trip == 0.024);
  CHECK(links[0].mtu == 1500);
  CHECK(links[0].port == 51000);
  CHECK(links[0].time == 7.0);
  CHECK(links[1].byte_s == 12.5e6);
  CHECK(links[1].reached);
  CHECK(sites_finding(hosts, {51000, 4}) ==
        Finding{"sites", Verdict::pass,
                "oslo (o1) and rome (r1): 50 Mbit/s there, 100 Mbit/s back, round trip 24 ms", ""});
  CHECK(site_links_text(links).contains(
      "oslo (o1) -> rome (r1): 50 Mbit/s, round trip 24 ms, 0.25 % sent again, MTU 1500\n"));
  CHECK(site_links_json(links)[0]["mbit_s"] == 50.0);
  for (const SiteLink& link : links)
    CHECK(parse_site_link(nlohmann::json(site_link_json(link))).has_value());
}

TEST_CASE("sites: one side that lets nobody in opens the connections itself") {
  const auto hosts =
      two_sites(failed_link("r1", "no answer within 2000 ms"), part_about(kGoodLink, "o1"));
  const auto links = site_links(hosts, 0.0);
  REQUIRE(links.size() == 2);
  CHECK(links[0].works);
  CHECK_FALSE(links[0].reached);
  CHECK(links[0].byte_s == 12.5e6);  // the rate back to rome
  CHECK(links[1].byte_s == 6.25e6);
  CHECK(
      sites_finding(hosts, {51000, 4}) ==
      Finding{"sites", Verdict::pass,
              "oslo (o1) and rome (r1): 100 Mbit/s there, 50 Mbit/s back, round trip 24 ms, opened "
              "by rome",
              ""});
}

TEST_CASE("sites: a pair that does not work is named, with the command to run") {
  const auto hosts = two_sites(failed_link("r1", "Connection refused"),
                               failed_link("o1", "no answer within 2000 ms"));
  CHECK(sites_finding(hosts, {51000, 4}) ==
        Finding{"sites", Verdict::fail,
                "oslo (o1) and rome (r1) do not reach each other: Connection refused, and back: no "
                "answer within 2000 ms",
                "open TCP port 51000 on one of the two: as root there, `ufw allow 51000/tcp`; "
                "then run `sortie check` again; or set outer.route = \"launcher\", and all that "
                "the sites send each other goes through this machine"});
  CHECK(sites_finding(hosts, {0, 4})
            .fix.starts_with("set outer.port to a port that one of the two accepts"));
  const auto links = site_links(hosts, 0.0);
  CHECK_FALSE(links[0].works);
  CHECK(links[0].error == "Connection refused");
  CHECK(site_links_text(links).contains("oslo (o1) -> rome (r1): Connection refused\n"));
}

TEST_CASE("sites: connections without bytes, and large packets that vanish, are failures") {
  auto stuck = nlohmann::json::parse(part_about(kGoodLink, "r1"));
  stuck["rate_error"] = "bytes did not arrive in time";
  const auto hosts = two_sites(stuck.dump(), failed_link("o1", "Connection refused"));
  const Finding none = sites_finding(hosts, {0, 4});
  CHECK(none.verdict == Verdict::fail);
  CHECK(none.reason ==
        "between oslo (o1) and rome (r1) a connection opens and no bytes come "
        "through: bytes did not arrive in time");
  auto vanishing = nlohmann::json::parse(part_about(kGoodLink, "r1"));
  vanishing["mtu"] = 1400;
  const Finding lost = sites_finding(two_sites(vanishing.dump(), failed_link("o1", "x")), {0, 4});
  CHECK(lost.verdict == Verdict::fail);
  CHECK(lost.reason == "between oslo (o1) and rome (r1) packets over 1400 bytes vanish");
}

TEST_CASE("sites: a port that is taken is said of its host") {
  auto hosts = two_sites(part_about(kGoodLink, "r1"), failed_link("o1", "x"));
  hosts[0].site_error = "Address already in use";
  Expectations expect = test::sound_expectations();
  expect.sites = {51000, 4};
  const Finding finding = test::finding_of(hosts, expect, "sites", 0);
  CHECK(finding.verdict == Verdict::fail);
  CHECK(finding.reason == "TCP port 51000 (outer.port): Address already in use");
  CHECK(finding.fix.starts_with("choose another outer.port"));
  CHECK(test::finding_of(hosts, expect, "sites", 1).verdict == Verdict::pass);
}

TEST_CASE("sites: hosts reach out within their site, and every two sites meet once") {
  const auto peers = choose_site_peers({"a", "b", "a", "b", "c"}, 1);
  CHECK(peers == std::vector<std::vector<std::size_t>>{{2}, {3}, {0}, {1}, {}});
  for (std::size_t count = 0; count <= 9; ++count) {
    std::set<std::pair<std::size_t, std::size_t>> met;
    for (const auto& round : pair_rounds(count)) {
      std::set<std::size_t> busy;
      for (const auto& [a, b] : round) {
        CHECK(a < b);
        CHECK(b < count);
        CHECK(busy.insert(a).second);
        CHECK(busy.insert(b).second);
        CHECK(met.insert({a, b}).second);
      }
    }
    CHECK(met.size() == count * (count - (count > 0)) / 2);
  }
}

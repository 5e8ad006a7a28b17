// The list of a job's hosts, folded for the wire and expanded again.
#include "common/wire/node_list.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

namespace sortie::wire {
namespace {

TEST_CASE("any list of hosts comes back as it was") {
  const NodeList lists[] = {
      {},
      {{"localhost", 4}},
      {{"h1", 2}, {"h2", 2}, {"h3", 2}},
      {{"h8", 1}, {"h9", 1}, {"h10", 1}, {"h11", 1}},  // the number of digits grows
      {{"h08", 1}, {"h09", 1}, {"h10", 1}},            // padded
      {{"h08", 1}, {"h9", 1}, {"h010", 1}},            // padded and unpadded
      {{"h99", 1}, {"h100", 1}},
      {{"h2", 1}, {"h1", 1}, {"h3", 1}},            // not ascending
      {{"h1", 1}, {"h2", 2}, {"h3", 2}, {"x", 3}},  // different numbers of ranks
      {{"r1-n1.site", 8}, {"r1-n2.site", 8}, {"r2-n1.site", 8}},
      {{"10.0.0.9", 1}, {"10.0.0.10", 1}},
      {{"[fe80::1]", 1}, {"[fe80::2]", 1}},
      {{"n18446744073709551615", 1}, {"n18446744073709551616", 1}},
      {{"n999999999999999999", 1}, {"n1000000000000000000", 1}},
      {{"7", 1}, {"8", 1}},
  };
  for (const NodeList& list : lists) {
    const auto runs = fold_nodes(list);
    const auto back = expand_nodes(runs);
    REQUIRE(back);
    CHECK(*back == list);
  }
}

TEST_CASE("names that count up are one entry") {
  NodeList list;
  for (int i = 0; i < 1000; ++i) list.emplace_back(fmt::format("gpu{:04d}.site", i), 8);
  CHECK(fold_nodes(list).size() == 1);
  list[500].second = 4;
  CHECK(fold_nodes(list).size() == 3);
}

TEST_CASE("a list that no job has is refused") {
  const auto refused = [](std::vector<NodeRun> runs) {
    const auto nodes = expand_nodes(runs);
    REQUIRE(!nodes);
    CHECK(nodes.error().code == ErrorCode::protocol);
    return nodes.error().message;
  };
  CHECK(refused({{"h", 0, 1, "", 0, 1}}) == "list of hosts: an entry counts no host or no rank");
  CHECK(refused({{"h", 0, 1, "", 1, 0}}) == "list of hosts: an entry counts no host or no rank");
  CHECK(refused({{"h", 0, 0, "", 2, 1}}) == "list of hosts: several hosts of one name");
  CHECK(refused({{"h", 0, 19, "", 2, 1}}) == "list of hosts: a name is too long");
  CHECK(refused({{std::string(256, 'h'), 0, 0, "", 1, 1}}) == "list of hosts: a name is too long");
  CHECK(refused({{"", 0, 0, "", 1, 1}}) == "list of hosts: a name is empty or too long");
  CHECK(refused({{"h", 0, 1, "", 4000000000u, 1}}) ==
        "list of hosts: more than 65536 hosts or 1048576 ranks");
  CHECK(refused({{"h", 0, 1, "", 2, 4000000000u}}) ==
        "list of hosts: more than 65536 hosts or 1048576 ranks");
}

}  // namespace
}  // namespace sortie::wire

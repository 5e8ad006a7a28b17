// CPU shares of ranks: disjoint, contiguous, within NUMA nodes, near GPUs.
#include "common/cpu/binding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace sortie::cpu {
namespace {

using Strings = std::vector<std::string>;

/// A machine with the given number of single-thread cores per NUMA node, numbered consecutively,
/// and GPUs on the given nodes.
Topology machine(const std::vector<std::uint32_t>& cores_per_node,
                 const std::vector<int>& gpu_nodes = {}) {
  Topology topology;
  std::uint32_t next = 0;
  for (std::uint32_t node = 0; node < cores_per_node.size(); ++node)
    for (std::uint32_t i = 0; i < cores_per_node[node]; ++i)
      topology.cores.push_back({node, {next++}});
  for (const int node : gpu_nodes) topology.gpus.push_back({Gpu::Vendor::nvidia, "", node});
  return topology;
}

Binding bind(const Topology& topology, Policy policy, std::uint32_t ranks) {
  std::vector<std::uint32_t> slots(ranks);
  std::iota(slots.begin(), slots.end(), 0u);
  return bind_ranks(topology, policy, slots);
}

Strings sets(const Binding& binding) {
  Strings out;
  for (const Share& share : binding.ranks) out.push_back(cpu_list_text(share.cpus));
  return out;
}

TEST_CASE("shares of one node") {
  CHECK(sets(bind(machine({8}), Policy::core, 2)) == Strings{"0-3", "4-7"});
  CHECK(sets(bind(machine({8}), Policy::core, 3)) == Strings{"0-1", "2-4", "5-7"});
  CHECK(sets(bind(machine({2}), Policy::automatic, 2)) == Strings{"0", "1"});
  CHECK(bind(machine({8}), Policy::core, 2).note == "core: 2 ranks on 8 cores, 1 NUMA node");
  CHECK(bind(machine({8}), Policy::core, 2).ranks[1].threads == 4);
}

TEST_CASE("nobody is bound where that would hurt or was not asked for") {
  CHECK(bind(machine({2}), Policy::core, 3).ranks.empty());
  CHECK(bind(machine({2}), Policy::core, 3).note == "none: 3 ranks on 2 cores");
  CHECK(bind(machine({1}), Policy::numa, 2).note == "none: 2 ranks on 1 core");
  CHECK(bind(machine({8}), Policy::none, 2).note == "none: off");
  CHECK(bind(machine({8}), Policy::automatic, 1).note == "none: one rank has the whole host");
  CHECK(sets(bind(machine({8}), Policy::core, 1)) == Strings{"0-7"});
}

TEST_CASE("ranks stay within a node where that is fair") {
  CHECK(sets(bind(machine({4, 4}), Policy::core, 4)) == Strings{"0-1", "2-3", "4-5", "6-7"});
  CHECK(sets(bind(machine({4, 4}), Policy::core, 2)) == Strings{"0-3", "4-7"});
  CHECK(sets(bind(machine({4, 4}), Policy::core, 1)) == Strings{"0-7"});
  CHECK(sets(bind(machine({2, 2, 2, 2}), Policy::core, 2)) == Strings{"0-3", "4-7"});
  // Shares follow the sizes of the nodes: a cpuset may leave only a few cores of a node.
  CHECK(sets(bind(machine({6, 2}), Policy::core, 4)) == Strings{"0-1", "2-3", "4-5", "6-7"});
}

TEST_CASE("a rank is not starved for the sake of a border between nodes") {
  // Two ranks on one node and one on the other would have 4, 4 and 8 cores: the job would run at
  // the speed of the ranks with 4.
  const Binding binding = bind(machine({8, 8}), Policy::core, 3);
  CHECK(sets(binding) == Strings{"0-4", "5-9", "10-15"});
  CHECK(binding.note == "core: 3 ranks on 16 cores, 2 NUMA nodes, some across nodes");
}

TEST_CASE("whole nodes") {
  CHECK(sets(bind(machine({4, 4}), Policy::numa, 2)) == Strings{"0-3", "4-7"});
  const Binding binding = bind(machine({4, 4}), Policy::numa, 4);
  CHECK(sets(binding) == Strings{"0-3", "0-3", "4-7", "4-7"});
  CHECK(binding.ranks[0].threads == 2);
  CHECK(sets(bind(machine({2, 2, 2, 2}), Policy::numa, 2)) == Strings{"0-3", "4-7"});
  CHECK(binding.note == "numa: 4 ranks on 8 cores, 2 NUMA nodes");
}

TEST_CASE("near the GPU of the slot") {
  const Topology topology = machine({8, 8}, {1, 1, 0, 0});
  const Binding binding = bind(topology, Policy::automatic, 4);
  CHECK(sets(binding) == Strings{"8-11", "12-15", "0-3", "4-7"});
  CHECK(binding.note == "core: 4 ranks on 16 cores, 2 NUMA nodes, each near its GPU");
  const std::uint32_t slots[] = {2, 0};
  CHECK(sets(bind_ranks(topology, Policy::numa, slots)) == Strings{"0-7", "8-15"});
  SUBCASE("a slot without a GPU: as if there were none") {
    const std::uint32_t more[] = {0, 4};
    CHECK(sets(bind_ranks(topology, Policy::core, more)) == Strings{"0-7", "8-15"});
  }
  SUBCASE("a GPU that does not say where it is: as if there were none") {
    CHECK(sets(bind(machine({8, 8}, {-1, -1}), Policy::core, 2)) == Strings{"0-7", "8-15"});
  }
  SUBCASE("more ranks near a node than it has cores: as if there were no GPUs") {
    CHECK(sets(bind(machine({1, 3}, {0, 0}), Policy::core, 2)) == Strings{"0-1", "2-3"});
  }
}

TEST_CASE("on every small machine shares are disjoint, not empty, and close to fair") {
  for (std::uint32_t a = 1; a <= 9; ++a)
    for (std::uint32_t b = 0; b <= 9; ++b)
      for (std::uint32_t ranks = 2; ranks <= a + b; ++ranks) {
        CAPTURE(a);
        CAPTURE(b);
        CAPTURE(ranks);
        const Topology topology = b == 0 ? machine({a}) : machine({a, b});
        const Binding binding = bind(topology, Policy::core, ranks);
        REQUIRE(binding.ranks.size() == ranks);
        std::set<std::uint32_t> seen;
        for (const Share& share : binding.ranks) {
          REQUIRE_FALSE(share.cpus.empty());
          CHECK(share.cpus.size() * 10 >= (a + b) / ranks * 9);
          CHECK(share.cpus.back() - share.cpus.front() + 1 == share.cpus.size());
          for (const std::uint32_t cpu : share.cpus) CHECK(seen.insert(cpu).second);
        }
        for (const Share& share : bind(topology, Policy::numa, ranks).ranks)
          CHECK_FALSE(share.cpus.empty());
      }
}

}  // namespace
}  // namespace sortie::cpu

#include "common/cpu/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace sortie::cpu {
namespace {

/// A part of Topology::cores: [first, last).
struct Range {
  std::size_t first = 0, last = 0;
  std::size_t size() const { return last - first; }
};

/// Part `index` when `whole` is divided into `count` nearly equal parts.
Range part(Range whole, std::size_t index, std::size_t count) {
  return {whole.first + whole.size() * index / count,
          whole.first + whole.size() * (index + 1) / count};
}

/// The cores of each NUMA node, in order.
std::vector<Range> node_ranges(const Topology& topology) {
  std::vector<Range> nodes;
  const std::vector<Core>& cores = topology.cores;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (i == 0 || cores[i].node != cores[i - 1].node) nodes.push_back({i, i});
    nodes.back().last = i + 1;
  }
  return nodes;
}

/// A range of whole nodes, and the number of ranks on it.
struct Group {
  Range cores;
  std::size_t ranks = 0;
};

/// Distributes ranks over nodes, both in order, in proportion to the sizes of the nodes. Forms at
/// most as many groups as there are ranks or nodes, whichever are fewer.
std::vector<Group> spread_over_nodes(const std::vector<Range>& nodes, std::size_t ranks) {
  std::vector<Group> groups;
  const std::size_t total = nodes.back().last;
  if (ranks <= nodes.size()) {
    for (std::size_t i = 0; i < ranks; ++i)
      groups.push_back(
          {{nodes[nodes.size() * i / ranks].first, nodes[nodes.size() * (i + 1) / ranks - 1].last},
           1});
    return groups;
  }
  std::size_t given = 0;
  for (const Range& node : nodes) {
    // Round at the node's end, so that errors do not accumulate.
    const std::size_t until = (ranks * node.last * 2 + total) / (total * 2);
    groups.push_back({node, until - given});
    given = until;
  }
  std::erase_if(groups, [](const Group& group) { return group.ranks == 0; });
  return groups;
}

/// For each slot the cores of its GPU's node; nullopt if any of these nodes is unknown.
std::optional<std::vector<Range>> ranges_near_gpus(const Topology& topology,
                                                   const std::vector<Range>& nodes,
                                                   std::span<const std::uint32_t> slots) {
  std::vector<Range> near;
  for (const std::uint32_t slot : slots) {
    if (slot >= topology.gpus.size()) return std::nullopt;
    const auto found = std::ranges::find_if(nodes, [&](const Range& node) {
      return static_cast<int>(topology.cores[node.first].node) == topology.gpus[slot].node;
    });
    if (found == nodes.end()) return std::nullopt;
    near.push_back(*found);
  }
  return near;
}

struct Placement {
  std::vector<Range> ranges;         // per rank
  std::vector<std::size_t> sharing;  // number of ranks that share that range
  const char* how = "";
};

/// Divides each node among the ranks whose GPUs are near it; nullopt if a node has fewer cores than
/// such ranks.
std::optional<Placement> place_near(const std::vector<Range>& near, bool whole_nodes) {
  std::map<std::size_t, std::vector<std::size_t>> ranks_by_node;
  for (std::size_t i = 0; i < near.size(); ++i) ranks_by_node[near[i].first].push_back(i);
  Placement placement;
  placement.ranges.resize(near.size());
  placement.sharing.resize(near.size(), 1);
  placement.how = ", each near its GPU";
  for (const auto& [first, ranks] : ranks_by_node) {
    const Range node = near[ranks.front()];
    if (node.size() < ranks.size()) return std::nullopt;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      placement.ranges[ranks[i]] = whole_nodes ? node : part(node, i, ranks.size());
      if (whole_nodes) placement.sharing[ranks[i]] = ranks.size();
    }
  }
  return placement;
}

Placement place_in_order(const std::vector<Range>& nodes, std::size_t ranks, bool whole_nodes) {
  const Range all{0, nodes.back().last};
  Placement placement;
  std::size_t smallest = all.size();
  for (const Group& group : spread_over_nodes(nodes, ranks))
    for (std::size_t i = 0; i < group.ranks; ++i) {
      const Range share = part(group.cores, i, group.ranks);
      smallest = std::min(smallest, share.size());
      placement.ranges.push_back(whole_nodes ? group.cores : share);
      placement.sharing.push_back(whole_nodes ? group.ranks : 1);
    }
  // A job is as fast as its slowest rank: if one would get less than 9/10 of its fair share, divide
  // the cores evenly, across nodes.
  if (whole_nodes || smallest * 10 >= all.size() / ranks * 9) return placement;
  for (std::size_t i = 0; i < ranks; ++i) placement.ranges[i] = part(all, i, ranks);
  placement.how = ", some across nodes";
  return placement;
}

const char* plural(std::size_t count) {
  return count == 1 ? "" : "s";
}

}  // namespace

Binding bind_ranks(const Topology& topology, Policy policy, std::span<const std::uint32_t> slots) {
  const std::size_t cores = topology.cores.size();
  Binding binding;
  if (policy == Policy::none) {
    binding.note = "none: off";
  } else if (slots.size() > cores) {
    binding.note = fmt::format("none: {} ranks on {} core{}", slots.size(), cores, plural(cores));
  } else if (slots.empty() || (policy == Policy::automatic && slots.size() == 1)) {
    binding.note = "none: one rank has the whole host";
  }
  if (!binding.note.empty()) return binding;

  const bool whole_nodes = policy == Policy::numa;
  const std::vector<Range> nodes = node_ranges(topology);
  std::optional<Placement> placement;
  if (const auto near = ranges_near_gpus(topology, nodes, slots))
    placement = place_near(*near, whole_nodes);
  if (!placement) placement = place_in_order(nodes, slots.size(), whole_nodes);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Share share;
    for (std::size_t core = placement->ranges[i].first; core < placement->ranges[i].last; ++core)
      share.cpus.insert(share.cpus.end(), topology.cores[core].cpus.begin(),
                        topology.cores[core].cpus.end());
    std::ranges::sort(share.cpus);
    share.threads = static_cast<std::uint32_t>(
        std::max<std::size_t>(1, share.cpus.size() / placement->sharing[i]));
    binding.ranks.push_back(std::move(share));
  }
  binding.note =
      fmt::format("{}: {} rank{} on {} core{}, {} NUMA node{}{}", whole_nodes ? "numa" : "core",
                  slots.size(), plural(slots.size()), cores, plural(cores), nodes.size(),
                  plural(nodes.size()), placement->how);
  return binding;
}

}  // namespace sortie::cpu

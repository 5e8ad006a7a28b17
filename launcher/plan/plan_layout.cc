#include "launcher/plan/plan_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/config/hostlist.h"

namespace sortie::launcher {
namespace {

using config::Axis;
using config::Mesh;

/// Host name of each rank.
std::vector<std::string> names_of_hosts(const LaunchPlan& plan) {
  std::vector<std::string> hosts;
  for (const HostPlan& host : plan.hosts) hosts.insert(hosts.end(), host.ranks.size(), host.name);
  return hosts;
}

/// "4-7 on h[02-03]": one stage of one replica.
std::string place_text(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    const std::string& host = hosts[static_cast<std::size_t>(rank)];
    if (names.empty() || names.back() != host) names.push_back(host);
  }
  const std::string numbers = ranks.size() == 1 ? fmt::format("{}", ranks.front())
                                                : fmt::format("{}-{}", ranks.front(), ranks.back());
  return fmt::format("{} on {}", numbers, config::fold_host_names(names));
}

/// Number of groups along some axes, and of those that span hosts.
struct GroupCount {
  std::string name;
  int size = 1, all = 0, across = 0;
};
GroupCount count_groups(const Mesh& mesh, const std::vector<std::string>& hosts, std::string name,
                        std::initializer_list<Axis> axes) {
  GroupCount count{.name = std::move(name)};
  for (const Axis axis : axes) count.size *= mesh.size(axis);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    // Count each group once, at its first rank.
    if (std::ranges::any_of(axes, [&](Axis axis) { return mesh.coordinate(rank, axis) != 0; }))
      continue;
    const std::vector<int> group = mesh.group_of(rank, axes);
    ++count.all;
    const std::string& first = hosts[static_cast<std::size_t>(rank)];
    count.across += std::ranges::any_of(
        group, [&](int one) { return hosts[static_cast<std::size_t>(one)] != first; });
  }
  return count;
}

std::vector<GroupCount> all_groups(const LaunchPlan& plan) {
  const std::vector<std::string> hosts = names_of_hosts(plan);
  std::vector<GroupCount> groups = {
      count_groups(*plan.mesh, hosts, "tensor", {Axis::tensor}),
      count_groups(*plan.mesh, hosts, "context", {Axis::context}),
      count_groups(*plan.mesh, hosts, "pipeline", {Axis::pipeline}),
      count_groups(*plan.mesh, hosts, "replicas", {Axis::context, Axis::data}),
      count_groups(*plan.mesh, hosts, "experts", {Axis::expert})};
  const Mesh& mesh = *plan.mesh;
  if (mesh.size(Axis::expert) > 1 || mesh.size(Axis::expert_tensor) != mesh.size(Axis::tensor)) {
    groups.push_back(count_groups(mesh, hosts, "an expert's ranks", {Axis::expert_tensor}));
    groups.push_back(count_groups(mesh, hosts, "experts' replicas", {Axis::expert_data}));
  }
  std::erase_if(groups, [](const GroupCount& group) { return group.size == 1; });
  return groups;
}

std::string across_text(const GroupCount& group) {
  if (group.across == 0) return fmt::format("{} within a host", group.name);
  if (group.across == group.all) return fmt::format("{} across hosts", group.name);
  return fmt::format("{} across hosts in {} of {} groups", group.name, group.across, group.all);
}

/// The separate grid of expert parallelism: "; experts: 1 tensor x 4 ranks x 2 replicas".
std::string experts_text(const Mesh& mesh) {
  const int experts = mesh.size(Axis::expert), tensor = mesh.size(Axis::expert_tensor);
  if (experts == 1 && tensor == mesh.size(Axis::tensor)) return {};
  const int replicas = mesh.size(Axis::expert_data);
  return fmt::format("; experts: {} tensor x {} x {} replica{}", tensor, experts, replicas,
                     replicas == 1 ? "" : "s");
}

}  // namespace

std::string layout_text(const LaunchPlan& plan) {
  constexpr int kMostReplicas = 4;  // number shown
  const Mesh& mesh = *plan.mesh;
  const std::vector<std::string> hosts = names_of_hosts(plan);
  const int replicas = mesh.size(Axis::data), shown = std::min(replicas, kMostReplicas);
  std::vector<std::vector<std::string>> rows;  // one row per stage, one column per replica
  std::vector<std::size_t> widths(static_cast<std::size_t>(shown));
  for (int stage = 0; stage < mesh.size(Axis::pipeline); ++stage) {
    std::vector<std::string>& row = rows.emplace_back();
    const int first = mesh.neighbour(0, Axis::pipeline, stage);
    for (int replica = 0; replica < shown; ++replica) {
      row.push_back(place_text(
          mesh.group_of(mesh.neighbour(first, Axis::data, replica), {Axis::tensor, Axis::context}),
          hosts));
      auto& width = widths[static_cast<std::size_t>(replica)];
      width = std::max(width, row.back().size());
    }
  }
  const int context = mesh.size(Axis::context);
  std::string out = fmt::format(
      "  layout    {} tensor{} x {} pipeline x {} replica{}{}\n", mesh.size(Axis::tensor),
      context == 1 ? "" : fmt::format(" x {} context", context), mesh.size(Axis::pipeline),
      replicas, replicas == 1 ? "" : "s", experts_text(mesh));
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    std::string line = rows.size() == 1 ? "ranks  " : fmt::format("stage {:<3}", stage);
    for (std::size_t i = 0; i < rows[stage].size(); ++i)
      line += fmt::format("  {:<{}}", rows[stage][i], widths[i]);
    if (shown < replicas) line += fmt::format("  and {} more", replicas - shown);
    out += fmt::format("            {}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
  std::vector<std::string> groups;
  for (const GroupCount& group : all_groups(plan)) groups.push_back(across_text(group));
  return out + fmt::format("            groups: {}\n", fmt::join(groups, ", "));
}

nlohmann::ordered_json layout_json(const LaunchPlan& plan) {
  const Mesh& mesh = *plan.mesh;
  nlohmann::ordered_json out = {{"tensor_parallel_size", mesh.size(Axis::tensor)},
                                {"context_parallel_size", mesh.size(Axis::context)},
                                {"pipeline_parallel_size", mesh.size(Axis::pipeline)},
                                {"data_parallel_size", mesh.size(Axis::data)},
                                {"expert_parallel_size", mesh.size(Axis::expert)},
                                {"expert_tensor_parallel_size", mesh.size(Axis::expert_tensor)}};
  for (const GroupCount& group : all_groups(plan))
    out["groups"].push_back({{"name", group.name},
                             {"size", group.size},
                             {"groups", group.all},
                             {"across_hosts", group.across}});
  return out;
}

std::vector<std::string> layout_warnings(const LaunchPlan& plan) {
  const std::vector<std::string> hosts = names_of_hosts(plan);
  const GroupCount tensor = count_groups(*plan.mesh, hosts, "tensor", {Axis::tensor});
  if (tensor.across == 0) return {};
  return {fmt::format(
      "topology.tensor_parallel_size: {} of {} groups of {} ranks are on several hosts, and every "
      "layer waits for what they exchange; use a size that divides the slots of each host",
      tensor.across, tensor.all, tensor.size)};
}

}  // namespace sortie::launcher

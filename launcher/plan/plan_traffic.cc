#include "launcher/plan/plan_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace sortie::launcher {
namespace {

using config::Axis;
using config::Mesh;
using Sent = training::ModelCost::Sent;

/// The groups with a given name, defined as in the trainer (parallel/mesh.h).
class Groups {
 public:
  Groups(const Mesh& mesh, const std::string& name) : mesh_(mesh) {
    if (name == "world")
      axes_ = {Axis::tensor, Axis::context, Axis::data, Axis::pipeline};
    else if (name == "replicas")
      axes_ = {Axis::context, Axis::data};
    else if (name == "model")
      axes_ = {Axis::tensor, Axis::pipeline};
    for (std::size_t i = 0; i < config::kAxes; ++i)
      if (name == config::axis_name(static_cast<Axis>(i))) axes_ = {static_cast<Axis>(i)};
  }
  /// False if the name is unknown.
  bool known() const { return !axes_.empty(); }
  bool is_first(int rank) const {
    return std::ranges::all_of(axes_, [&](Axis axis) { return mesh_.coordinate(rank, axis) == 0; });
  }
  std::vector<int> of(int rank) const {
    std::vector<int> ranks = {rank};
    for (const Axis axis : axes_) {
      std::vector<int> more;
      for (const int one : ranks)
        for (const int next : mesh_.group_of(one, {axis})) more.push_back(next);
      ranks = std::move(more);
    }
    std::ranges::sort(ranks);
    return ranks;
  }

 private:
  const Mesh& mesh_;
  std::vector<Axis> axes_;
};

class Traffic {
 public:
  explicit Traffic(const LaunchPlan& plan) : plan_(plan), out_(plan.hosts.size()) {
    for (std::size_t host = 0; host < plan.hosts.size(); ++host)
      host_of_.insert(host_of_.end(), plan.hosts[host].ranks.size(), host);
  }

  /// Counts a whole group by its first rank: ranks of one stage send the same amount.
  void add_group(const std::vector<int>& group, const Sent& sent) {
    if (group.size() < 2) return;
    std::vector<std::pair<std::size_t, int>> members;  // host and its number of ranks
    for (const int rank : group) {
      const std::size_t host = host_of_[static_cast<std::size_t>(rank)];
      if (members.empty() || members.back().first != host) members.emplace_back(host, 0);
      ++members.back().second;
    }
    const auto others = static_cast<double>(group.size() - 1);
    for (const auto& [host, count] : members) {
      const double all = static_cast<double>(sent.bytes) * count;
      add(host, all * (count - 1) / others, all * (others - count + 1) / others);
    }
  }
  void add_peer(int rank, int peer, const Sent& sent) {
    const std::size_t from = host_of_[static_cast<std::size_t>(rank)];
    const bool leaves = from != host_of_[static_cast<std::size_t>(peer)];
    const auto bytes = static_cast<double>(sent.bytes);
    add(from, leaves ? 0.0 : bytes, leaves ? bytes : 0.0);
  }

  StepTraffic sum(std::string precision) const {
    StepTraffic traffic{.precision = std::move(precision), .within_hosts = within_};
    for (std::size_t host = 0; host < out_.size(); ++host) {
      traffic.between_hosts += out_[host];
      if (out_[host] <= traffic.busiest_bytes) continue;
      traffic.busiest_bytes = out_[host];
      traffic.busiest_host = plan_.hosts[host].name;
    }
    return traffic;
  }

 private:
  void add(std::size_t host, double within, double leaving) {
    within_ += within;
    out_[host] += leaving;
  }
  const LaunchPlan& plan_;
  std::vector<std::size_t> host_of_;  // by rank
  std::vector<double> out_;           // bytes sent to other hosts, by host
  double within_ = 0.0;
};

std::optional<Mesh> mesh_of(const LaunchPlan& plan) {
  if (plan.mesh) return plan.mesh;
  auto replicas = Mesh::make(static_cast<int>(plan.world_size), {});
  return replicas ? std::optional(*replicas) : std::nullopt;
}

std::string row(const std::string& title, const std::vector<std::string>& cells) {
  std::string out = fmt::format("    {:<16}", title);
  for (const std::string& cell : cells) out += fmt::format("  {:>10}", cell);
  return out + '\n';
}

std::string mebibytes(double bytes) {
  constexpr double kMebibyte = 1 << 20;
  return training::with_commas(std::llround(bytes / kMebibyte));
}

std::string bubble_text(const LaunchPlan& plan) {
  return fmt::format("  bubble    {:.1f} % of a step: {} stages wait for {} micro-batches\n",
                     100.0 * plan.model->cost.bubble, plan.mesh->size(Axis::pipeline),
                     plan.batch->gradient_accumulation_steps);
}

}  // namespace

std::vector<StepTraffic> step_traffic(const LaunchPlan& plan,
                                      const std::function<bool(const std::string& group)>& counts) {
  std::vector<StepTraffic> all;
  const std::optional<Mesh> mesh = mesh_of(plan);
  if (!mesh || !plan.model) return all;
  const auto& stages = plan.model->cost.stages;
  if (static_cast<int>(stages.size()) != mesh->size(Axis::pipeline)) return all;
  for (std::size_t use = 0; use < stages.front().size(); ++use) {
    Traffic traffic(plan);
    for (int rank = 0; rank < mesh->world_size(); ++rank) {
      const auto& uses = stages[static_cast<std::size_t>(mesh->coordinate(rank, Axis::pipeline))];
      if (use >= uses.size()) continue;
      for (const Sent& sent : uses[use].sent) {
        if (counts && !counts(sent.group)) continue;
        const Groups groups(*mesh, sent.group);
        if (!groups.known() || (sent.peer < 0 && !groups.is_first(rank))) continue;
        const std::vector<int> group = groups.of(rank);
        if (sent.peer < 0)
          traffic.add_group(group, sent);
        else if (sent.peer < static_cast<std::int64_t>(group.size()))
          traffic.add_peer(rank, group[static_cast<std::size_t>(sent.peer)], sent);
      }
    }
    all.push_back(traffic.sum(stages.front()[use].precision));
  }
  return all;
}

std::string traffic_text(const LaunchPlan& plan) {
  const std::vector<StepTraffic> all = step_traffic(plan);
  if (all.empty() || plan.world_size == 1) return "";
  std::vector<std::string> titles, within, between, busiest;
  for (const StepTraffic& traffic : all) {
    titles.push_back(traffic.precision);
    within.push_back(mebibytes(traffic.within_hosts));
    between.push_back(mebibytes(traffic.between_hosts));
    busiest.push_back(mebibytes(traffic.busiest_bytes));
  }
  std::string out = "  sends     of all ranks in a step, in MiB\n" + row("", titles) +
                    row("within hosts", within) + row("between hosts", between);
  if (!all.front().busiest_host.empty()) out += row("busiest host", busiest);
  if (!plan.mesh || plan.mesh->size(Axis::pipeline) == 1) return out;
  out += bubble_text(plan) + "  stages    memory of a rank, in MiB\n" + row("", titles);
  const auto& stages = plan.model->cost.stages;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<std::string> cells;
    for (const auto& use : stages[stage])
      cells.push_back(mebibytes(static_cast<double>(use.memory_bytes)));
    out += row(fmt::format("stage {}", stage), cells);
  }
  return out;
}

nlohmann::ordered_json traffic_json(const LaunchPlan& plan) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const StepTraffic& traffic : step_traffic(plan)) {
    nlohmann::ordered_json& entry = out["sent_bytes"][traffic.precision];
    entry = {{"within_hosts", std::llround(traffic.within_hosts)},
             {"between_hosts", std::llround(traffic.between_hosts)}};
    if (traffic.busiest_host.empty()) continue;
    entry["busiest_host"] = traffic.busiest_host;
    entry["busiest_host_bytes"] = std::llround(traffic.busiest_bytes);
  }
  if (out.empty()) return out;
  out["bubble"] = plan.model->cost.bubble;
  for (const auto& uses : plan.model->cost.stages) {
    nlohmann::ordered_json& stage =
        out["stage_memory_bytes"].emplace_back(nlohmann::ordered_json::object());
    for (const auto& use : uses) stage[use.precision] = use.memory_bytes;
  }
  return out;
}

}  // namespace sortie::launcher

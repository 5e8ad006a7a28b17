#include "launcher/plan/plan_container.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "common/config/container_forms.h"
#include "common/container/engine_command.h"
#include "launcher/plan/secrets.h"

namespace sortie::launcher {
namespace {

std::uint64_t size_of(const std::string& text) {
  if (text.empty()) return 0;
  const auto bytes = config::parse_size(text);
  SORTIE_CHECK(bytes.has_value(), "an unchecked size: {}", text);
  return *bytes;
}

std::vector<std::string> entrypoint_of(const config::ContainerConfig& container) {
  if (container.entrypoint.empty()) return {""};
  if (container.entrypoint.front() == config::kImageEntrypoint) return {};
  return container.entrypoint;
}

// Stand-ins for numbers that only the host knows; name_unknowns() replaces them.
constexpr std::uint32_t kUid = 4294967201, kGid = 4294967202;

void replace_all(std::string& text, const std::string& what, std::string_view by) {
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

/// Replaces the stand-ins in the finished command by placeholders.
void name_unknowns(container::Argv& argv, const wire::ContainerSpec& spec) {
  for (std::size_t i = 0; i < argv.size(); ++i) {
    replace_all(argv[i], fmt::format("{}", kUid), "<uid>");
    replace_all(argv[i], fmt::format("{}", kGid), "<gid>");
    if (spec.gpus == "auto" && i > 0 && argv[i - 1] == "--gpus")
      argv[i] = fmt::format("<{}, where the host has GPUs>", argv[i]);
  }
}

}  // namespace

Result<> check_network(const config::RunnerConfig& runner, std::size_t hosts) {
  if (runner.container.network != "none" || hosts < 2) return {};
  if (!runner.program.empty() && runner.mpi == "off") return {};
  return fail(
      ErrorCode::config,
      fmt::format("runner.container.network: \"none\" keeps the ranks of {} hosts from each "
                  "other; use \"host\"{}",
                  hosts,
                  runner.program.empty()
                      ? ""
                      : ", or set runner.mpi = \"off\" for ranks that need no others"));
}

wire::ContainerSpec container_spec(const config::RunnerConfig& runner) {
  const config::ContainerConfig& from = runner.container;
  wire::ContainerSpec spec;
  spec.engine = from.engine;
  spec.image = from.image;
  spec.scope = from.scope == "rank" ? wire::ContainerScope::rank : wire::ContainerScope::host;
  for (const std::vector<std::string>& mount : from.mounts)
    spec.mounts.push_back({mount[0], mount[1], mount.size() > 2 ? mount[2] : "rw"});
  spec.shm_bytes = size_of(from.shm_size);
  spec.ipc = from.ipc;
  spec.network = from.network;
  spec.gpus = from.gpus;
  spec.devices = from.devices;
  spec.ulimits.assign(from.ulimits.begin(), from.ulimits.end());
  spec.ulimits_are_wishes = from.ulimits == config::ContainerConfig{}.ulimits ? 1 : 0;
  for (const std::string& name : from.capabilities)
    spec.capabilities.emplace_back(config::capability_name(name));
  spec.privileged = from.privileged ? 1 : 0;
  spec.user = from.user;
  spec.workdir = from.workdir.empty() ? runner.work_dir : from.workdir;
  spec.entrypoint = entrypoint_of(from);
  spec.labels.assign(from.labels.begin(), from.labels.end());
  spec.extra_args = from.extra_args;
  spec.rank_cpus_milli = static_cast<std::uint32_t>(std::ceil(from.cpus * 1000));
  spec.rank_memory_bytes = size_of(from.memory);
  return spec;
}

Result<std::vector<container::Argv>> container_commands(const LaunchPlan& plan,
                                                        const HostPlan& host) {
  SORTIE_CHECK(plan.container.has_value(), "a plan without containers");
  wire::ContainerSpec spec = *plan.container;
  const std::vector<container::Engine> clients = container::clients_of(spec.engine);
  if (clients.empty())
    return fail(ErrorCode::config, fmt::format("no container engine is called {}", spec.engine));
  spec.engine = container::engine_name(clients.front());
  if (!plan.stage.empty()) spec.mounts.push_back({"<stage>", "<stage>", "ro"});
  container::HostFacts facts;
  facts.program = spec.engine;
  facts.uid = kUid;
  facts.gid = kGid;
  facts.runner = "<sortie-runner>";
  facts.run_folder = "<run folder>";
  if (plan.keeps_memory) facts.memory_folder = "<memory of the run>";
  facts.gpu_vendor =
      spec.gpus == "none" ? container::GpuVendor::none : container::GpuVendor::nvidia;
  container::Box box;
  box.run_id = "<run>";
  box.node_rank = host.node_rank;
  const bool each = spec.scope == wire::ContainerScope::rank;
  box.ranks = each ? 1 : static_cast<std::uint32_t>(host.ranks.size());
  const std::string image = fmt::format("<id of {}>", spec.image);
  std::vector<container::Argv> commands;
  for (const RankPlan& rank : host.ranks) {
    facts.gpus.clear();
    for (const RankPlan& inside : host.ranks)
      if (!each || inside.rank == rank.rank) facts.gpus.push_back(fmt::format("{}", inside.slot));
    if (each) box.rank = rank.rank;
    box.ipc_shared = each && commands.empty() && host.ranks.size() > 1;
    auto command = container::start_command(
        spec, facts, box, image,
        fmt::format("{}/init-{}.sock", facts.run_folder, each ? rank.local_rank : 0));
    if (!command) return std::unexpected(with_context(std::move(command).error(), host.name));
    if (box.ipc_of.empty() && each) box.ipc_of = container::container_name(box);
    name_unknowns(*command, spec);
    commands.push_back(std::move(*command));
    if (!each) break;
  }
  return commands;
}

wire::ImageOrder image_order(const config::ContainerConfig& container, std::string credentials) {
  wire::ImageOrder order;
  order.engine = container.engine;
  order.image = container.image;
  order.pull = container.pull == "always" ? 1 : container.pull == "never" ? 2 : 0;
  order.credentials = std::move(credentials);
  order.user = container.user;
  for (const std::vector<std::string>& mount : container.mounts)
    order.mount_sources.push_back(mount[0]);
  return order;
}

Result<std::string> read_credentials(const config::ContainerConfig& container) {
  const std::string& path = container.credentials_file;
  constexpr const char* kKey = "runner.container.credentials_file";
  constexpr std::size_t kMaxBytes = 1u << 20;
  if (path.empty()) return std::string();
  SORTIE_TRY(check_private(kKey, path));
  SORTIE_ASSIGN_OR_RETURN(std::string text, read_file(path, kMaxBytes));
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::config, fmt::format("{}: {}: {}", kKey, path, why));
  };
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return bad("is no JSON object; `docker login` writes one");
  if (json.contains("auths") && json["auths"].is_object() && !json["auths"].empty()) {
    for (const auto& [registry, login] : json["auths"].items())
      if (login.is_object() && !login.empty()) return text;
    return bad(
        "names registries, but has no login for any: a credential helper keeps them; make a file "
        "without credsStore and log in once more, with DOCKER_CONFIG naming its folder");
  }
  if (json.contains("credsStore") || json.contains("credHelpers"))
    return bad(
        "names a credential helper, which hosts do not have; make a file without it and log in "
        "once more, with DOCKER_CONFIG naming its folder");
  return bad("has no logins (\"auths\"); `docker login` writes them");
}

}  // namespace sortie::launcher

#include "runner/job/job_check.h"

#include <fmt/core.h>

#include <set>
#include <string_view>
#include <vector>

#include "common/wire/node_list.h"

namespace sortie::runner {
namespace {

constexpr std::uint32_t kMaxMs = 24u * 3600u * 1000u;

std::unexpected<Error> bad(std::string message) {
  return fail(ErrorCode::protocol, "job: " + std::move(message));
}

bool has_nul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
}

Result<> check_ranks(const wire::JobSpec& job) {
  if (job.ranks.empty() || job.ranks.size() > kMaxRanksPerHost)
    return bad(
        fmt::format("ranks: {} of them, must be 1 to {}", job.ranks.size(), kMaxRanksPerHost));
  if (job.world_size > kMaxWorldSize || job.world_size < job.ranks.size())
    return bad(fmt::format("world_size: {} does not fit {} ranks (limit {})", job.world_size,
                           job.ranks.size(), kMaxWorldSize));
  std::set<std::uint32_t> ranks, local_ranks;
  for (const wire::RankSpec& spec : job.ranks) {
    if (spec.rank >= job.world_size)
      return bad(fmt::format("rank {}: outside the world of {}", spec.rank, job.world_size));
    if (spec.local_rank >= job.ranks.size())
      return bad(fmt::format("rank {}: local_rank {} of {} local ranks", spec.rank, spec.local_rank,
                             job.ranks.size()));
    if (!ranks.insert(spec.rank).second) return bad(fmt::format("rank {}: twice", spec.rank));
    if (!local_ranks.insert(spec.local_rank).second)
      return bad(fmt::format("rank {}: local_rank {} is taken", spec.rank, spec.local_rank));
    SORTIE_TRY(check_environment(spec.env, fmt::format("rank {}: env", spec.rank)));
  }
  return {};
}

Result<> check_limits(const wire::JobSpec& job) {
  if (job.grace_ms > kMaxMs)
    return bad(fmt::format("grace_ms: {} is more than a day", job.grace_ms));
  if (job.heartbeat_interval_ms == 0 || job.heartbeat_interval_ms > kMaxMs ||
      job.heartbeat_timeout_ms > kMaxMs || job.heartbeat_timeout_ms <= job.heartbeat_interval_ms)
    return bad(
        fmt::format("heartbeat: interval {} ms and timeout {} ms; the timeout must be the "
                    "larger one, both 1 ms to a day",
                    job.heartbeat_interval_ms, job.heartbeat_timeout_ms));
  if (job.output_window < kMinOutputWindow || job.output_window > kMaxOutputWindow)
    return bad(fmt::format("output_window: {} is not within {} to {}", job.output_window,
                           kMinOutputWindow, kMaxOutputWindow));
  if (job.health > 1) return bad(fmt::format("health: {} is not 0 or 1", job.health));
  if (job.autostart > 1) return bad(fmt::format("autostart: {} is not 0 or 1", job.autostart));
  if (job.input_window > kMaxInputWindow)
    return bad(fmt::format("input_window: {} is more than {}", job.input_window, kMaxInputWindow));
  if (job.input_window > 0 && job.ranks.size() != 1)
    return bad(fmt::format("input_window: stdin is for one rank, not {}", job.ranks.size()));
  if (job.mpi > 2) return bad(fmt::format("mpi: {} is not 0, 1 or 2", job.mpi));
  if (job.master_port > wire::kAnyPort)
    return bad(fmt::format("master_port: {} is no port", job.master_port));
  if (auto nodes = wire::expand_nodes(job.nodes); !nodes) return bad(nodes.error().message);
  return {};
}

/// Checks the values that become arguments of the container engine's command.
Result<> check_container(const wire::JobSpec& job) {
  const wire::ContainerSpec& box = job.container;
  if (box.engine.empty()) return {};
  if (box.image.empty() || box.image.starts_with('-')) return bad("container: no image");
  if (!box.image_id.empty() && !box.image_id.starts_with("sha256:"))
    return bad("container: image_id: not of the form sha256:<hex>");
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;
  if (box.rank_memory_bytes > kMostBytes || box.shm_bytes > kMostBytes ||
      box.rank_cpus_milli > 1000u * 100000u)
    return bad("container: a limit that no machine reaches");
  std::vector<std::string_view> words = {box.image, box.ipc,  box.network,
                                         box.gpus,  box.user, box.workdir};
  for (const wire::Mount& mount : box.mounts) {
    if (!mount.source.starts_with('/') || !mount.target.starts_with('/'))
      return bad(fmt::format("container: mount {}:{}: not absolute", mount.source, mount.target));
    words.insert(words.end(), {mount.source, mount.target, mount.options});
  }
  for (const auto* list : {&box.devices, &box.capabilities, &box.entrypoint, &box.extra_args})
    words.insert(words.end(), list->begin(), list->end());
  for (const auto* pairs : {&box.ulimits, &box.labels})
    for (const auto& [name, value] : *pairs) words.insert(words.end(), {name, value});
  for (const std::string_view word : words)
    if (has_nul(word)) return bad("container: an argument has a zero byte");
  return {};
}

}  // namespace

bool is_run_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 &&
         id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

Result<> check_environment(const wire::Environment& env, std::string_view where) {
  for (const auto& [name, value] : env) {
    if (name.empty() || has_nul(name) || name.find('=') != std::string::npos)
      return bad(fmt::format("{}: a name is empty or holds '=' or a zero byte", where));
    if (has_nul(value)) return bad(fmt::format("{}: {} holds a zero byte", where, name));
  }
  return {};
}

Result<> check_job(const wire::JobSpec& job) {
  if (!is_run_id(job.run_id)) return bad("run_id: not of the form [a-z0-9-]{1,64}");
  if (job.attempt == 0) return bad("attempt: 0, counts from 1");
  if (job.host.empty() || job.host.size() > 255 || has_nul(job.host))
    return bad("host: empty, longer than 255 bytes or with a zero byte");
  if (job.argv.empty() || job.argv[0].empty()) return bad("argv: no program");
  for (const std::string& argument : job.argv)
    if (has_nul(argument)) return bad("argv: an argument holds a zero byte");
  if (has_nul(job.work_dir)) return bad("work_dir: holds a zero byte");
  SORTIE_TRY(check_environment(job.env, "env"));
  SORTIE_TRY(check_ranks(job));
  SORTIE_TRY(check_container(job));
  return check_limits(job);
}

}  // namespace sortie::runner

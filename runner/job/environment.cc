#include "runner/job/environment.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace sortie::runner {
namespace {

constexpr std::string_view kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

bool is_inherited(std::string_view name) {
  constexpr std::array<std::string_view, 7> kNames = {"PATH",  "HOME", "USER",  "LOGNAME",
                                                      "SHELL", "LANG", "TMPDIR"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.starts_with("LC_");
}

using Variables = std::map<std::string, std::string, std::less<>>;

void put_line(Variables& variables, std::string_view line) {
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos || equals == 0) return;
  variables.insert_or_assign(std::string(line.substr(0, equals)),
                             std::string(line.substr(equals + 1)));
}

}  // namespace

std::vector<std::string> base_environment(char* const* environment) {
  std::vector<std::string> base;
  bool has_path = false;
  for (; environment && *environment; ++environment) {
    const std::string_view line = *environment;
    const std::string_view name = line.substr(0, line.find('='));
    if (name.size() == line.size() || !is_inherited(name)) continue;
    has_path = has_path || name == "PATH";
    base.emplace_back(line);
  }
  if (!has_path) base.push_back("PATH=" + std::string(kDefaultPath));
  return base;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& base,
                                          const wire::JobSpec& job, const wire::RankSpec& rank,
                                          const RankContext& context) {
  Variables variables;
  for (const std::string& line : base) put_line(variables, line);
  const auto local_ranks = static_cast<std::uint32_t>(std::max<std::size_t>(job.ranks.size(), 1));
  variables["OMP_NUM_THREADS"] = std::to_string(
      context.threads != 0 ? context.threads : std::max(1u, context.cpus / local_ranks));
  // Open MPI spins while it waits. With more ranks than cores, that starves the rank it waits for.
  if (job.mpi != 0 && local_ranks > context.cpus) variables["OMPI_MCA_mpi_yield_when_idle"] = "1";
  for (const std::string& line : context.pmix_env) put_line(variables, line);
  for (const auto& [name, value] : job.env) variables[name] = value;
  for (const auto& [name, value] : context.start_env) variables[name] = value;
  for (const auto& [name, value] : rank.env)
    if (!context.amd_gpus || !name.starts_with("CUDA_")) variables[name] = value;
  // Set again after the user's variables: a config can not know their values, and with wrong ones
  // MPI_Init hangs or fails.
  for (const std::string& line : context.pmix_env)
    if (line.starts_with("PMIX_") || line.starts_with("OMPI_MCA_pmix_")) put_line(variables, line);
  variables["SORTIE_RUN_ID"] = job.run_id;
  variables["SORTIE_ATTEMPT"] = std::to_string(job.attempt);
  variables["SORTIE_HOST"] = job.host;
  if (!context.config_path.empty()) variables["SORTIE_CONFIG"] = context.config_path;
  if (!context.socket_path.empty()) variables["SORTIE_SOCKET"] = context.socket_path;
  variables.erase("SORTIE_MEMORY");  // inherited if this job was started inside another one
  if (!context.forward_path.empty()) variables["SORTIE_FORWARD"] = context.forward_path;
  if (!context.memory_folder.empty()) variables["SORTIE_MEMORY"] = context.memory_folder;

  std::vector<std::string> lines;
  lines.reserve(variables.size());
  for (const auto& [name, value] : variables) lines.push_back(name + '=' + value);
  return lines;
}

std::vector<std::string> pmix_environment(std::vector<std::string> base, const wire::JobSpec& job) {
  for (const auto& [name, value] : job.env)
    if (name.starts_with("PMIX_MCA_") || name == "LD_LIBRARY_PATH" || name == "SORTIE_LIBPMIX")
      base.push_back(name + '=' + value);
  // hwloc, in libpmix, would ask an X server for GPUs: over TCP, which hangs on a host that drops
  // packets of its loopback.
  base.emplace_back("HWLOC_COMPONENTS=-gl");
  return base;
}

std::vector<std::string> pmix_lines_for(const std::vector<std::string>& lines, std::uint32_t rank) {
  const std::string mine = "#rank " + std::to_string(rank);
  std::vector<std::string> result;
  bool take = true;
  for (const std::string& line : lines) {
    if (line.starts_with("#rank "))
      take = line == mine;
    else if (take)
      result.push_back(line);
  }
  return result;
}

std::string_view env_value(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& line : environment)
    if (line.size() > name.size() && line[name.size()] == '=' && line.starts_with(name))
      return std::string_view(line).substr(name.size() + 1);
  return {};
}

std::vector<std::string> program_candidates(const std::string& program, std::string_view path) {
  if (program.find('/') != std::string::npos) return {program};
  if (path.empty()) path = kDefaultPath;
  std::vector<std::string> candidates;
  for (;;) {
    const std::size_t colon = path.find(':');
    const std::string_view folder = path.substr(0, colon);
    candidates.push_back((folder.empty() ? "." : std::string(folder)) + '/' + program);
    if (colon == std::string_view::npos) return candidates;
    path.remove_prefix(colon + 1);
  }
}

}  // namespace sortie::runner

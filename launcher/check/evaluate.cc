#include "launcher/check/evaluate.h"

#include <fmt/core.h>

#include <algorithm>

namespace sortie::launcher::check {

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::none:
      return "-";
    case Verdict::pass:
      return "PASS";
    case Verdict::warn:
      return "WARN";
    case Verdict::fail:
      return "FAIL";
  }
  return "-";
}

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 || value >= 99.95 ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                     : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::vector<std::string> check_names(const Expectations& expect) {
  std::vector<std::string> names = {"ssh", "clock", "kernel", "cores", "memory", "gpus", "disk"};
  if (!expect.save_dir.empty()) names.push_back("save_dir");
  if (!expect.files.empty()) names.push_back("data");
  if (!expect.staged.empty()) names.push_back("staged");
  names.insert(names.end(), {"shm", "memlock", "open_files", "cgroup", "run_folder", "leftovers"});
  if (!expect.program.empty()) names.push_back("port");
  if (expect.container)  // the program and its MPI are in the image
    names.insert(names.end(), {"engine", "image", "image_disk", "gpu_runtime", "mounts"});
  else if (!expect.program.empty())
    names.insert(names.end(), {"program", "mpi"});
  if (expect.ask_trainer) names.emplace_back("trainer");
  names.push_back("network");
  if (expect.bandwidth) names.push_back("bandwidth");
  if (expect.sites) names.push_back("sites");
  if (expect.tunnel_port) names.push_back("tunnel");
  return names;
}

std::vector<std::vector<Finding>> evaluate(const std::vector<HostResult>& hosts,
                                           const Expectations& expect) {
  const std::vector<std::string> names = check_names(expect);
  std::vector<std::vector<Finding>> findings(hosts.size());
  std::vector<std::vector<Finding>> compared = {
      judge_kernels(hosts),        judge_gpus(hosts, expect),    judge_files(hosts, expect),
      judge_mpi(hosts, expect),    judge_network(hosts),         judge_bandwidth(hosts),
      judge_images(hosts, expect), judge_reached(hosts, expect), judge_sites(hosts, expect),
      judge_trainer(hosts, expect)};
  const bool own_shm = expect.container && expect.container->ipc != "host";
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostResult& host = hosts[i];
    std::vector<Finding> all = {judge_clock(host),
                                judge_cores(host),
                                judge_memory(host),
                                judge_memlock(host),
                                judge_open_files(host, expect),
                                judge_cgroup(host),
                                judge_run_folder(host),
                                judge_leftovers(host),
                                judge_disk(host),
                                judge_save_dir(host),
                                judge_staged(host, expect),
                                own_shm ? judge_container_shm(host, expect) : judge_shm(host),
                                judge_port(host),
                                judge_tunnel(host),
                                judge_program(host, expect),
                                judge_engine(host, expect),
                                judge_image_disk(host),
                                judge_gpu_runtime(host, expect),
                                judge_mounts(host)};
    for (std::vector<Finding>& list : compared) all.push_back(std::move(list[i]));
    for (const std::string& name : names) {
      const auto found = std::ranges::find(all, name, &Finding::check);
      if (found != all.end()) findings[i].push_back(std::move(*found));
    }
  }
  return findings;
}

Verdict worst(const std::vector<std::vector<Finding>>& findings) {
  Verdict verdict = Verdict::pass;
  for (const auto& list : findings)
    for (const Finding& finding : list) verdict = std::max(verdict, finding.verdict);
  return verdict;
}

}  // namespace sortie::launcher::check

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "runner/check/parts.h"
#include "runner/cleanup/run_folder.h"
#include "runner/job/network.h"
#include "runner/job/node_facts.h"
#include "runner/process/cgroup.h"
#include "runner/unix_time.h"

namespace sortie::runner::check {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxNames = 16;

/// A resource limit as JSON; null = unlimited.
Json limit_json(rlim_t value) {
  return value == RLIM_INFINITY ? Json(nullptr) : Json(std::uint64_t{value});
}

/// MemAvailable in bytes, 0 if the kernel does not report it.
std::uint64_t available_memory() {
  const Result<std::string> text = read_file("/proc/meminfo", 64u << 10);
  constexpr std::string_view kKey = "MemAvailable:";
  const std::size_t at = text ? text->find(kKey) : std::string::npos;
  if (at == std::string::npos) return 0;
  const std::size_t begin = text->find_first_of("0123456789", at);
  std::uint64_t kib = 0;
  if (begin != std::string::npos)
    std::from_chars(text->data() + begin, text->data() + text->size(), kib);
  return kib << 10;
}

/// Third word of "client port server port": the address at which clients reach this host.
std::string address_of_ssh_server() {
  const char* value = std::getenv("SSH_CONNECTION");
  std::string_view text = value ? value : "";
  for (int skipped = 0; skipped < 2; ++skipped) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return "";
    text.remove_prefix(space + 1);
  }
  return std::string(text.substr(0, text.find(' ')));
}

Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names)
    if (list.size() < kMaxNames) list.push_back(name);
  return {{"count", names.size()}, {"names", list}};
}

Json held_runs_json(const std::vector<HeldRun>& runs) {
  const std::uint64_t now = unix_ms();
  Json list = Json::array();
  for (const HeldRun& run : runs)
    if (list.size() < kMaxNames)
      list.push_back({{"run", run.run_id},
                      {"seconds_left", run.until_ms > now ? (run.until_ms - now) / 1000 : 0}});
  return list;
}

Json cgroup_json() {
  const Result<cgroup::OwnCgroup> own = cgroup::look_at_own();
  if (!own) return {{"error", own.error().message}};
  return {{"folder", own->folder},
          {"writable", own->writable},
          {"empty_jobs", names_json(cgroup::empty_jobs(*own))}};
}

}  // namespace

Json host_part(const ProcessDefaults& defaults) {
  const NodeFacts facts = read_node_facts();
  rlimit memlock{};
  ::getrlimit(RLIMIT_MEMLOCK, &memlock);
  std::error_code ignored;
  const bool infiniband = std::filesystem::exists("/sys/class/infiniband", ignored) &&
                          !std::filesystem::is_empty("/sys/class/infiniband", ignored);
  const RunFolders runs = look_at_run_folders();
  return {{"part", "host"},
          {"hostname", facts.hostname},
          {"machine_id", facts.machine_id},
          {"kernel", facts.kernel},
          {"cpus", facts.cpus},
          {"memory_bytes", facts.memory_bytes},
          {"available_bytes", available_memory()},
          {"memlock", limit_json(memlock.rlim_cur)},
          {"open_files", limit_json(defaults.open_files.rlim_cur)},
          {"infiniband", infiniband},
          {"cgroup", cgroup_json()},
          {"run_folders",
           {{"base", runs.base},
            {"error", runs.error},
            {"held", names_json(runs.held)},
            {"without_launcher", held_runs_json(runs.without_launcher)},
            {"refuse", names_json(runs.refuse)}}},
          {"addresses", interface_addresses()},
          {"ssh_address", address_of_ssh_server()}};
}

}  // namespace sortie::runner::check

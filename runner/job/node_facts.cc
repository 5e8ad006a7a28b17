#include "runner/job/node_facts.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include "common/base/atomic_file.h"
#include "common/cpu/cpu_list.h"

namespace sortie::runner {
namespace {

/// Uses the kernel's boot id because /etc/machine-id is copied with disk images. The result never
/// changes while a process lives.
std::string read_machine_id() {
  const auto boot = read_file("/proc/sys/kernel/random/boot_id", 64);
  struct stat space {};
  if (!boot || ::stat("/proc/self/ns/pid", &space) != 0) return "";
  return fmt::format("{}/{}", boot->substr(0, boot->find('\n')), space.st_ino);
}

}  // namespace

const std::string& machine_id() {
  static const std::string id = read_machine_id();
  return id;
}

NodeFacts read_node_facts() {
  NodeFacts facts;
  facts.cpus = static_cast<std::uint32_t>(cpu::allowed_cpus().size());
  struct utsname names {};
  if (::uname(&names) == 0) {
    facts.hostname = names.nodename;
    facts.kernel = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  }
  struct sysinfo info {};
  if (::sysinfo(&info) == 0) facts.memory_bytes = std::uint64_t{info.totalram} * info.mem_unit;
  facts.machine_id = machine_id();
  return facts;
}

}  // namespace sortie::runner

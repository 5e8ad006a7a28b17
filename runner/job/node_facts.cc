#include "runner/job/node_facts.h"

#include <fmt/core.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include "common/cpu/cpu_list.h"

namespace sortie::runner {
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
  return facts;
}

}  // namespace sortie::runner

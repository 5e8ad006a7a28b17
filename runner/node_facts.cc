#include "runner/node_facts.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

namespace sortie::runner {
namespace {

std::uint32_t usable_cpus() {
  // A fixed cpu_set_t holds 1024 CPUs and the call fails on larger machines.
  constexpr int kMaxCpus = 1 << 14;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (!set) return 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  int count = 0;
  if (::sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
  CPU_FREE(set);
  return count > 0 ? static_cast<std::uint32_t>(count) : 1;
}

}  // namespace

NodeFacts read_node_facts() {
  NodeFacts facts;
  facts.cpus = usable_cpus();
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

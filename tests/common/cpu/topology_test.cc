// Topologies in the kernel's format, recorded as trees of small files.
#include "common/cpu/topology.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/cpu/binding.h"
#include "tests/support/temp_dir.h"

namespace sortie::cpu {
namespace {

namespace fs = std::filesystem;

CpuList first(std::uint32_t count) {
  CpuList cpus(count);
  std::iota(cpus.begin(), cpus.end(), 0u);
  return cpus;
}

/// A fake /sys in a temporary folder.
class Machine {
 public:
  void put(const std::string& path, const std::string& text) {
    fs::create_directories((dir_.path() / path).parent_path());
    test::write_text(dir_.path() / path, text + "\n");
  }
  void core(const std::string& siblings, const char* file = "core_cpus_list") {
    const auto cpus = parse_cpu_list(siblings);
    for (const std::uint32_t cpu : *cpus)
      put(fmt::format("sys/devices/system/cpu/cpu{}/topology/{}", cpu, file), siblings);
  }
  void node(int number, const std::string& cpus) {
    put(fmt::format("sys/devices/system/node/node{}/cpulist", number), cpus);
  }
  void nvidia(const std::string& pci, int at) {
    put(fmt::format("proc/driver/nvidia/gpus/{}/information", pci), "Model: X");
    put(fmt::format("sys/bus/pci/devices/{}/numa_node", pci), fmt::format("{}", at));
  }
  void kfd(int number, int simds, const std::string& pci, std::uint32_t location, int at) {
    put(fmt::format("sys/class/kfd/kfd/topology/nodes/{}/properties", number),
        fmt::format("cpu_cores_count {}\nsimd_count {}\ndomain 0\nlocation_id {}",
                    simds == 0 ? 64 : 0, simds, location));
    if (simds > 0) put(fmt::format("sys/bus/pci/devices/{}/numa_node", pci), fmt::format("{}", at));
  }
  std::string driver() const { return nvidia_driver_version(dir_.path()); }
  Topology read(const CpuList& allowed) const { return read_topology(dir_.path(), allowed); }

 private:
  test::ScopedTempDir dir_;
};

/// Two sockets of eight cores with two threads each: cpu 0-7 and 16-23 are socket 0.
void two_sockets(Machine& machine) {
  for (int core = 0; core < 16; ++core) machine.core(fmt::format("{},{}", core, core + 16));
  machine.node(0, "0-7,16-23");
  machine.node(1, "8-15,24-31");
}

std::vector<std::string> sets(const Topology& topology, Policy policy,
                              std::vector<std::uint32_t> slots) {
  std::vector<std::string> out;
  for (const Share& share : bind_ranks(topology, policy, slots).ranks)
    out.push_back(cpu_list_text(share.cpus));
  return out;
}

TEST_CASE("two sockets with two threads per core") {
  Machine machine;
  two_sockets(machine);
  const Topology topology = machine.read(first(32));
  REQUIRE(topology.cores.size() == 16);
  CHECK(topology.cores[0].cpus == CpuList{0, 16});
  CHECK(topology.cores[0].node == 0);
  CHECK(topology.cores[8].cpus == CpuList{8, 24});
  CHECK(topology.cores[8].node == 1);
  CHECK(sets(topology, Policy::automatic, {0, 1, 2, 3}) ==
        std::vector<std::string>{"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"});
}

TEST_CASE("a cpuset takes threads and whole cores away") {
  Machine machine;
  two_sockets(machine);
  const Topology topology = machine.read({2, 3, 18, 9, 24});  // 8 is not allowed, its sibling 24 is
  REQUIRE(topology.cores.size() == 4);
  CHECK(topology.cores[0].cpus == CpuList{2, 18});
  CHECK(topology.cores[1].cpus == CpuList{3});
  CHECK(topology.cores[2].cpus == CpuList{9});
  CHECK(topology.cores[3].cpus == CpuList{24});
  CHECK(topology.cores[3].node == 1);
}

TEST_CASE("an older kernel, no nodes, and nothing at all to read") {
  Machine machine;
  machine.core("0-1", "thread_siblings_list");
  machine.core("2-3", "thread_siblings_list");
  CHECK(machine.read(first(4)).cores.size() == 2);
  const Topology bare = read_topology("/nowhere", {4, 5});
  REQUIRE(bare.cores.size() == 2);
  CHECK(bare.cores[1].cpus == CpuList{5});
  CHECK(bare.cores[1].node == 0);
  CHECK(bare.gpus.empty());
}

TEST_CASE("NVIDIA devices in the order of their bus, those of the driver alone") {
  Machine machine;
  two_sockets(machine);
  machine.nvidia("0000:9a:00.0", 1);
  machine.nvidia("0000:17:00.0", 0);
  machine.put("sys/bus/pci/devices/0000:3a:00.0/numa_node", "0");  // not in this container
  const Topology topology = machine.read(first(32));
  REQUIRE(topology.gpus.size() == 2);
  CHECK(topology.gpus[0].pci == "0000:17:00.0");
  CHECK(topology.gpus[0].node == 0);
  CHECK(topology.gpus[1].pci == "0000:9a:00.0");
  CHECK(topology.gpus[1].vendor == Gpu::Vendor::nvidia);
  // The device of slot 1 is on the second socket, whatever the rank's number.
  CHECK(sets(topology, Policy::core, {1}) == std::vector<std::string>{"8-15,24-31"});
  CHECK(sets(topology, Policy::automatic, {1, 0}) ==
        std::vector<std::string>{"8-15,24-31", "0-7,16-23"});
}

TEST_CASE("the version of NVIDIA's driver, from its module or from /proc") {
  Machine machine;
  CHECK(machine.driver().empty());
  machine.put("proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
              "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)");
  CHECK(machine.driver() == "580.65.06");
  machine.put("sys/module/nvidia/version", "570.10");
  CHECK(machine.driver() == "570.10");
}

TEST_CASE("AMD devices as KFD counts them") {
  Machine machine;
  two_sockets(machine);
  machine.kfd(0, 0, "", 0, 0);
  machine.kfd(1, 0, "", 0, 0);
  machine.kfd(10, 320, "0000:c3:00.0", 0xc300, 1);
  machine.kfd(2, 320, "0000:63:00.1", 0x6301, 0);
  const Topology topology = machine.read(first(32));
  REQUIRE(topology.gpus.size() == 2);
  CHECK(topology.gpus[0].pci == "0000:63:00.1");
  CHECK(topology.gpus[0].node == 0);
  CHECK(topology.gpus[1].pci == "0000:c3:00.0");
  CHECK(topology.gpus[1].node == 1);
  CHECK(topology.gpus[1].vendor == Gpu::Vendor::amd);
}

TEST_CASE("this machine has cores, and they are the allowed ones") {
  const CpuList mine = allowed_cpus();
  CpuList seen;
  for (const Core& core : read_topology("/", mine).cores)
    seen.insert(seen.end(), core.cpus.begin(), core.cpus.end());
  std::ranges::sort(seen);
  CHECK(seen == mine);
}

}  // namespace
}  // namespace sortie::cpu

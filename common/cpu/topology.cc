#include "common/cpu/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "common/base/atomic_file.h"
#include "common/base/split.h"

namespace sortie::cpu {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxFileBytes = 64u << 10;

std::string text_of(const fs::path& path) {
  return read_file(path, kMaxFileBytes).value_or(std::string());
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Maps CPUs to NUMA nodes; CPUs without a node are missing.
std::map<std::uint32_t, std::uint32_t> nodes_of_cpus(const fs::path& root) {
  std::map<std::uint32_t, std::uint32_t> nodes;
  const fs::path folder = root / "sys/devices/system/node";
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with("node")) continue;
    const auto node = number_in<std::uint32_t>(std::string_view(name).substr(4));
    const auto cpus = parse_cpu_list(text_of(folder / name / "cpulist"));
    if (!node || !cpus) continue;
    for (const std::uint32_t cpu : *cpus) nodes[cpu] = *node;
  }
  return nodes;
}

std::vector<Core> read_cores(const fs::path& root, const CpuList& allowed) {
  const auto nodes = nodes_of_cpus(root);
  const std::set<std::uint32_t> usable(allowed.begin(), allowed.end());
  std::set<std::uint32_t> taken;
  std::vector<Core> cores;
  for (const std::uint32_t cpu : allowed) {
    if (taken.contains(cpu)) continue;
    const fs::path folder = root / fmt::format("sys/devices/system/cpu/cpu{}/topology", cpu);
    std::string siblings = text_of(folder / "core_cpus_list");
    if (siblings.empty()) siblings = text_of(folder / "thread_siblings_list");  // before Linux 5.3
    Core core;
    const auto node = nodes.find(cpu);
    core.node = node == nodes.end() ? 0 : node->second;
    for (const std::uint32_t sibling : parse_cpu_list(siblings).value_or(CpuList()))
      if (usable.contains(sibling) && taken.insert(sibling).second) core.cpus.push_back(sibling);
    if (taken.insert(cpu).second) core.cpus = {cpu};  // the list lacks the CPU itself
    cores.push_back(std::move(core));
  }
  std::ranges::sort(cores, [](const Core& a, const Core& b) {
    return std::pair(a.node, a.cpus.front()) < std::pair(b.node, b.cpus.front());
  });
  return cores;
}

int node_of_pci(const fs::path& root, const std::string& pci) {
  return number_in<int>(text_of(root / "sys/bus/pci/devices" / pci / "numa_node")).value_or(-1);
}

/// Uses the driver's list: in a container it has only the container's devices, but /sys has all.
std::vector<Gpu> nvidia_gpus(const fs::path& root) {
  std::vector<Gpu> gpus;
  for (std::string pci : names_in(root / "proc/driver/nvidia/gpus")) {
    std::ranges::transform(pci, pci.begin(), [](char c) {
      return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    const int node = node_of_pci(root, pci);
    gpus.push_back({Gpu::Vendor::nvidia, std::move(pci), node});
  }
  return gpus;
}

/// Value of a property in the "name value" lines of a KFD node.
std::optional<std::uint64_t> property(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ')
      return number_in<std::uint64_t>(line.substr(name.size() + 1));
  }
  return std::nullopt;
}

std::vector<Gpu> amd_gpus(const fs::path& root) {
  const fs::path folder = root / "sys/class/kfd/kfd/topology/nodes";
  std::map<std::uint32_t, Gpu> by_number;
  for (const std::string& name : names_in(folder)) {
    const auto number = number_in<std::uint32_t>(name);
    const std::string text = text_of(folder / name / "properties");
    if (!number || property(text, "simd_count").value_or(0) == 0) continue;  // a CPU
    const std::uint64_t at = property(text, "location_id").value_or(0);
    std::string pci = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", property(text, "domain").value_or(0),
                                  (at >> 8) & 0xff, (at >> 3) & 0x1f, at & 7);
    const int node = node_of_pci(root, pci);
    by_number[*number] = {Gpu::Vendor::amd, std::move(pci), node};
  }
  std::vector<Gpu> gpus;
  for (auto& [number, gpu] : by_number) gpus.push_back(std::move(gpu));
  return gpus;
}

}  // namespace

Topology read_topology(const fs::path& root, const CpuList& allowed) {
  Topology topology;
  topology.cores = read_cores(root, allowed);
  topology.gpus = read_gpus(root);
  return topology;
}

std::vector<Gpu> read_gpus(const fs::path& root) {
  std::vector<Gpu> gpus = nvidia_gpus(root);
  return gpus.empty() ? amd_gpus(root) : gpus;
}

std::string nvidia_driver_version(const fs::path& root) {
  const auto is_version = [](std::string_view word) {
    return word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos;
  };
  // The module's own file; containers may show only that in /proc, in whose first line the version
  // is a word: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...".
  for (const char* file : {"sys/module/nvidia/version", "proc/driver/nvidia/version"}) {
    const std::string text = text_of(root / file);
    std::string_view line = std::string_view(text).substr(0, text.find('\n'));
    while (!line.empty()) {
      const std::string_view word = line.substr(0, line.find(' '));
      if (is_version(word)) return std::string(word);
      line.remove_prefix(std::min(line.size(), word.size() + 1));
    }
  }
  return "";
}

}  // namespace sortie::cpu

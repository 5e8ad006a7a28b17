#include "runner/container/host_facts.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <set>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "runner/job/node_facts.h"

namespace sortie::runner::container {
namespace {

/// Whether `path` is on a network or FUSE file system, of which the engine, as root, may see less
/// than this user.
bool is_foreign(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return true;
  constexpr std::uint32_t kForeign[] = {0x6969, 0x65735546, 0x0bd00bd0, 0xff534d42,
                                        0x517b, 0xfe534d42, 0x47504653, 0x00c36400};
  const auto type = static_cast<std::uint32_t>(info.f_type);
  return std::ranges::find(kForeign, type) != std::end(kForeign);
}

/// Copies the program to the run folder.
Result<std::string> copied(const std::string& run_folder) {
  const std::string path = run_folder + "/runner";
  const Fd from(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const Fd to(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));
  struct stat info {};
  if (!from || !to || ::fstat(from.get(), &info) != 0 || ::fchmod(to.get(), 0755) != 0)
    return std::unexpected(os_error(errno, path));
  for (off_t left = info.st_size; left > 0;) {
    const ssize_t count = ::sendfile(to.get(), from.get(), nullptr, static_cast<size_t>(left));
    if (count <= 0) return std::unexpected(os_error(errno, path));
    left -= count;
  }
  return path;
}

/// Path of our own program, if the engine can reach it there and, for `other_user`, others may
/// execute it; else of a copy.
Result<std::string> own_program(const std::string& run_folder, bool other_user) {
  char buffer[4096];
  const ssize_t length = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  const std::string path(buffer, length > 0 ? static_cast<std::size_t>(length) : 0);
  struct stat running {
  }, named{};
  const bool same = ::stat("/proc/self/exe", &running) == 0 && ::stat(path.c_str(), &named) == 0 &&
                    running.st_ino == named.st_ino && running.st_dev == named.st_dev;
  constexpr mode_t kForOthers = S_IROTH | S_IXOTH;
  const bool enough = !other_user || (running.st_mode & kForOthers) == kForOthers;
  if (same && enough && !is_foreign(path)) return path;
  return copied(run_folder);
}

std::vector<std::uint32_t> own_groups() {
  gid_t groups[1024];
  const int count = ::getgroups(static_cast<int>(std::size(groups)), groups);
  return count > 0 ? std::vector<std::uint32_t>(groups, groups + count)
                   : std::vector<std::uint32_t>();
}

/// Groups of the device files of AMD's driver.
std::vector<std::uint32_t> amd_groups() {
  std::set<std::uint32_t> groups;
  for (const char* path : {"/dev/kfd", "/dev/dri/renderD128"}) {
    struct stat info {};
    if (::stat(path, &info) == 0) groups.insert(info.st_gid);
  }
  return {groups.begin(), groups.end()};
}

std::vector<std::uint32_t> sorted(std::vector<std::uint32_t> slots) {
  std::ranges::sort(slots);
  slots.erase(std::ranges::unique(slots).begin(), slots.end());
  return slots;
}

}  // namespace

Result<HostFacts> read_host_facts(const EngineFacts& engine, const std::string& run_folder,
                                  bool other_user) {
  HostFacts facts;
  facts.program = engine.client.program;
  facts.uid = ::geteuid();
  facts.gid = ::getegid();
  facts.groups = own_groups();
  SORTIE_ASSIGN_OR_RETURN(facts.runner, own_program(run_folder, other_user));
  facts.run_folder = run_folder;
  facts.machine = machine_id();
  facts.rootless = engine.rootless;
  facts.userns_remap = engine.userns_remap;
  facts.live_restore = engine.live_restore;
  const Result<std::string> enforcing = read_file("/sys/fs/selinux/enforce");
  facts.selinux = enforcing && enforcing->starts_with('1');
  return facts;
}

std::vector<std::string> gpu_uuids(const cpu::Topology& topology, const std::string& root) {
  std::vector<std::string> uuids;
  for (const cpu::Gpu& gpu : topology.gpus) {
    std::string uuid;
    const auto text = read_file(root + "/proc/driver/nvidia/gpus/" + gpu.pci + "/information");
    const std::size_t at = text ? text->find("GPU-") : std::string::npos;
    if (at != std::string::npos) uuid = text->substr(at, text->find_first_of(" \t\n", at) - at);
    if (uuid.find_first_not_of("GPU-abcdef0123456789") != std::string::npos) uuid.clear();
    uuids.push_back(std::move(uuid));
  }
  return uuids;
}

Result<> add_gpus(HostFacts& facts, const wire::ContainerSpec& spec, const cpu::Topology& topology,
                  const std::vector<std::uint32_t>& slots) {
  if (!topology.gpus.empty())
    facts.gpu_vendor =
        topology.gpus.front().vendor == cpu::Gpu::Vendor::amd ? GpuVendor::amd : GpuVendor::nvidia;
  if (spec.gpus.empty() || spec.gpus == "none") return {};
  if (facts.gpu_vendor == GpuVendor::none) {
    if (spec.gpus == "auto") return {};
    return fail(ErrorCode::unsupported,
                fmt::format("container: gpus = \"{}\", and this host has no GPU", spec.gpus));
  }
  facts.gpu_groups =
      facts.gpu_vendor == GpuVendor::amd ? amd_groups() : std::vector<std::uint32_t>();
  if (spec.gpus == "all") return {};
  const std::vector<std::string> uuids = gpu_uuids(topology);
  for (const std::uint32_t slot : sorted(slots)) {
    if (slot >= topology.gpus.size()) {
      if (spec.gpus == "auto") {  // ranks share devices: the container gets all of them
        facts.gpus.clear();
        return {};
      }
      return fail(
          ErrorCode::unsupported,
          fmt::format("container: gpus = \"slots\", and there is no GPU {} here ({} in all)", slot,
                      topology.gpus.size()));
    }
    facts.gpus.push_back(uuids[slot].empty() ? std::to_string(slot) : uuids[slot]);
  }
  return {};
}

std::string visible_devices(const std::string& value, const wire::ContainerSpec& spec,
                            const std::vector<std::uint32_t>& slots,
                            const std::vector<std::string>& uuids) {
  if (spec.gpus != "auto" && spec.gpus != "slots") return value;
  const std::vector<std::uint32_t> inside = sorted(slots);
  if (inside.empty() || inside.back() >= uuids.size()) return value;
  std::string text;
  for (const char* at = value.data(); at != value.data() + value.size();) {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(at, value.data() + value.size(), number);
    const auto found = std::ranges::find(inside, number);
    const bool last = end == value.data() + value.size();
    if (error != std::errc{} || (!last && *end != ',') || found == inside.end()) return value;
    if (!text.empty()) text += ',';
    text += uuids[number].empty() ? std::to_string(found - inside.begin()) : uuids[number];
    at = last ? end : end + 1;
  }
  return text;
}

}  // namespace sortie::runner::container

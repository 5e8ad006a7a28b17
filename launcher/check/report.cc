#include "launcher/check/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/console/console.h"

namespace sortie::launcher::check {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxItems = 4096;
constexpr std::size_t kMaxNames = 256;

std::string text(const Json& part, const char* key) {
  const auto it = part.find(key);
  if (it == part.end() || !it->is_string()) return "";
  const auto& value = it->get_ref<const std::string&>();
  if (value.size() <= kMaxText) return printable(value);
  return printable(value.substr(0, kMaxText)) + "...";
}

std::uint64_t number(const Json& part, const char* key) {
  const auto it = part.find(key);
  return it != part.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}

std::optional<std::uint64_t> limit(const Json& part, const char* key) {
  const auto it = part.find(key);
  if (it != part.end() && it->is_null()) return std::nullopt;
  return number(part, key);
}

bool flag(const Json& part, const char* key) {
  const auto it = part.find(key);
  return it != part.end() && it->is_boolean() && it->get<bool>();
}

const Json& object(const Json& part, const char* key) {
  static const Json empty = Json::object();
  const auto it = part.find(key);
  return it != part.end() && it->is_object() ? *it : empty;
}

std::vector<std::string> texts(const Json& part, const char* key, const char* member) {
  std::vector<std::string> out;
  const auto list = part.find(key);
  if (list == part.end() || !list->is_array()) return out;
  for (const Json& item : *list) {
    if (out.size() == kMaxNames) break;
    const Json as_object = item.is_object() ? item : Json{{member, item}};
    out.push_back(text(as_object, member));
  }
  return out;
}

std::vector<HeldRun> held_runs(const Json& folders) {
  std::vector<HeldRun> runs;
  const auto list = folders.find("without_launcher");
  if (list == folders.end() || !list->is_array()) return runs;
  for (const Json& item : *list)
    if (runs.size() < kMaxNames && item.is_object())
      runs.push_back({text(item, "run"), number(item, "seconds_left")});
  return runs;
}

HostFacts host_facts(const Json& part) {
  HostFacts facts;
  facts.hostname = text(part, "hostname");
  facts.machine_id = text(part, "machine_id");
  // "Linux 6.1.0 x86_64"
  const std::string names = text(part, "kernel");
  const std::size_t first = names.find(' '), last = names.rfind(' ');
  if (first != names.npos && last > first) {
    facts.kernel = names.substr(first + 1, last - first - 1);
    facts.machine = names.substr(last + 1);
  }
  facts.cpus = number(part, "cpus");
  facts.memory_bytes = number(part, "memory_bytes");
  facts.available_bytes = number(part, "available_bytes");
  facts.memlock = limit(part, "memlock");
  facts.open_files = limit(part, "open_files");
  facts.infiniband = flag(part, "infiniband");
  const Json& cgroup = object(part, "cgroup");
  facts.cgroup_error = text(cgroup, "error");
  facts.cgroup_writable = flag(cgroup, "writable");
  facts.cgroups_left = number(object(cgroup, "empty_jobs"), "count");
  const Json& runs = object(part, "run_folders");
  facts.run_base = text(runs, "base");
  facts.run_error = text(runs, "error");
  facts.runs_alive = number(object(runs, "held"), "count");
  facts.runs_left = number(object(runs, "refuse"), "count");
  facts.without_launcher = held_runs(runs);
  facts.ssh_address = text(part, "ssh_address");
  facts.addresses = texts(part, "addresses", "address");
  return facts;
}

FolderFacts folder_facts(const Json& part) {
  FolderFacts facts;
  facts.role = text(part, "role");
  facts.path = text(part, "path");
  facts.at = text(part, "at");
  facts.error = text(part, "error");
  facts.exists = flag(part, "exists");
  facts.read_only = flag(part, "read_only");
  facts.tried = flag(part, "tried");
  facts.writable = flag(part, "writable");
  facts.free_bytes = number(part, "free_bytes");
  facts.total_bytes = number(part, "total_bytes");
  facts.free_inodes = number(part, "free_inodes");
  facts.total_inodes = number(part, "total_inodes");
  facts.sync_us = number(part, "sync_us");
  return facts;
}

ContainerFacts container_facts(const Json& part) {
  ContainerFacts facts;
  facts.client = text(part, "client");
  facts.version = text(part, "version");
  facts.problem = text(part, "problem");
  facts.error = text(part, "error");
  facts.root = text(part, "root");
  facts.image_id = text(part, "image_id");
  facts.image_error = text(part, "image_error");
  facts.rootless = flag(part, "rootless");
  facts.gpu_runtime = flag(part, "gpu_runtime");
  facts.image_present = flag(part, "image_present");
  facts.free_bytes = number(part, "free_bytes");
  facts.total_bytes = number(part, "total_bytes");
  facts.missing_mounts = texts(part, "missing_mounts", "path");
  return facts;
}

/// Calls `add` with each object of a list; what is no object counts as an empty one.
template <class Add>
void for_objects(const Json& part, const char* key, Add add) {
  const auto list = part.find(key);
  if (list == part.end() || !list->is_array()) return;
  const std::size_t count = std::min(list->size(), kMaxNames);
  for (std::size_t i = 0; i < count; ++i)
    add((*list)[i].is_object() ? (*list)[i] : Json(Json::object()));
}

GpuFacts gpu_facts(const Json& part) {
  GpuFacts facts;
  facts.driver = number(part, "nvidia_driver");
  facts.devices = number(part, "nvidia_devices");
  facts.rocm = number(part, "rocm");
  facts.smi = text(part, "smi");
  facts.smi_error = text(part, "smi_error");
  facts.driver_version = text(part, "driver_version");
  for_objects(part, "gpus", [&facts](const Json& item) {
    OneGpu& gpu = facts.gpus.emplace_back();
    gpu.name = text(item, "name");
    gpu.compute_capability = text(item, "compute_capability");
    gpu.memory_mib = number(item, "memory_mib");
    gpu.sm_clock_mhz = number(item, "sm_clock_mhz");
    gpu.max_sm_clock_mhz = number(item, "max_sm_clock_mhz");
    gpu.app_clock_mhz = number(item, "app_clock_mhz");
    gpu.default_app_clock_mhz = number(item, "default_app_clock_mhz");
    gpu.power_limit_w = number(item, "power_limit_w");
    gpu.default_power_limit_w = number(item, "default_power_limit_w");
    if (item.contains("persistence")) gpu.persistence = flag(item, "persistence");
  });
  return facts;
}

TrainerFacts trainer_facts(const Json& part) {
  TrainerFacts facts;
  facts.error = text(part, "error");
  const Json& answer = object(part, "answer");
  facts.version = text(answer, "version");
  facts.build = text(answer, "build");
  facts.isa = text(object(answer, "cpu"), "isa");
  facts.driver_cuda = text(answer, "driver_cuda");
  facts.cuda = text(answer, "cuda");
  facts.cublaslt = text(answer, "cublaslt");
  facts.nccl = text(answer, "nccl");
  facts.problem = text(answer, "problem");
  for_objects(answer, "gpus", [&facts](const Json& item) {
    facts.gpus.push_back({text(item, "name"), text(item, "problem"),
                          number(item, "compute_capability"), number(item, "clock_mhz"),
                          number(item, "memory_bytes")});
  });
  return facts;
}

WayFacts way_facts(const Json& part, const char* key) {
  const Json& way = object(part, key);
  return {number(way, "bytes"), number(way, "us"), number(way, "segments"), number(way, "again")};
}

LinkFacts link_facts(const Json& part) {
  return {text(part, "name"),         text(part, "error"),
          text(part, "rate_error"),   number(part, "round_trip_us"),
          number(part, "mtu"),        number(part, "own_mtu"),
          flag(part, "mtu_reported"), way_facts(part, "out"),
          way_facts(part, "back")};
}

PeerFacts peer_facts(const Json& part) {
  return {text(part, "name"),         text(part, "error"),
          number(part, "connect_us"), number(part, "round_trip_us"),
          number(part, "mtu"),        number(part, "own_mtu"),
          flag(part, "mtu_reported")};
}

template <class T>
Result<> append(std::vector<T>& list, T item) {
  if (list.size() == kMaxItems)
    return fail(ErrorCode::protocol, "CheckReport: too many of one kind");
  list.push_back(std::move(item));
  return {};
}

Result<> take(HostReport& report, const std::string& kind, const Json& part) {
  if (kind == "folder") return append(report.folders, folder_facts(part));
  if (kind == "peer") return append(report.peers, peer_facts(part));
  if (kind == "link") return append(report.links, link_facts(part));
  if (kind == "file")
    return append(report.files, {text(part, "path"), text(part, "error"), text(part, "hash"),
                                 number(part, "size")});
  if (kind == "host") report.host = host_facts(part);
  if (kind == "program")
    report.program = {text(part, "name"), text(part, "found"), text(part, "error"),
                      flag(part, "work_dir"), texts(part, "missing", "name")};
  if (kind == "mpi")
    report.mpi = {text(part, "pmix"), text(part, "pmix-error"), text(part, "mpi"),
                  text(part, "mpi-error"), text(part, "error")};
  if (kind == "gpus") report.gpus = gpu_facts(part);
  if (kind == "trainer") report.trainer = trainer_facts(part);
  if (kind == "container") report.container = container_facts(part);
  if (kind == "port") report.port = {number(part, "port"), text(part, "error")};
  if (kind == "listen") {
    const std::uint64_t port = number(part, "port");
    if (port > 0 && port < 65536) report.listen_port = port;
    report.listen_error = text(part, "error");
  }
  if (kind == "clock") {
    constexpr std::uint64_t kMaxUs = std::uint64_t{1} << 60;
    report.clock_us = static_cast<std::int64_t>(std::min(number(part, "unix_us"), kMaxUs));
  }
  if (kind == "bandwidth")
    report.bandwidth = {text(part, "name"), text(part, "error"), number(part, "bytes"),
                        number(part, "us")};
  if (kind == "at") report.at = text(part, "what");
  if (kind == "done") report.done = text(part, "kind");
  return {};
}

}  // namespace

Result<> add_part(HostReport& report, std::string_view text_of_part) {
  report.bytes += text_of_part.size();
  if (text_of_part.size() > kMaxReportBytes || ++report.parts > kMaxReportParts ||
      report.bytes > kMaxReportTotal)
    return fail(ErrorCode::protocol, "CheckReport: too large, or too many");
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  const Json part = Json::parse(text_of_part, watch, /*allow_exceptions=*/false);
  if (too_deep || !part.is_object())
    return fail(ErrorCode::protocol, "CheckReport: not a JSON object of the expected form");
  return take(report, text(part, "part"), part);
}

}  // namespace sortie::launcher::check

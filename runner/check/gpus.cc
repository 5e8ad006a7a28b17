#include <dirent.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/digits.h"
#include "common/base/split.h"
#include "common/cpu/topology.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/job/environment.h"

namespace sortie::runner::check {
namespace {

using Json = nlohmann::json;

/// A driver that has lost a GPU can block nvidia-smi for minutes.
constexpr std::chrono::milliseconds kSmiLimit{5000};
constexpr std::size_t kMaxGpus = 256;

/// Names in a folder without hidden files; empty if it does not exist.
std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  if (DIR* dir = ::opendir(folder)) {
    while (const dirent* entry = ::readdir(dir))
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    ::closedir(dir);
  }
  return names;
}

/// Number of device files /dev/nvidia0, /dev/nvidia1 ...
std::size_t nvidia_devices() {
  return static_cast<std::size_t>(
      std::ranges::count_if(names_in("/dev"), [](const std::string& name) {
        return name.starts_with("nvidia") && all_digits(std::string_view(name).substr(6));
      }));
}

/// AMD's driver lists CPUs too; only nodes with a gpu_id are GPUs.
std::size_t rocm_gpus() {
  constexpr const char* kNodes = "/sys/class/kfd/kfd/topology/nodes";
  return static_cast<std::size_t>(
      std::ranges::count_if(names_in(kNodes), [&](const std::string& name) {
        const auto id = read_file(fmt::format("{}/{}/gpu_id", kNodes, name), 64);
        return id && !id->empty() && id->front() != '0';
      }));
}

std::string smi_path() {
  const char* path = std::getenv("PATH");
  for (const std::string& candidate : program_candidates("nvidia-smi", path ? path : ""))
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  return "";
}

/// What is asked of each GPU. nvidia-smi refuses all of it if it does not know one of the names.
constexpr const char* kQuery =
    "name,memory.total,compute_cap,clocks.sm,clocks.max.sm,clocks.applications.graphics,"
    "clocks.default_applications.graphics,enforced.power.limit,power.default_limit,"
    "persistence_mode";
constexpr const char* kShortQuery = "name,memory.total";

/// Splits "NVIDIA H100, 81559, 9.0": the values of a line.
std::vector<std::string> values_in(std::string_view line) {
  std::vector<std::string> values;
  for (;;) {
    const std::size_t comma = line.find(", ");
    values.emplace_back(line.substr(0, comma));
    if (comma == line.npos) return values;
    line.remove_prefix(comma + 2);
  }
}

/// Adds a number; a value that the GPU does not have ("[N/A]") is left out. Watts lose their
/// fraction.
void put_number(Json& gpu, const char* key, std::string_view value) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end != value.data()) gpu[key] = number;
}

Json gpu_in(std::string_view line) {
  const std::vector<std::string> values = values_in(line);
  constexpr const char* kKeys[] = {nullptr,
                                   "memory_mib",
                                   nullptr,
                                   "sm_clock_mhz",
                                   "max_sm_clock_mhz",
                                   "app_clock_mhz",
                                   "default_app_clock_mhz",
                                   "power_limit_w",
                                   "default_power_limit_w"};
  Json gpu = {{"name", values[0]}};
  for (std::size_t i = 1; i < std::min(values.size(), std::size(kKeys)); ++i)
    if (kKeys[i]) put_number(gpu, kKeys[i], values[i]);
  if (values.size() > 2 && values[2].find('.') != std::string::npos)
    gpu["compute_capability"] = values[2];
  if (values.size() > std::size(kKeys)) {
    const std::string& mode = values[std::size(kKeys)];
    if (mode == "Enabled" || mode == "Disabled") gpu["persistence"] = mode == "Enabled";
  }
  return gpu;
}

Result<ChildOutput> query(const std::string& smi, const char* what,
                          const ProcessDefaults& defaults) {
  return run_child(
      smi, {"nvidia-smi", fmt::format("--query-gpu={}", what), "--format=csv,noheader,nounits"},
      nullptr, kSmiLimit, defaults);
}

/// One line per GPU.
void ask_smi(const std::string& smi, const ProcessDefaults& defaults, Json& part) {
  auto output = query(smi, kQuery, defaults);
  if (output && !output->status.success() &&
      output->text.find("not a valid field") != std::string::npos)
    output = query(smi, kShortQuery, defaults);
  part["smi"] = smi;
  if (!output || !output->status.success()) {
    part["smi_error"] =
        !output ? output.error().message
                : fmt::format("{}: {}", output->status.to_string(), beginning_of(output->text));
    return;
  }
  Json gpus = Json::array();
  std::string_view text = output->text;
  while (!text.empty() && gpus.size() < kMaxGpus) {
    const std::string_view line = take_line(text);
    if (line.find(", ") != line.npos) gpus.push_back(gpu_in(line));
  }
  part["gpus"] = gpus;
}

}  // namespace

Json gpus_part(const ProcessDefaults& defaults) {
  Json part = {{"part", "gpus"},
               {"nvidia_driver", names_in("/proc/driver/nvidia/gpus").size()},
               {"nvidia_devices", nvidia_devices()},
               {"rocm", rocm_gpus()}};
  if (std::string version = cpu::nvidia_driver_version("/"); !version.empty())
    part["driver_version"] = std::move(version);
  if (const std::string smi = smi_path(); !smi.empty()) ask_smi(smi, defaults, part);
  return part;
}

}  // namespace sortie::runner::check

#include <dirent.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/job/environment.h"

namespace sortie::runner::check {
namespace {

using Json = nlohmann::json;

/// A driver that has lost a GPU can block nvidia-smi for minutes.
constexpr std::chrono::milliseconds kSmiLimit{5000};
constexpr std::size_t kMaxSaid = 300;
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

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
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

std::string first_lines(std::string text) {
  if (text.size() > kMaxSaid) text.resize(kMaxSaid);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

/// Parses one line "NAME, MIB" per GPU.
void ask_smi(const std::string& smi, const ProcessDefaults& defaults, Json& part) {
  const auto output = run_child(
      smi, {"nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"}, {},
      kSmiLimit, defaults);
  part["smi"] = smi;
  if (!output || !output->status.success()) {
    part["smi_error"] =
        !output ? output.error().message
                : fmt::format("{}: {}", output->status.to_string(), first_lines(output->text));
    return;
  }
  Json gpus = Json::array();
  std::string_view text = output->text;
  while (!text.empty() && gpus.size() < kMaxGpus) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t comma = line.rfind(", ");
    if (comma == line.npos) continue;
    std::uint64_t mib = 0;
    std::from_chars(line.data() + comma + 2, line.data() + line.size(), mib);
    gpus.push_back({{"name", std::string(line.substr(0, comma))}, {"memory_mib", mib}});
  }
  part["gpus"] = gpus;
}

}  // namespace

Json gpus_part(const ProcessDefaults& defaults) {
  Json part = {{"part", "gpus"},
               {"nvidia_driver", names_in("/proc/driver/nvidia/gpus").size()},
               {"nvidia_devices", nvidia_devices()},
               {"rocm", rocm_gpus()}};
  // such as "580.65.06"
  if (const auto version = read_file("/sys/module/nvidia/version", 64))
    part["driver_version"] = first_lines(*version);
  if (const std::string smi = smi_path(); !smi.empty()) ask_smi(smi, defaults, part);
  return part;
}

}  // namespace sortie::runner::check

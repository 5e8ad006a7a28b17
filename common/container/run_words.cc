#include "common/container/run_words.h"

#include <fmt/core.h>

#include <algorithm>

namespace sortie::container {

using wire::ContainerSpec;

void add(Argv& argv, std::string_view option, std::string value) {
  argv.emplace_back(option);
  argv.push_back(std::move(value));
}

void add_labels(Argv& argv, const ContainerSpec& spec, const HostFacts& host, const Box& box) {
  for (const auto& [name, value] : spec.labels) add(argv, "--label", name + '=' + value);
  const auto own = [&argv](std::string_view name, const std::string& value) {
    add(argv, "--label", std::string(name) + '=' + value);
  };
  own(kRunLabel, box.run_id);
  own(kAttemptLabel, std::to_string(box.attempt));
  own(kNodeLabel, std::to_string(box.node_rank));
  if (box.rank) own(kRankLabel, std::to_string(*box.rank));
  own(kUidLabel, std::to_string(host.uid));
  own(kFolderLabel, host.run_folder);
  if (!host.machine.empty()) own(kMachineLabel, host.machine);
}

bool wants_gpus(const ContainerSpec& spec, const HostFacts& host) {
  if (spec.gpus.empty() || spec.gpus == "none") return false;
  return spec.gpus != "auto" || host.gpu_vendor != GpuVendor::none;
}

void add_rights(Argv& argv, const ContainerSpec& spec) {
  for (const std::string& device : spec.devices) add(argv, "--device", device);
  for (const std::string& capability : spec.capabilities) add(argv, "--cap-add", capability);
  if (spec.privileged) argv.emplace_back("--privileged");
}

void add_amd_devices(Argv& argv) {
  for (const char* device : {"/dev/kfd", "/dev/dri"}) add(argv, "--device", device);
}

std::string cpus_text(const ContainerSpec& spec, const Box& box) {
  const std::uint64_t milli = std::uint64_t{spec.rank_cpus_milli} * box.ranks;
  return milli % 1000 == 0 ? std::to_string(milli / 1000)
                           : fmt::format("{}.{:03}", milli / 1000, milli % 1000);
}

}  // namespace sortie::container

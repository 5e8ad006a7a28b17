// Words that the run commands of all engines share. Internal to this folder.
#pragma once

#include "common/container/engine_command.h"

namespace sortie::container {

void add(Argv& argv, std::string_view option, std::string value);
/// Adds the job's labels, then Sortie's own, as `--label NAME=VALUE`.
void add_labels(Argv& argv, const wire::ContainerSpec& spec, const HostFacts& host, const Box& box);
/// Adds the AMD devices that all GPUs share. ROCR_VISIBLE_DEVICES selects the GPUs.
void add_amd_devices(Argv& argv);
void add_rights(Argv& argv, const wire::ContainerSpec& spec);
bool wants_gpus(const wire::ContainerSpec& spec, const HostFacts& host);
/// CPU limit of all ranks in the container: "1.5" for 1500 thousandths.
std::string cpus_text(const wire::ContainerSpec& spec, const Box& box);

/// start_command for ctr.
Result<Argv> ctr_run_command(const wire::ContainerSpec& spec, const HostFacts& host, const Box& box,
                             const std::string& image, const std::string& socket);

}  // namespace sortie::container

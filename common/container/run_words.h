// Words that all engines' run commands share. Only the files of this folder need them.
#pragma once

#include "common/container/engine_command.h"

namespace sortie::container {

void add(Argv& argv, std::string_view option, std::string value);
/// The job's labels, then Sortie's own: `--label NAME=VALUE` each.
void add_labels(Argv& argv, const wire::ContainerSpec& spec, const HostFacts& host, const Box& box);
/// Those devices of AMD that all GPUs share; which of them is said by ROCR_VISIBLE_DEVICES.
void add_amd_devices(Argv& argv);
void add_rights(Argv& argv, const wire::ContainerSpec& spec);
bool wants_gpus(const wire::ContainerSpec& spec, const HostFacts& host);
/// The limit of all ranks in the box, "1.5" for 1500 thousandths.
std::string cpus_text(const wire::ContainerSpec& spec, const Box& box);
/// The parts of a text without the empty ones.
std::vector<std::string> split(const std::string& text, char separator);

/// start_command for ctr.
Result<Argv> ctr_run_command(const wire::ContainerSpec& spec, const HostFacts& host, const Box& box,
                             const std::string& image, const std::string& socket);

}  // namespace sortie::container

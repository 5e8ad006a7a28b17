// Which devices and CPUs the ranks of a plan get. Pure.
#pragma once

#include <string>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Of runner.cpu_binding.
wire::CpuBinding binding_named(std::string_view name);

/// Fills in the CPUs of the ranks of `host`, which is the machine of `topology`, as its runner
/// will: by the same functions, under the same affinity mask.
void show_binding(LaunchPlan& plan, HostPlan& host, const cpu::Topology& topology);

/// Adds the variables of the devices that a rank of `host` sees, by runner.devices; those that the
/// user sets stay. In a container that has only the GPUs of its slots CUDA counts those from 0.
void put_devices(const config::RunnerConfig& runner, const HostPlan& host, const Environment& user,
                 RankPlan& rank);

}  // namespace sortie::launcher

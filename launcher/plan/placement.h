// Assigns devices and CPUs to the ranks of a plan. Pure.
#pragma once

#include <string>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Converts a value of runner.cpu_binding.
wire::CpuBinding binding_named(std::string_view name);

/// Fills in the CPUs of the ranks of `host`, whose machine has `topology`. Its runner will compute
/// the same, with the same functions and under the same affinity mask.
void show_binding(LaunchPlan& plan, HostPlan& host, const cpu::Topology& topology);

/// Adds the variables that select the devices of a rank of `host`, according to runner.devices;
/// variables set by the user are kept. Values are device numbers of the host; the runner converts
/// them for a container that has only the GPUs of its slots.
void put_devices(const config::RunnerConfig& runner, const HostPlan& host, const Environment& user,
                 RankPlan& rank);

}  // namespace sortie::launcher

// Facts about this host and the runner's user that the engine's commands need.
#pragma once

#include <string>
#include <vector>

#include "common/container/engine_command.h"
#include "common/cpu/topology.h"
#include "common/wire/message.h"
#include "runner/container/engine.h"

namespace sortie::runner::container {

using sortie::container::GpuVendor;
using sortie::container::HostFacts;

/// Reads all facts except those of GPUs. `other_user`: the container runs as another user. Error:
/// the runner's own program can not be made available to containers.
Result<HostFacts> read_host_facts(const EngineFacts& engine, const std::string& run_folder,
                                  bool other_user);

/// UUIDs of the host's GPUs, indexed by their numbers; "" if the driver does not report one. NVIDIA
/// only.
std::vector<std::string> gpu_uuids(const cpu::Topology& topology, const std::string& root = "");

/// Fills in vendor and devices for the ranks at `slots`. ErrorCode::unsupported: GPUs are requested
/// but the host has none, or has none for a slot.
Result<> add_gpus(HostFacts& facts, const wire::ContainerSpec& spec, const cpu::Topology& topology,
                  const std::vector<std::uint32_t>& slots);

/// CUDA_VISIBLE_DEVICES for a container that has only the devices of `slots`: each device by its
/// UUID if known, else by its number inside. `value` is a list of the host's numbers, "2,3". A list
/// that contains anything else is returned unchanged.
std::string visible_devices(const std::string& value, const wire::ContainerSpec& spec,
                            const std::vector<std::uint32_t>& slots,
                            const std::vector<std::string>& uuids);

}  // namespace sortie::runner::container

// What the engine's commands have to know of this host and of the runner's user.
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

/// Without `gpus`. `other_user`: another one than this runs inside. Error: the runner's own program
/// can not be handed to containers.
Result<HostFacts> read_host_facts(const EngineFacts& engine, const std::string& run_folder,
                                  bool other_user);

/// The UUIDs of the host's GPUs by their numbers, "" where the driver does not tell; NVIDIA alone.
std::vector<std::string> gpu_uuids(const cpu::Topology& topology, const std::string& root = "");

/// Fills in vendor and devices for the ranks at `slots`. ErrorCode::unsupported: GPUs are asked for
/// and there are none, or a slot has none.
Result<> add_gpus(HostFacts& facts, const wire::ContainerSpec& spec, const cpu::Topology& topology,
                  const std::vector<std::uint32_t>& slots);

/// CUDA_VISIBLE_DEVICES for a container that has only the devices of `slots`: by UUID where known,
/// else by their number there. `value` is a list of the host's numbers, "2,3"; a list that holds
/// anything else stays as it is.
std::string visible_devices(const std::string& value, const wire::ContainerSpec& spec,
                            const std::vector<std::uint32_t>& slots,
                            const std::vector<std::string>& uuids);

}  // namespace sortie::runner::container

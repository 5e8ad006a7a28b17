// The parts of a check that stay on this host, each a JSON object of facts: judging them is the
// launcher's affair. README.md has their members.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runner/process/process_defaults.h"

namespace sortie::runner::check {

/// Name, kernel, cores, memory, limits, cgroup, what earlier runs left.
nlohmann::json host_part(const ProcessDefaults& defaults);

/// What nvidia-smi says where there is one, else what the drivers have in /proc, /dev and /sys.
nlohmann::json gpus_part(const ProcessDefaults& defaults);

/// The request's program: found, executable, and its libraries found; nothing of it runs.
nlohmann::json program_part(const nlohmann::json& request, const ProcessDefaults& defaults);

/// Versions of libpmix and libmpi by loading them, in a process of their own. `libmpi` names the
/// one that the program is linked with, empty: the system's.
nlohmann::json mpi_part(const std::string& libmpi, const ProcessDefaults& defaults);

/// The engine that the request names (client, version, may it be used), its image and its room,
/// mounts that are not there.
nlohmann::json container_part(const nlohmann::json& request, const ProcessDefaults& defaults);

/// Whether the TCP port can be bound here, and what listens on it.
nlohmann::json port_part(unsigned port);

}  // namespace sortie::runner::check

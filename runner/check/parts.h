// The parts of a check that stay on this host. Each returns a JSON object of facts, which the
// launcher judges. README.md has their members.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runner/process/process_defaults.h"

namespace sortie::runner::check {

/// Host name, kernel, cores, memory, limits, cgroup, and what earlier runs left.
nlohmann::json host_part(const ProcessDefaults& defaults);

/// Output of nvidia-smi if it is installed, and what the drivers show in /proc, /dev and /sys.
nlohmann::json gpus_part(const ProcessDefaults& defaults);

/// Whether the request's program is found and executable, and its libraries are found. The program
/// is not run.
nlohmann::json program_part(const nlohmann::json& request, const ProcessDefaults& defaults);

/// What the request's program, a sortie-train, reports about itself, its CPU, GPUs and libraries:
/// the output of `devices --json`. An error if it does not answer within `limit`.
nlohmann::json trainer_part(const nlohmann::json& request, std::chrono::milliseconds limit,
                            const ProcessDefaults& defaults);

/// Versions of libpmix and libmpi, found by loading them in a separate process. `libmpi` is the one
/// that the program is linked with; empty: the system's.
nlohmann::json mpi_part(const std::string& libmpi, const ProcessDefaults& defaults);

/// The engine that the request names (client, version, whether this user may use it), its image and
/// free space, and missing mount sources.
nlohmann::json container_part(const nlohmann::json& request, const ProcessDefaults& defaults);

/// Whether the TCP port can be bound here; if not, the error.
nlohmann::json port_part(unsigned port);

}  // namespace sortie::runner::check

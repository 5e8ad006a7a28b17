// The containers of a plan: orders for the hosts, and the commands to display. Pure, except
// read_credentials().
#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Refuses ranks on several hosts that have no network. Programs with runner.mpi = "off" may be
/// independent of each other.
Result<> check_network(const config::RunnerConfig& runner, std::size_t hosts);

/// Returns the spec for the hosts, without values known only at start: the image ID, and the folder
/// of staged files. `runner` must be validated and have an engine.
wire::ContainerSpec container_spec(const config::RunnerConfig& runner);

/// Returns the commands of the engine on one host, one per container, with <placeholders> for
/// values that only the host knows. Error: a feature that this engine lacks.
Result<std::vector<std::vector<std::string>>> container_commands(const LaunchPlan& plan,
                                                                 const HostPlan& host);

/// Returns the order to provide the image, with registry logins.
wire::ImageOrder image_order(const config::ContainerConfig& container, std::string credentials);

/// Reads the logins of runner.container.credentials_file, a Docker config.json; "" if it is not
/// set. Messages never contain its content. Errors: readable by other users, invalid JSON, logins
/// stored elsewhere.
Result<std::string> read_credentials(const config::ContainerConfig& container);

}  // namespace sortie::launcher

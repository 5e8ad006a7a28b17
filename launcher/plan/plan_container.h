// The containers of a plan: what hosts are told, and the commands that a person sees. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// The order for the hosts, without what is known only at the start: the image's id, and where
/// staged files are. For a checked config with an engine.
wire::ContainerSpec container_spec(const config::RunnerConfig& runner);

/// The engine's commands on one host, one per container, with <words> for what only the host
/// knows. An error: what this engine can not do.
Result<std::vector<std::vector<std::string>>> container_commands(const LaunchPlan& plan,
                                                                 const HostPlan& host);

/// The order to have the image, with the logins to registries.
wire::ImageOrder image_order(const config::ContainerConfig& container, std::string credentials);

/// The logins of runner.container.credentials_file, a Docker config.json; empty when there is none.
/// Its content is in no message. Errors: readable by others, no such JSON, logins kept elsewhere.
Result<std::string> read_credentials(const config::ContainerConfig& container);

}  // namespace sortie::launcher

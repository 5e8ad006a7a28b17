// Transport over kept connections (runner.ssh.persist): a client of the background process, which
// it starts if none runs.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <filesystem>
#include <memory>

#include "common/config/schema.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/transport_router.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::warm {

struct WarmParts {
  boost::asio::any_io_executor executor;
  config::RunnerConfig runner;  // runner.ssh.persist must be above 0
  std::string runner_hash;
  std::filesystem::path runner_file;
  std::filesystem::path sortie = "/proc/self/exe";  // executable of the background process
  ssh::UserEnvironment environment = ssh::UserEnvironment::from_process();
};

/// If the background process is not available, hosts are connected directly, and a single warning
/// says why. The transport must be destroyed before the io_context of the executor.
std::unique_ptr<Transport> make_warm_transport(WarmParts parts);

}  // namespace sortie::launcher::warm

namespace sortie::launcher {

/// Creates the transport of short commands: like make_transport(), but over kept connections if
/// runner.ssh.persist is set.
std::unique_ptr<TransportRouter> make_fleet_transport(boost::asio::any_io_executor executor,
                                                      const config::RunnerConfig& runner,
                                                      const RunnerBinary& binary);

/// Creates the transport of a run. With runner.on_launcher_loss = "hold T" its ranks outlive a
/// connection, and so the background process: kept connections are used as above. Otherwise it
/// connects itself, so that its ranks do not depend on another process.
std::unique_ptr<TransportRouter> make_run_transport(boost::asio::any_io_executor executor,
                                                    const config::RunnerConfig& runner,
                                                    const RunnerBinary& binary);

}  // namespace sortie::launcher

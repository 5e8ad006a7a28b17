// The way to hosts over connections that are kept (runner.ssh.persist): a client of the background
// process, which it starts where there is none.
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
  config::RunnerConfig runner;  // runner.ssh.persist is above 0
  std::string runner_hash;
  std::filesystem::path runner_file;
  std::filesystem::path sortie = "/proc/self/exe";  // what the background process is
  ssh::UserEnvironment environment = ssh::UserEnvironment::from_process();
};

/// Where the background process can not be had, hosts are signed in to directly, and one warning
/// says why. Must be destroyed before the io_context of the executor.
std::unique_ptr<Transport> make_warm_transport(WarmParts parts);

}  // namespace sortie::launcher::warm

namespace sortie::launcher {

/// make_transport() for commands that end soon: over kept connections where runner.ssh.persist asks
/// for that.
std::unique_ptr<TransportRouter> make_fleet_transport(boost::asio::any_io_executor executor,
                                                      const config::RunnerConfig& runner,
                                                      const RunnerBinary& binary);

/// For a run. With runner.on_launcher_loss = "hold T" its ranks outlive a connection, and so the
/// process that keeps it: kept connections then, as above. Else it signs in by itself: its ranks
/// depend on no other process.
std::unique_ptr<TransportRouter> make_run_transport(boost::asio::any_io_executor executor,
                                                    const config::RunnerConfig& runner,
                                                    const RunnerBinary& binary);

}  // namespace sortie::launcher

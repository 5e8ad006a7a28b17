// runner.transport: hosts reached by any program that runs a command there with its stdin and
// stdout: `docker exec -i`, `kubectl exec -i`, `srun --overlap`.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

/// The words of the template with `host` in the place of each "{host}". No shell reads them.
std::vector<std::string> template_words(const std::vector<std::string>& words,
                                        const std::string& host);

/// `words` must not be empty. The address of a host is not known (Connection::peer_address).
/// Fan-out and deadlines are those of runner.ssh.
std::unique_ptr<Transport> make_argv_transport(boost::asio::any_io_executor executor,
                                               std::vector<std::string> words,
                                               const config::SshConfig& limits);

}  // namespace sortie::launcher

// runner.transport: reaches hosts through any program that runs a command there and passes stdin
// and stdout on: `docker exec -i`, `kubectl exec -i`, `srun --overlap`.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

/// Replaces each "{host}" in the words of the template by `host`. No shell interprets the words.
std::vector<std::string> template_words(const std::vector<std::string>& words,
                                        const std::string& host);

/// Creates the transport. `words` must not be empty. The address of a host is unknown
/// (Connection::peer_address). Fan-out and timeouts are those of runner.ssh.
std::unique_ptr<Transport> make_argv_transport(boost::asio::any_io_executor executor,
                                               std::vector<std::string> words,
                                               const config::SshConfig& limits);

}  // namespace sortie::launcher

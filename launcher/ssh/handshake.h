// From a connected socket to a server whose key is known: key exchange, then the host key check
// that libssh leaves to its caller.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/session.h"

namespace sortie::launcher::ssh {

/// ErrorCode::handshake or ErrorCode::host_key.
boost::asio::awaitable<Result<>> shake_hands(std::shared_ptr<SessionCore> core,
                                             HostSettings settings,
                                             std::shared_ptr<KnownHosts> known_hosts,
                                             config::SshConfig ssh);

/// After a handshake that failed: the server had closed the connection before it said who it is, as
/// sshd does at its MaxStartups limit. Another try may do.
bool dropped_before_banner(SessionCore& core);

}  // namespace sortie::launcher::ssh

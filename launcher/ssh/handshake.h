// SSH handshake on a connected socket: key exchange, then the host key check that libssh leaves to
// its caller.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/session.h"
#include "launcher/ssh/user_files.h"

namespace sortie::launcher::ssh {

/// Does the key exchange and checks the host key. ErrorCode::handshake, ErrorCode::host_key, or an
/// error of UserFiles.
boost::asio::awaitable<Result<>> shake_hands(std::shared_ptr<SessionCore> core,
                                             HostSettings settings,
                                             std::shared_ptr<UserFiles> files,
                                             config::SshConfig ssh);

/// Returns, after a failed handshake, whether the server closed the connection before its banner,
/// as sshd does at its MaxStartups limit. A retry may succeed.
bool dropped_before_banner(SessionCore& core);

}  // namespace sortie::launcher::ssh

// Signs in with public keys, of files and of the agent. Nothing else is tried, nothing prompts.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>

#include "common/base/result.h"
#include "launcher/ssh/credentials.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/session.h"

namespace sortie::launcher::ssh {

/// ErrorCode::auth lists what was tried, what could not be, and what the server allows.
boost::asio::awaitable<Result<>> authenticate(std::shared_ptr<SessionCore> core,
                                              HostSettings settings,
                                              std::shared_ptr<Credentials> credentials,
                                              std::chrono::milliseconds timeout);

}  // namespace sortie::launcher::ssh

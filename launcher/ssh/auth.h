// Authentication by public key, with key files and the agent. No other method is tried, and nothing
// prompts.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>

#include "common/base/result.h"
#include "launcher/ssh/credentials.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/session.h"

namespace sortie::launcher::ssh {

/// Authenticates the session within `timeout`. ErrorCode::auth lists the refused keys, the unusable
/// keys, and the methods that the server allows.
boost::asio::awaitable<Result<>> authenticate(std::shared_ptr<SessionCore> core,
                                              HostSettings settings,
                                              std::shared_ptr<Credentials> credentials,
                                              std::chrono::milliseconds timeout);

}  // namespace sortie::launcher::ssh

// The container engine of this host: its client's program, what it says about itself, and its
// failures in words that say what to do.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>
#include <string_view>

#include "common/container/engine_command.h"
#include "runner/container/engine_call.h"

namespace sortie::runner::container {

using sortie::container::Engine;

struct Client {
  Engine engine = Engine::docker;
  std::string program;  // path
};

struct EngineFacts {
  Client client;
  std::string version;  // "docker 20.10.24"
  bool rootless = false;
  bool userns_remap = false;
  bool nvidia_runtime = false;
  bool live_restore = false;
  std::string root;  // where it keeps images; empty = it does not say
};

/// In PATH and the usual folders: its path, "" where it is not.
std::string find_program(const std::string& name);

/// `engine` as the config or the launcher names it ("containerd" is nerdctl or ctr). Looked for in
/// PATH and the usual folders. ErrorCode::unsupported: not there.
Result<Client> find_client(std::string_view engine);

/// ErrorCode::unsupported: it does not run, or this user may not use it.
boost::asio::awaitable<Result<EngineFacts>> ask_engine(EngineCalls& calls, Client client);

/// The answer to info_command. Errors as of ask_engine.
Result<EngineFacts> understand_engine(Client client, CallOutput output);

/// What the engine said, in one line, with what to do about the two failures that are not about the
/// image or the container: the engine does not run, this user may not use it.
Error engine_error(const Client& client, std::string_view what, const CallOutput& output,
                   ErrorCode code = ErrorCode::runner);

/// The last line that says something: engines warn first and fail last.
std::string last_words(std::string_view text);

}  // namespace sortie::runner::container

// The container engine of this host: its client program, what it reports about itself, and error
// messages that tell the user what to do.
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
  std::string version;  // such as "docker 20.10.24"
  bool rootless = false;
  bool userns_remap = false;
  bool nvidia_runtime = false;
  bool live_restore = false;
  std::string root;  // where it keeps images; empty = unknown
};

/// Path of a program in PATH or the usual folders, "" if it is not found.
std::string find_program(const std::string& name);

/// Finds the client of `engine`, which is named as in the config ("containerd" is nerdctl or ctr),
/// in PATH and the usual folders. ErrorCode::unsupported: not installed. ErrorCode::protocol: an
/// unknown name.
Result<Client> find_client(std::string_view engine);

/// ErrorCode::unsupported: this user can not start containers with the client, whatever the engine
/// grants.
Result<> may_start(const Client& client);

/// Queries the engine. ErrorCode::unsupported: it does not run, or this user may not use it.
/// ErrorCode::timeout: no answer.
boost::asio::awaitable<Result<EngineFacts>> ask_engine(EngineCalls& calls, Client client);

/// Parses the output of info_command. Errors like those of ask_engine.
Result<EngineFacts> understand_engine(Client client, CallOutput output);

/// Describes a failed call in one line, with the engine's own message. Adds what to do if the
/// failure is not about the image or the container: the engine does not run, or this user may not
/// use it.
Error engine_error(const Client& client, std::string_view what, const CallOutput& output,
                   ErrorCode code = ErrorCode::runner);

/// The last meaningful line: engines print warnings first and the failure last.
std::string last_words(std::string_view text);

}  // namespace sortie::runner::container

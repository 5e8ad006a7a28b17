// The protocol between a command and the background process that keeps connections: frames
// (common/wire/frame.h) over one Unix stream per host. The command sends one request. After the
// answer "ready" the conversation with a runner follows: plain frames to the runner, records from
// it; or an interactive session (terminal_words.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/host/terminal_channel.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::warm {

/// Frame type of a request.
inline constexpr std::uint8_t kRequestFrame = 1;
/// Maximum size of a request.
inline constexpr std::size_t kMaxRequest = 1u << 20;

/// Types of the frames sent to the client.
enum class Record : std::uint8_t {
  taken = 1,       // the request is accepted; sent within kTakenTime
  other = 2,       // this process does not serve it: another build, or about to exit
  ready = 3,       // Ready; the conversation follows
  failed = 4,      // an Error: the host could not be reached
  data = 5,        // bytes of the runner's frames
  errors = 6,      // the end of its stderr
  ended = 7,       // a ProcessStatus; the end of the stream follows
  answer = 8,      // JSON answer to list, close and retire
  error_data = 9,  // of an interactive session: bytes of its stderr
};
/// Time limit for the first record, in case the background process is stopped.
inline constexpr std::chrono::milliseconds kTakenTime{3000};

/// Requests a runner of one host for one conversation.
struct Want {
  std::string build;    // build_of()
  std::string session;  // id of the command; its hosts share settings, keys and jump hosts
  std::string host, key, address;
  config::SshConfig ssh;
  ssh::UserEnvironment environment;
  std::chrono::milliseconds heartbeat_timeout{0}, startup_timeout{0};
};

struct Request {
  enum class Kind { want, list, close, retire, terminal } kind = Kind::list;
  Want want;                 // for kind want; for kind terminal only build, host, key and address
  TerminalRequest terminal;  // for kind terminal
  std::vector<std::string> hosts;  // for kind close; empty = all
};

struct Ready {
  std::string address;
  bool warm = false;                // an open connection was used
  std::vector<std::string> names;   // of the connection stages, if not `warm`
  std::vector<std::int64_t> times;  // of these stages, in microseconds
};

std::string request_frame(const Request& request);
/// ErrorCode::protocol if it is invalid.
Result<Request> read_request(const std::string& payload);

std::string record(Record type, std::string_view payload = {});
std::string ready_record(const Ready& ready);
std::string failed_record(const Error& error);
std::string ended_record(const ProcessStatus& status);
/// ErrorCode::protocol if the payload does not match the type of the record.
Result<Ready> read_ready(const std::string& payload);
Result<ProcessStatus> read_ended(const std::string& payload);
/// Returns the error in a `failed` record.
Error read_failed(const std::string& payload);

}  // namespace sortie::launcher::warm

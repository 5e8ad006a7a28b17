// What a command and the background process that keeps connections say to each other, over one
// Unix stream per host: frames (common/wire/frame.h). The command asks once; what follows the
// answer "ready" is the conversation with a runner: plain frames towards it, and back as records;
// or a person's session (terminal_words.h).
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

/// Of the frame that a request is.
inline constexpr std::uint8_t kRequestFrame = 1;
/// A request and an answer that is no data are small.
inline constexpr std::size_t kMaxRequest = 1u << 20;

/// Types of the frames that come back.
enum class Record : std::uint8_t {
  taken = 1,       // the request is being seen to; within kTakenTime
  other = 2,       // this process does not serve it: another build's, or about to end
  ready = 3,       // Ready; the conversation follows
  failed = 4,      // an Error: the host could not be reached
  data = 5,        // bytes of the runner's frames
  errors = 6,      // what it has written to stderr (its end)
  ended = 7,       // a ProcessStatus; the end of the stream follows
  answer = 8,      // JSON, to "ls" and "close"
  error_data = 9,  // of a person's session: bytes of its stderr
};
/// For the first record. A background process that is stopped costs no more than that.
inline constexpr std::chrono::milliseconds kTakenTime{3000};

/// One host's runner, for one conversation.
struct Want {
  std::string build;    // of the runner, and of sortie
  std::string session;  // of the command: its hosts share settings, keys and jump hosts
  std::string host, key, address;
  config::SshConfig ssh;
  ssh::UserEnvironment environment;
  std::chrono::milliseconds heartbeat_timeout{0}, startup_timeout{0};
};

struct Request {
  enum class Kind { want, list, close, retire, terminal } kind = Kind::list;
  Want want;                       // of kind want; of kind terminal build, host, key and address
  TerminalRequest terminal;        // of kind terminal
  std::vector<std::string> hosts;  // of kind close; empty = all
};

struct Ready {
  std::string address;
  bool warm = false;                // no sign-in was needed
  std::vector<std::string> names;   // of the stages, when it was
  std::vector<std::int64_t> times;  // in microseconds
};

std::string request_frame(const Request& request);
/// ErrorCode::protocol when it is none.
Result<Request> read_request(const std::string& payload);

std::string record(Record type, std::string_view payload = {});
std::string ready_record(const Ready& ready);
std::string failed_record(const Error& error);
std::string ended_record(const ProcessStatus& status);
/// ErrorCode::protocol when they are not what the record's type says.
Result<Ready> read_ready(const std::string& payload);
Result<ProcessStatus> read_ended(const std::string& payload);
/// The error that a `failed` record holds.
Error read_failed(const std::string& payload);

}  // namespace sortie::launcher::warm

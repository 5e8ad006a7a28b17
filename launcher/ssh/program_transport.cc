#include "launcher/ssh/program_transport.h"

#include <fmt/core.h>

#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <utility>

#include "common/asio/token.h"

#include "launcher/local/child_process.h"
#include "launcher/ssh/fan_out.h"
#include "launcher/ssh/server_gate.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
namespace {

constexpr std::string_view kTag = "SORTIE-SSH";
constexpr std::size_t kMaxNoise = 64 * 1024;  // what shell start-up files may print before the tag
constexpr std::chrono::milliseconds kProgramPatience{1000};

// The third word of SSH_CONNECTION: the host's address as its peer sees it. Empty if invalid.
std::string address_of(std::string_view line) {
  for (int word = 0; word < 3; ++word) {
    const auto space = line.find(' ');
    if (space == std::string_view::npos) return "";
    line.remove_prefix(space + 1);
  }
  boost::system::error_code bad;
  const auto address = asio::ip::make_address(std::string(line.substr(0, line.find(' '))), bad);
  return bad ? "" : address.to_string();
}

// State shared by all hosts.
struct Shared {
  Shared(const asio::any_io_executor& e, HostProgram w)
      : executor(e),
        way(std::move(w)),
        fan_out(std::make_shared<FanOut>(e, way.fanout, kProgramPatience)) {}

  // Hosts behind the same server share its gate.
  std::shared_ptr<ServerGate> gate_of(const std::string& host) {
    auto& gate = gates[way.server_of ? way.server_of(host) : host];
    if (!gate) gate = std::make_shared<ServerGate>(executor);
    return gate;
  }

  asio::any_io_executor executor;
  const HostProgram way;
  std::shared_ptr<FanOut> fan_out;
  std::map<std::string, std::shared_ptr<ServerGate>> gates;
};
// A shell on the host that waits for its command.
struct Opened {
  std::shared_ptr<ChildProcess> process;
  std::string address;
  std::shared_ptr<FanOut::Slot> slot;
};

struct Attempt {
  Opened opened;
  std::optional<SshFailure> failure;
};

SshFailure not_started(const Shared& shared, Error error) {
  error = with_context(std::move(error), shared.way.key);
  if (error.code == ErrorCode::not_found) error.code = ErrorCode::config;
  return {std::move(error), false};
}

// `output`: of its stdout.
SshFailure no_way_in(const Shared& shared, const ChildProcess& process, std::string output) {
  if (!output.empty() && !output.ends_with('\n')) output += '\n';
  const std::string said = last_words(output + process.stderr_tail());
  return {{ErrorCode::handshake,
           fmt::format("{}: not connected within {} ms (all timeouts of runner.ssh together); it "
                       "printed{}; see whether it waits for an answer",
                       shared.way.key, shared.way.time_to_sign_in.count(),
                       said.empty() ? " nothing" : ": " + said)},
          false};
}

SshFailure too_noisy(const Shared& shared, std::size_t bytes) {
  return {
      {ErrorCode::channel, fmt::format("{}: {} bytes of other output came instead of an answer; "
                                       "keep the shell's start-up files silent for commands",
                                       shared.way.key, bytes)},
      false};
}

// Returns the line with kTag in the program's output, if it is complete.
std::optional<std::string> find_prologue(const std::string& heard) {
  std::size_t at = 0;
  if (!heard.starts_with(kTag)) {
    at = heard.find("\n" + std::string(kTag));
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  const auto end = heard.find('\n', at);
  if (end == std::string::npos) return std::nullopt;
  return heard.substr(at, end - at);
}

asio::awaitable<void> try_to_open(std::shared_ptr<Shared> shared, std::vector<std::string> words,
                                  Attempt& attempt) {
  auto started = ChildProcess::start(shared->executor, std::move(words), OnClose::kill);
  if (!started) {
    attempt.failure = not_started(*shared, std::move(started).error());
    co_return;
  }
  const auto process = *started;
  attempt.opened.slot->watch([process] { return process->bytes_moved(); });
  const auto late = std::make_shared<bool>(false);
  asio::steady_timer timer(shared->executor, shared->way.time_to_sign_in);
  timer.async_wait([process, late](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    *late = true;
    process->close();
  });
  std::string heard;
  std::array<char, 1024> buffer;
  while (heard.size() < kMaxNoise) {
    const auto count = co_await process->read_some(buffer);
    if (!count || *count == 0) break;
    heard.append(buffer.data(), *count);
    const auto line = find_prologue(heard);
    if (!line) continue;
    attempt.opened.process = process;
    attempt.opened.address = address_of(*line);
    co_return;
  }
  if (*late) {
    attempt.failure = no_way_in(*shared, *process, std::move(heard));
  } else if (heard.size() >= kMaxNoise) {
    attempt.failure = too_noisy(*shared, heard.size());
  } else {
    const auto status = co_await process->wait();
    attempt.failure = shared->way.failure(process->stderr_tail(), status.value_or(ProcessStatus{}));
  }
  process->close();
}

asio::awaitable<Result<Opened>> open_shell(std::shared_ptr<Shared> shared, std::string host) {
  const auto gate = shared->gate_of(host);
  Clock::time_point begun{};
  for (int tries = 1;; ++tries) {
    auto pass = co_await gate->enter();
    const auto attempt = std::make_unique<Attempt>();
    attempt->opened.slot = co_await shared->fan_out->enter();
    std::vector<std::string> words = shared->way.words(host);
    co_await try_to_open(shared, std::move(words), *attempt);
    if (begun == Clock::time_point{}) begun = Clock::now();
    if (!attempt->failure) {
      pass->got_in();
      co_return std::move(attempt->opened);
    }
    if (!attempt->failure->dropped) {
      if (attempt->failure->error.code == ErrorCode::connect) pass->unreachable();
      co_return std::unexpected(std::move(attempt->failure->error));
    }
    pass->dropped();
    pass.reset();
    const auto delay = retry_delay(tries - 1);
    if (Clock::now() + delay > std::max(begun, gate->last_in()) + shared->way.time_for_drops)
      co_return std::unexpected(std::move(attempt->failure->error));
    attempt->opened.slot.reset();
    asio::steady_timer timer(shared->executor, delay);
    co_await timer.async_wait(kToken);
  }
}

class ProgramConnection : public Connection {
 public:
  ProgramConnection(std::shared_ptr<Shared> shared, std::string host, Opened opened)
      : shared_(std::move(shared)),
        host_(std::move(host)),
        address_(std::move(opened.address)),
        waiting_(std::move(opened.process)),
        slot_(std::move(opened.slot)) {
    processes_.push_back(waiting_);
  }
  ~ProgramConnection() override { close(); }

  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    if (command.contains('\n'))
      co_return fail(ErrorCode::internal, "a command of more than one line");
    auto process = std::exchange(waiting_, nullptr);
    if (!process) {
      auto opened = co_await open_shell(shared_, host_);
      if (!opened) co_return std::unexpected(std::move(opened).error());
      process = std::move(opened->process);
    }
    if (closed_) {
      process->close();
      co_return fail(ErrorCode::lost, "the connection was closed here");
    }
    std::erase_if(processes_, [](const auto& weak) { return weak.expired(); });
    processes_.push_back(process);
    std::unique_ptr<Channel> channel = std::make_unique<ProcessChannel>(process);
    command += '\n';
    auto sent = co_await process->write(command);
    if (!sent) co_return std::unexpected(std::move(sent).error());
    co_return channel;
  }
  std::string peer_address() const override { return address_; }
  void settled() override { slot_.reset(); }
  void close() override {
    closed_ = true;
    slot_.reset();
    for (const auto& weak : processes_)
      if (const auto process = weak.lock()) process->close();
    processes_.clear();
    waiting_.reset();
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::string host_, address_;
  std::shared_ptr<ChildProcess> waiting_;  // connected, without a command yet
  std::vector<std::weak_ptr<ChildProcess>> processes_;
  std::shared_ptr<FanOut::Slot> slot_;
  bool closed_ = false;
};

class ProgramTransport : public Transport {
 public:
  explicit ProgramTransport(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override {
    return connect_to(shared_, std::move(host));
  }

 private:
  static asio::awaitable<Result<std::unique_ptr<Connection>>> connect_to(
      std::shared_ptr<Shared> shared, std::string host) {
    auto checked = shared->way.check ? shared->way.check() : Result<>{};
    if (!checked) co_return std::unexpected(std::move(checked).error());
    auto opened = co_await open_shell(shared, host);
    if (!opened) co_return std::unexpected(std::move(opened).error());
    std::unique_ptr<Connection> connection =
        std::make_unique<ProgramConnection>(shared, host, std::move(*opened));
    co_return connection;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::string first_script(std::string_view says) {
  return fmt::format("echo \"{} {}\"; IFS= read -r s && eval \"$s\"", kTag, says);
}

std::chrono::milliseconds time_to_sign_in(const config::SshConfig& ssh) {
  return ssh.resolve_timeout + ssh.connect_timeout + ssh.handshake_timeout + ssh.auth_timeout;
}

std::unique_ptr<Transport> make_program_transport(asio::any_io_executor executor, HostProgram way) {
  return std::make_unique<ProgramTransport>(
      std::make_shared<Shared>(std::move(executor), std::move(way)));
}

}  // namespace sortie::launcher::ssh

#include "launcher/ssh/mux_start.h"

#include <fmt/core.h>

#include <boost/asio/steady_timer.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "launcher/local/child_process.h"
#include "launcher/ssh/mux_client.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

constexpr std::string_view kMaker = "the ssh that ControlPersist asks for";
// Interval of the checks for a master that another process has started at the same socket.
constexpr milliseconds kLookAgain{300};

// Escapes the path, because ssh expands ControlPath again.
std::string escaped_path(const std::filesystem::path& path) {
  std::string text;
  for (const char c : path.string()) {
    if (c == '%') text += '%';
    text += c;
  }
  return text;
}

struct MakerEnd {
  explicit MakerEnd(const asio::any_io_executor& executor) : timer(executor) {}
  asio::steady_timer timer;
  std::optional<ProcessStatus> status;
};

asio::awaitable<void> await_end(std::shared_ptr<ChildProcess> maker,
                                std::shared_ptr<MakerEnd> end) {
  const auto status = co_await maker->wait();
  end->status = status.value_or(ProcessStatus{ProcessStatus::Kind::lost, 0, false});
  end->timer.cancel();
}

}  // namespace

std::vector<std::string> master_words(const config::SshConfig& ssh, const MasterOrder& order) {
  std::vector<std::string> words = {"ssh", "-N", "-T"};
  const auto option = [&](std::string text) { words.insert(words.end(), {"-o", std::move(text)}); };
  option("BatchMode=yes");
  // Not "yes": only "auto" removes the socket of a dead master.
  option("ControlMaster=auto");
  option(fmt::format("ControlPersist={}", order.persist));
  if (!order.by_ssh) option(fmt::format("ControlPath=\"{}\"", escaped_path(order.socket)));
  option("RemoteCommand=none");
  option("LogLevel=ERROR");
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(ssh.connect_timeout).count();
  option(fmt::format("ConnectTimeout={}", seconds));
  if (ssh.accept_new) option("StrictHostKeyChecking=accept-new");
  if (!ssh.known_hosts_file.empty())
    option(fmt::format("UserKnownHostsFile=\"{}\"", ssh.known_hosts_file));
  const auto add = [&](const char* flag, std::string value) {
    words.insert(words.end(), {flag, std::move(value)});
  };
  if (!order.config_file.empty()) add("-F", order.config_file.string());
  if (!ssh.identity_file.empty()) add("-i", ssh.identity_file);
  std::string user = order.host.user;
  if (user.empty() && !order.is_jump) user = ssh.user;
  if (!user.empty()) add("-l", user);
  auto port = static_cast<std::int64_t>(order.host.port);
  if (port == 0 && !order.is_jump) port = ssh.port;
  if (port != 0) add("-p", std::to_string(port));
  add("--", order.host.host);
  return words;
}

asio::awaitable<std::optional<SshFailure>> start_master(asio::any_io_executor executor,
                                                        std::vector<std::string> words,
                                                        std::vector<std::string> environment,
                                                        std::filesystem::path socket,
                                                        milliseconds limit) {
  auto started =
      ChildProcess::start(executor, std::move(words), OnClose::kill, std::move(environment));
  if (!started) co_return SshFailure{std::move(started).error(), false};
  const auto maker = *started;
  const auto end = std::make_shared<MakerEnd>(executor);
  spawn(executor, await_end(maker, end));
  // The started program exits as soon as its child listens in the background.
  const auto deadline = MuxClient::Clock::now() + limit;
  while (!end->status && MuxClient::Clock::now() < deadline) {
    end->timer.expires_after(kLookAgain);
    co_await end->timer.async_wait(kToken);
    if (end->status) break;
    const auto there =
        co_await MuxClient::connect(executor, socket, MuxClient::Clock::now() + kLookAgain);
    if (!there) continue;
    (*there)->close();
    end->status = ProcessStatus{ProcessStatus::Kind::exited, 0, false};
  }
  std::optional<SshFailure> failure;
  const std::string said = last_words(maker->stderr_tail());
  if (!end->status)
    failure = SshFailure{
        {ErrorCode::handshake, fmt::format("{}: not signed in within {} ms; it said: {}", kMaker,
                                           limit.count(), said.empty() ? "nothing" : said)},
        false};
  else if (!end->status->success())
    failure = read_ssh_failure(maker->stderr_tail(), *end->status, kMaker);
  maker->close();
  co_return failure;
}

}  // namespace sortie::launcher::ssh

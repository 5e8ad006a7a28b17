#include "trainer/metrics/launcher_store.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;
/// An answer is lost if the connection of a host breaks at that moment, so requests are repeated.
constexpr std::chrono::milliseconds kAskAgain{2000};

Error runner_is_gone() {
  return {ErrorCode::lost, "SORTIE_SOCKET: the runner of this host is gone"};
}

Result<> write_line(int socket, const std::string& line) {
  const std::string whole = line + "\n";
  for (std::size_t sent = 0; sent < whole.size();) {
    const ssize_t count = ::send(socket, whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(runner_is_gone());
    sent += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace

Result<LauncherStore> LauncherStore::open(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.empty() || socket_path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::config,
                fmt::format("SORTIE_SOCKET \"{}\": no path of a socket", socket_path));
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return std::unexpected(os_error(errno, "SORTIE_SOCKET " + socket_path, ErrorCode::lost));
  SORTIE_TRY(write_line(socket.get(), "{\"type\":\"listen\"}"));
  return LauncherStore(std::move(socket));
}

Result<> LauncherStore::put(const std::string& key, const std::string& value,
                            std::chrono::milliseconds limit) {
  const nlohmann::json question = {
      {"type", "store"}, {"number", ++number_}, {"do", "put"}, {"key", key}, {"value", value}};
  SORTIE_ASSIGN_OR_RETURN(const std::string nothing,
                          ask(question.dump(), number_, limit,
                              "the launcher has not acknowledged the "
                              "address of rank 0: see what happened to it"));
  (void)nothing;
  return {};
}

Result<std::string> LauncherStore::get(const std::string& key, std::chrono::milliseconds limit) {
  const nlohmann::json question = {
      {"type", "store"}, {"number", ++number_}, {"do", "get"}, {"key", key}};
  return ask(question.dump(), number_, limit,
             "the launcher has not sent the address of rank 0: see what happened to rank 0");
}

Result<std::string> LauncherStore::ask(const std::string& line, std::uint64_t number,
                                       std::chrono::milliseconds limit, const char* late) {
  const auto deadline = Clock::now() + limit;
  auto again = Clock::now();
  for (;;) {
    auto now = Clock::now();
    if (now >= deadline) return fail(ErrorCode::timeout, late);
    if (now >= again) {
      SORTIE_TRY(write_line(socket_.get(), line));
      again = now + kAskAgain;
    }
    const auto wait =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::min(again, deadline) - now);
    pollfd polled{socket_.get(), POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(wait.count()) + 1) <= 0) continue;
    char buffer[4096];
    const ssize_t count = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) return std::unexpected(runner_is_gone());
    pending_.append(buffer, static_cast<std::size_t>(count));
    for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      const auto answer = nlohmann::json::parse(pending_.substr(0, end), nullptr, false);
      pending_.erase(0, end + 1);
      // Ignores messages that do not answer this request.
      if (!answer.is_object() || answer.value("type", "") != "stored" ||
          answer.value("number", std::uint64_t{0}) != number)
        continue;
      if (answer.contains("error"))
        return fail(ErrorCode::protocol,
                    fmt::format("the launcher has refused: {}", answer.value("error", "")));
      return answer.value("value", "");
    }
  }
}

}  // namespace sortie::trainer

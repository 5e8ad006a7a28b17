#include "trainer/metrics/launcher_store.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/json_text.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;
/// An answer is lost if the connection of a host breaks at that moment, so requests are repeated.
constexpr std::chrono::milliseconds kAskAgain{2000};
/// Time for the answers of a store that has them, after the limit of a wait for others.
constexpr std::chrono::milliseconds kLastLook{200};

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

// All processes that listen on a rank's socket receive the answers of all, so each begins with
// numbers of its own.
LauncherStore::LauncherStore(Fd socket)
    : socket_(std::move(socket)),
      number_(std::uint64_t{std::random_device()()} << 20),
      again_(kAskAgain) {}

void LauncherStore::interrupt() const {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

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

LauncherStore::Question LauncherStore::question(const char* what, const std::string& key,
                                                const std::string* value) {
  nlohmann::json line = {{"type", "store"}, {"number", ++number_}, {"do", what}, {"key", key}};
  if (value != nullptr) line["value"] = *value;
  // The text of a driver or of a path may not be UTF-8.
  return {number_, json_text(line), {}};
}

Result<> LauncherStore::put(const std::string& key, const std::string& value,
                            std::chrono::milliseconds limit) {
  Question put = question("put", key, &value);
  SORTIE_TRY(ask(std::span(&put, 1), limit));
  if (put.answer) return {};
  return fail(
      ErrorCode::timeout,
      fmt::format("the launcher has not acknowledged \"{}\" of this rank: see what happened "
                  "to it",
                  key));
}

Result<std::string> LauncherStore::get(const std::string& key, std::chrono::milliseconds limit,
                                       const std::string& missing) {
  Question get = question("get", key);
  SORTIE_TRY(ask(std::span(&get, 1), limit));
  if (!get.answer) return fail(ErrorCode::timeout, missing);
  return *std::move(get.answer);
}

Result<std::vector<std::optional<std::string>>> LauncherStore::get_all(
    std::span<const std::string> keys, std::chrono::milliseconds limit) {
  constexpr std::size_t kAtOnce = 128;  // the runner keeps few answers that are not read yet
  const auto deadline = Clock::now() + limit;
  std::vector<std::optional<std::string>> values;
  for (std::size_t begin = 0; begin < keys.size(); begin += kAtOnce) {
    std::vector<Question> questions;
    for (const std::string& key : keys.subspan(begin, std::min(kAtOnce, keys.size() - begin)))
      questions.push_back(question("get", key));
    SORTIE_TRY(ask(questions, std::max(std::chrono::duration_cast<std::chrono::milliseconds>(
                                           deadline - Clock::now()),
                                       kLastLook)));
    for (Question& one : questions) values.push_back(std::move(one.answer));
  }
  return values;
}

Result<> LauncherStore::take(const std::string& line, std::span<Question> questions) {
  const auto answer = nlohmann::json::parse(line, nullptr, false);
  // Ignores messages that do not answer these questions.
  if (!answer.is_object() || answer.value("type", "") != "stored") return {};
  const std::uint64_t index =
      answer.value("number", std::uint64_t{0}) - questions.front().number;  // may wrap around
  if (index >= questions.size()) return {};
  if (answer.contains("error"))
    return fail(ErrorCode::protocol,
                fmt::format("the launcher has refused: {}", answer.value("error", "")));
  questions[index].answer = answer.value("value", "");
  return {};
}

Result<> LauncherStore::ask(std::span<Question> questions, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  auto again = Clock::now();
  while (
      !std::ranges::all_of(questions, [](const Question& one) { return one.answer.has_value(); })) {
    const auto now = Clock::now();
    if (now >= deadline) return {};
    if (now >= again) {
      for (const Question& one : questions)
        if (!one.answer) SORTIE_TRY(write_line(socket_.get(), one.line));
      again = now + again_;
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
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      SORTIE_TRY(take(line, questions));
    }
  }
  return {};
}

}  // namespace sortie::trainer

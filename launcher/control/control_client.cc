#include "launcher/control/control_client.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "launcher/control/control_socket.h"

namespace sortie::launcher {
namespace {
using Clock = std::chrono::steady_clock;
constexpr std::size_t kMaxAnswerLine = 1u << 20;
}  // namespace

Result<ControlClient> ControlClient::connect(const std::filesystem::path& run, unsigned epoch) {
  ControlClient client;
  SORTIE_ASSIGN_OR_RETURN(client.socket_, connect_control(run, epoch));
  return client;
}

bool ControlClient::take() {
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    if (count > 0) pending_.append(buffer, static_cast<std::size_t>(count));
    if (count == 0 || pending_.size() > kMaxAnswerLine) {
      while (next_line()) {
      }
      return false;
    }
  }
}

std::optional<nlohmann::json> ControlClient::next_line() {
  const auto end = pending_.find('\n');
  if (end == pending_.npos) return std::nullopt;
  auto json = nlohmann::json::parse(pending_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  pending_.erase(0, end + 1);
  if (!json.is_object()) json = nlohmann::json::object();
  const auto event = json.find("event");
  const auto code = json.find("exit_code");
  if (event != json.end() && *event == "end" && code != json.end() && code->is_number_integer())
    end_exit_code_ = code->get<int>();
  return json;
}

Result<nlohmann::json> ControlClient::ask(const nlohmann::json& request,
                                          std::chrono::milliseconds limit) {
  nlohmann::json line = request;
  line["sortie"] = kControlVersion;
  const std::string text = line.dump() + "\n";
  if (::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(text.size()))
    return fail(ErrorCode::lost, "the supervisor is gone");
  const auto deadline = Clock::now() + limit;
  for (;;) {
    while (auto answer = next_line()) {
      if (answer->contains("event")) continue;
      if (answer->value("ok", false)) return std::move(*answer);
      return fail(ErrorCode::protocol,
                  "the supervisor refused: " + answer->value("error", std::string("no reason")));
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0)
      return fail(ErrorCode::timeout,
                  fmt::format("the supervisor does not answer within {:.3g} s; is it stopped?",
                              static_cast<double>(limit.count()) / 1000));
    pollfd polled = {socket_.get(), POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(left)) > 0 && !take() &&
        pending_.find('\n') == pending_.npos)
      return fail(ErrorCode::lost, "the supervisor is gone");
  }
}

}  // namespace sortie::launcher

#include "launcher/warm/connections_command.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/printable.h"
#include "common/base/quantity.h"
#include "common/wire/frame.h"
#include "launcher/warm/place.h"
#include "launcher/warm/request.h"

namespace sortie::launcher::warm {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kAnswerMs = 3000;

/// Sends the request to one background process and returns its answer.
Result<OrderedJson> ask(const Place& place, const std::string& build, const Request& request) {
  SORTIE_ASSIGN_OR_RETURN(const Fd socket, place.connect(build));
  const std::string frame = request_frame(request);
  if (::write(socket.get(), frame.data(), frame.size()) != static_cast<ssize_t>(frame.size()))
    return std::unexpected(os_error(errno, "connections", ErrorCode::lost));
  wire::FrameDecoder decoder;
  for (;;) {
    pollfd polled{socket.get(), POLLIN, 0};
    if (::poll(&polled, 1, kAnswerMs) <= 0)
      return fail(
          ErrorCode::timeout,
          fmt::format("connections: {}: the background process does not answer; see whether "
                      "it is stopped",
                      (place.folder() / build).string()));
    char bytes[16 << 10];
    const ssize_t count = ::read(socket.get(), bytes, sizeof bytes);
    if (count <= 0) return fail(ErrorCode::lost, "connections: the background process has ended");
    decoder.feed({bytes, static_cast<std::size_t>(count)});
    SORTIE_ASSIGN_OR_RETURN(const auto answer, decoder.next());
    if (!answer) continue;
    OrderedJson json = OrderedJson::parse(answer->payload, nullptr, /*allow_exceptions=*/false);
    if (answer->type != static_cast<std::uint8_t>(Record::answer) || !json.is_object())
      return fail(ErrorCode::protocol,
                  "connections: the background process sent an invalid answer; run `sortie "
                  "connections close`");
    return json;
  }
}

/// Returns the answers of all background processes. One that has just exited keeps no connections
/// and is skipped.
Result<std::vector<OrderedJson>> ask_all(const Request& request) {
  SORTIE_ASSIGN_OR_RETURN(const Place place, Place::open());
  std::vector<OrderedJson> answers;
  for (const std::string& build : place.builds()) {
    auto answer = ask(place, build, request);
    if (answer)
      answers.push_back(std::move(*answer));
    else if (answer.error().code != ErrorCode::lost)
      return std::unexpected(std::move(answer).error());
  }
  return answers;
}

std::string table(const OrderedJson& all) {
  if (all.empty())
    return "no connection is kept; runner.ssh.persist = \"10m\" keeps them after a command\n";
  std::size_t host_width = 4, address_width = 7;
  for (const OrderedJson& one : all) {
    host_width = std::max(host_width, printable(one.value("host", "")).size());
    address_width = std::max(address_width, printable(one.value("address", "")).size());
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:<8}  {:>8}  {:>8}  {:>10}\n", "host", host_width,
                                "address", address_width, "state", "idle", "ends in", "bytes");
  for (const OrderedJson& one : all) {
    const auto time = [&](const char* key) {
      return one.contains(key) ? short_time(one.value(key, 0.0)) : std::string("-");
    };
    out += fmt::format("{:<{}}  {:<{}}  {:<8}  {:>8}  {:>8}  {:>10}\n",
                       printable(one.value("host", "")), host_width,
                       printable(one.value("address", "")), address_width, one.value("state", ""),
                       time("idle_s"), time("ends_in_s"), one.value("bytes", std::uint64_t{0}));
  }
  return out;
}

}  // namespace

Result<std::string> list_connections(bool json) {
  SORTIE_ASSIGN_OR_RETURN(const auto answers, ask_all(Request{}));
  OrderedJson all = OrderedJson::array();
  for (const OrderedJson& answer : answers)
    for (const OrderedJson& one : answer.value("connections", OrderedJson::array()))
      all.push_back(one);
  std::stable_sort(all.begin(), all.end(), [](const OrderedJson& one, const OrderedJson& other) {
    return one.value("host", "") < other.value("host", "");
  });
  if (!json) return table(all);
  const OrderedJson whole = {{"schema", "sortie/connections/1"}, {"connections", std::move(all)}};
  return json_text(whole, 2) + "\n";
}

Result<std::string> close_connections(const std::vector<std::string>& hosts) {
  Request request;
  request.kind = Request::Kind::close;
  request.hosts = hosts;
  SORTIE_ASSIGN_OR_RETURN(const auto answers, ask_all(request));
  std::size_t closed = 0, busy = 0;
  for (const OrderedJson& answer : answers) {
    closed += answer.value("closed", std::size_t{0});
    busy += answer.value("busy", std::size_t{0});
  }
  std::string out =
      fmt::format("{} {} closed\n", closed, closed == 1 ? "connection" : "connections");
  if (busy > 0)
    out += fmt::format("{} in use: closed when {} command or session ends\n", busy,
                       busy == 1 ? "its" : "their");
  return out;
}

}  // namespace sortie::launcher::warm

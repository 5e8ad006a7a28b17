#include "launcher/control/control_server.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/json_text.h"
#include "launcher/control/control_socket.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr std::size_t kMaxClients = 128;
constexpr std::size_t kMaxRequestBytes = 64u << 10;
constexpr int kMaxCutMs = 3'600'000;

std::string line_of(OrderedJson fields) {
  OrderedJson line = {{"sortie", kControlVersion}};
  line.update(fields);
  return json_text(line) + "\n";
}

std::string refusal(const std::string& why) {
  OrderedJson fields = {{"ok", false}, {"error", why}};
  return line_of(std::move(fields));
}

/// Sends without blocking. Answers are short and requested one by one, so a client whose buffer is
/// full is dropped.
bool send_line(int socket, const std::string& line) {
  return ::send(socket, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

}  // namespace

ControlServer::ControlServer(asio::any_io_executor executor, Orders orders)
    : executor_(executor), orders_(std::move(orders)), acceptor_(executor) {}

ControlServer::~ControlServer() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<> ControlServer::open(const std::filesystem::path& run, unsigned epoch) {
  SORTIE_ASSIGN_OR_RETURN(Fd socket, listen_control(run, epoch));
  path_ = control_path(run, epoch);
  acceptor_.assign(asio::local::stream_protocol(), socket.release());
  spawn(executor_, accept_loop());
  return {};
}

asio::awaitable<void> ControlServer::accept_loop() {
  for (;;) {
    auto [error, socket] = co_await acceptor_.async_accept(kToken);
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) co_return;
    if (error) {  // such as no descriptors left, which is temporary
      asio::steady_timer pause(executor_, std::chrono::seconds(1));
      co_await pause.async_wait(kToken);
      continue;
    }
    const auto client = std::make_shared<Socket>(std::move(socket));
    if (const auto peer = check_peer(client->native_handle()); !peer) {
      send_line(client->native_handle(), refusal(peer.error().message));
      continue;
    }
    if (clients_.size() >= kMaxClients) {
      send_line(client->native_handle(), refusal("too many clients; close some"));
      continue;
    }
    clients_.insert(client);
    spawn(executor_, serve(client));
  }
}

asio::awaitable<void> ControlServer::serve(std::shared_ptr<Socket> client) {
  std::array<char, 1024> buffer;
  std::string pending;
  bool good = true;
  while (good) {
    const auto [error, count] = co_await client->async_read_some(asio::buffer(buffer), kToken);
    if (error) break;
    pending.append(buffer.data(), count);
    for (std::size_t end; good && (end = pending.find('\n')) != pending.npos;) {
      std::string request = pending.substr(0, end);
      pending.erase(0, end + 1);
      const std::string line = co_await answer(std::move(request));
      good = send_line(client->native_handle(), line);
    }
    if (pending.size() > kMaxRequestBytes) {
      send_line(client->native_handle(), refusal("the request is too long"));
      break;
    }
  }
  clients_.erase(client);
}

asio::awaitable<std::string> ControlServer::answer(std::string request) {
  const auto json = nlohmann::json::parse(request, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) co_return refusal("a request is one JSON object in a line");
  const auto version = json.find("sortie");
  if (version == json.end() || !version->is_number_integer() || *version != kControlVersion)
    co_return refusal(
        fmt::format("this supervisor speaks version {} of the control protocol", kControlVersion));
  const auto op = json.find("op");
  const std::string name = op != json.end() && op->is_string() ? op->get<std::string>() : "";
  OrderedJson fields = {{"ok", true}};
  if (name == "status") {
    fields.update(orders_.status());
  } else if (name == "stop") {
    const auto now = json.find("now");
    orders_.stop(now != json.end() && now->is_boolean() && now->get<bool>());
  } else if (name == "sites" && orders_.sites) {
    const auto said = co_await orders_.sites(json);
    if (!said) co_return refusal(said.error().message);
    fields.update(*said);
  } else if (name == "cut" && orders_.cut) {
    const auto host = json.find("host"), time = json.find("ms");
    if (host == json.end() || !host->is_string() || time == json.end() ||
        !time->is_number_integer() || *time <= 0 || *time > kMaxCutMs)
      co_return refusal(fmt::format("cut needs host, and ms from 1 to {}", kMaxCutMs));
    const auto done =
        orders_.cut(host->get<std::string>(), std::chrono::milliseconds(time->get<int>()));
    if (!done) co_return refusal(done.error().message);
  } else {
    co_return refusal("no such order; there are: status, stop, sites, cut");
  }
  co_return line_of(std::move(fields));
}

void ControlServer::finish(const OrderedJson& line) {
  const std::string text = line_of(line);
  for (const auto& client : clients_) {
    send_line(client->native_handle(), text);
    boost::system::error_code ignored;
    client->close(ignored);
  }
  clients_.clear();
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

}  // namespace sortie::launcher

#include "launcher/ssh/mux_client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/asio/token.h"
#include "common/base/peer.h"
#include "launcher/ssh/control_path.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

constexpr std::uint32_t kAliveRequest = 1;
// Pause before the next try if the listen queue of a busy master (64 entries) is full.
constexpr milliseconds kQueueIsFull{10};

bool names_nobody(int why) {
  return why == ENOENT || why == ECONNREFUSED || why == ENOTDIR || why == ENOTSOCK;
}

Result<Fd> unix_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return std::unexpected(os_error(errno, "socket; raise `ulimit -n`"));
  return socket;
}

// Connects without Asio: with a full queue the kernel returns EAGAIN, which Asio takes for "in
// progress".
asio::awaitable<Result<Fd>> connect_unix(asio::any_io_executor executor, std::filesystem::path path,
                                         MuxClient::Clock::time_point deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = path.string();
  if (name.size() >= sizeof address.sun_path)
    co_return fail(ErrorCode::config,
                   fmt::format("ControlPath is {} bytes long, a socket's name at most {}; shorten "
                               "it, with %C for example",
                               name.size(), sizeof address.sun_path - 1));
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  asio::steady_timer pause(executor);
  for (;;) {
    auto socket = unix_socket();
    if (!socket) co_return socket;
    if (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      co_return socket;
    if (names_nobody(errno)) co_return fail(ErrorCode::not_found, "no master listens there");
    if (errno != EAGAIN) co_return std::unexpected(os_error(errno, "connect"));
    if (MuxClient::Clock::now() + kQueueIsFull > deadline)
      co_return fail(ErrorCode::timeout, "the master accepts no connection");
    pause.expires_after(kQueueIsFull);
    co_await pause.async_wait(kToken);
  }
}

// Checks the user id of the listener, because it gets our descriptors and could impersonate the
// host.
Result<> check_listener(int socket) {
  SORTIE_ASSIGN_OR_RETURN(const ucred peer, peer_of(socket));
  if (peer.uid == ::geteuid() || peer.uid == 0) return {};
  return fail(ErrorCode::config, fmt::format("the socket is the user id {}'s; use a ControlPath in "
                                             "a folder of yours",
                                             peer.uid));
}

}  // namespace

struct MuxClient::Deadline {
  Deadline(const std::shared_ptr<MuxClient>& client, Clock::time_point when)
      : timer(client->socket_.get_executor(), when) {
    // The handler may already be queued when the scope ends, hence `over`.
    timer.async_wait([client, passed = over](const boost::system::error_code& cancelled) {
      if (cancelled || *passed) return;
      client->late_ = true;
      client->close();
    });
  }
  ~Deadline() { *over = true; }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  const std::shared_ptr<bool> over = std::make_shared<bool>(false);
  asio::steady_timer timer;
};

asio::awaitable<Result<std::shared_ptr<MuxClient>>> MuxClient::connect(
    asio::any_io_executor executor, std::filesystem::path path, Clock::time_point deadline) {
  auto socket = co_await connect_unix(executor, std::move(path), deadline);
  if (!socket) co_return std::unexpected(std::move(socket).error());
  auto checked = check_listener(socket->get());
  if (!checked) co_return std::unexpected(std::move(checked).error());
  const auto client = std::make_shared<MuxClient>(executor);
  client->socket_.assign(asio::local::stream_protocol(), socket->release());
  const Deadline limit(client, deadline);
  auto greeted = co_await client->greet();
  if (!greeted) {
    client->close();
    co_return std::unexpected(std::move(greeted).error());
  }
  co_return client;
}

asio::awaitable<Result<>> MuxClient::greet() {
  const auto self = shared_from_this();
  const std::string words = mux_hello() + mux_alive_check(kAliveRequest);
  auto sent = co_await send(words);
  if (!sent) co_return sent;
  auto hello = co_await next();
  if (!hello) co_return std::unexpected(std::move(hello).error());
  if (hello->type != MuxType::hello)
    co_return fail(ErrorCode::protocol, "the master's first message is not a hello");
  if (hello->value != kMuxVersion)
    co_return fail(ErrorCode::protocol, fmt::format("the master speaks version {} of the protocol, "
                                                    "Sortie {}",
                                                    hello->value, kMuxVersion));
  auto alive = co_await next();
  if (!alive) co_return std::unexpected(std::move(alive).error());
  if (alive->type != MuxType::alive || alive->id != kAliveRequest)
    co_return fail(ErrorCode::protocol, "the master does not say whether it is alive");
  master_ = static_cast<pid_t>(alive->value);
  co_return Result<>{};
}

asio::awaitable<Result<>> MuxClient::open(std::string request, std::vector<Fd> descriptors,
                                          Clock::time_point deadline) {
  const auto self = shared_from_this();
  const Deadline limit(self, deadline);
  auto sent = co_await send(request);
  for (const Fd& descriptor : descriptors)
    if (sent) sent = co_await send_descriptor(descriptor);
  if (!sent) co_return sent;
  descriptors.clear();  // the master has its own copies; when it closes them we see EOF
  auto answer = co_await next();
  if (!answer) co_return std::unexpected(std::move(answer).error());
  switch (answer->type) {
    case MuxType::session_opened:
      if (answer->id == kOpenRequest) co_return Result<>{};
      break;
    case MuxType::failure:
      co_return fail(ErrorCode::channel, answer->text);
    case MuxType::permission_denied:
      co_return fail(
          ErrorCode::channel,
          fmt::format("{}: the master asks a person first (ControlMaster ask)", answer->text));
    default:
      break;
  }
  co_return fail(ErrorCode::protocol, "the master does not answer the request");
}

asio::awaitable<Result<MuxMessage>> MuxClient::next() {
  const auto self = shared_from_this();
  const auto head = co_await read(4);
  if (!head) co_return std::unexpected(head.error());
  const auto length = mux_length(*head);
  if (!length) co_return std::unexpected(with_context(length.error(), "the master sent"));
  const auto body = co_await read(*length);
  if (!body) co_return std::unexpected(body.error());
  auto message = parse_mux_message(*body);
  if (!message) co_return std::unexpected(with_context(message.error(), "the master sent"));
  co_return message;
}

asio::awaitable<Result<std::string>> MuxClient::read(std::size_t size) {
  const auto self = shared_from_this();
  std::string bytes(size, '\0');
  const auto [error, count] = co_await asio::async_read(socket_, asio::buffer(bytes), kToken);
  if (error) co_return std::unexpected(broken("read"));
  co_return bytes;
}

asio::awaitable<Result<>> MuxClient::send(std::string_view bytes) {
  const auto self = shared_from_this();
  const auto [error, count] =
      co_await asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), kToken);
  if (error) co_return std::unexpected(broken("write"));
  co_return Result<>{};
}

// Sends each descriptor with one byte, as the master expects.
asio::awaitable<Result<>> MuxClient::send_descriptor(const Fd& descriptor) {
  const auto self = shared_from_this();
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = descriptor.get();
  std::memcpy(CMSG_DATA(head), &number, sizeof number);
  for (;;) {
    if (!socket_.is_open()) co_return std::unexpected(broken("write"));
    const ssize_t count = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count == 1) co_return Result<>{};
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) co_return std::unexpected(broken("write"));
    const auto [error] =
        co_await socket_.async_wait(asio::local::stream_protocol::socket::wait_write, kToken);
    if (error) co_return std::unexpected(broken("write"));
  }
}

Error MuxClient::broken(std::string_view what) const {
  if (late_) return {ErrorCode::timeout, "the master did not answer in time"};
  return {ErrorCode::lost, fmt::format("{}: the master has ended the connection", what)};
}

void MuxClient::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace sortie::launcher::ssh

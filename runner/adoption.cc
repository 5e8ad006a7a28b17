#include "runner/adoption.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/log.h"
#include "common/base/peer.h"
#include "common/wire/codec.h"
#include "runner/cleanup/run_folder.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {
namespace {

using Stream = boost::asio::posix::stream_descriptor;
constexpr std::size_t kMaxClients = 8;
constexpr char kTaken = 'k';  // any other answer is the reason for the refusal
constexpr std::string_view kSocketName = "/adopt.sock";

Result<sockaddr_un> address_of(const std::string& folder) {
  const std::string path = folder + std::string(kSocketName);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::io, path + ": longer than a socket path may be");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool is_own(int socket) {
  const Result<ucred> peer = peer_of(socket);
  return peer && peer->uid == ::geteuid();
}

}  // namespace

Result<> AdoptionListener::open(const std::string& folder) {
  return listener_.open(folder + std::string(kSocketName), kMaxClients);
}

void AdoptionListener::take_client(Fd fd) {
  if (!is_own(fd.get()) || clients_.size() >= kMaxClients) return;
  auto client = std::make_shared<Client>(io_);
  client->stream.assign(fd.release());
  clients_.push_back(client);
  await_data(client);
}

void AdoptionListener::await_data(const std::shared_ptr<Client>& client) {
  client->stream.async_wait(Stream::wait_read,
                            [this, client](const boost::system::error_code& error) {
                              if (error) return;
                              if (receive(client)) return await_data(client);
                              std::erase(clients_, client);
                              if (client != current_) client->stream.close();
                            });
}

bool AdoptionListener::receive(const std::shared_ptr<Client>& client) {
  char bytes[16 << 10];
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t count =
      ::recvmsg(client->stream.native_handle(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) return false;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item; item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (item->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
      client->descriptors.emplace_back(fd);
    }
  }
  client->decoder.feed({bytes, static_cast<std::size_t>(count)});
  const auto frame = client->decoder.next();
  if (!frame) return false;
  return frame->has_value() ? offer(client, **frame) : client->descriptors.size() <= 2;
}

bool AdoptionListener::offer(const std::shared_ptr<Client>& client, const wire::Frame& frame) {
  const auto message = wire::decode(frame);
  const auto* adopt = message ? std::get_if<wire::Adopt>(&*message) : nullptr;
  std::string answer(1, kTaken);
  if (!adopt || client->descriptors.size() != 2) {
    answer = "the offer of a connection is malformed";
  } else if (const auto taken = on_offer_(*adopt, std::move(client->descriptors[0]),
                                          std::move(client->descriptors[1]));
             !taken) {
    answer = taken.error().message;
  }
  ::send(client->stream.native_handle(), answer.data(), answer.size(), MSG_NOSIGNAL);
  if (answer[0] == kTaken && answer.size() == 1) {
    if (current_) current_->stream.close();
    current_ = client;
  }
  return false;
}

boost::asio::awaitable<Result<Fd>> offer_connection(boost::asio::io_context& io, wire::Adopt adopt,
                                                    int in, int out) {
  const auto folder =
      find_run_folder(run_folder_name(adopt.run_id, adopt.attempt, adopt.node_rank));
  if (!folder) co_return std::unexpected(folder.error());
  const auto address = address_of(*folder);
  if (!address) co_return std::unexpected(address.error());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) co_return std::unexpected(os_error(errno, "socket"));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(sockaddr_un)) != 0) {
    // ECONNREFUSED: the socket has no listener. Other errors say nothing about the runner.
    const int error = errno;
    if (error != ECONNREFUSED && (error != ENOENT || may_be_held(*folder)))
      co_return std::unexpected(os_error(error, address->sun_path));
    co_return fail(ErrorCode::lost, "no runner holds this run here: its ranks are gone");
  }
  if (!is_own(fd.get()))
    co_return fail(ErrorCode::auth, "the process that holds this run belongs to another user");

  std::string bytes = wire::encode(std::move(adopt));
  const int descriptors[2] = {in, out};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptors)] = {};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* item = CMSG_FIRSTHDR(&message);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(item), descriptors, sizeof descriptors);
  // Blocks for some milliseconds at most, unless the holder is frozen: then the launcher's deadline
  // ends it.
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        sent == 0 ? ::sendmsg(fd.get(), &message, MSG_NOSIGNAL)
                  : ::send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) co_return std::unexpected(os_error(errno, "to the runner that holds this run"));
    sent += static_cast<std::size_t>(count);
  }
  Stream stream(io, fd.release());
  char answer[2048];
  const auto [error, count] = co_await stream.async_read_some(boost::asio::buffer(answer), kToken);
  if (error) co_return fail(ErrorCode::lost, "the runner that held this run has just ended");
  if (count != 1 || answer[0] != kTaken)
    co_return fail(ErrorCode::runner, std::string(answer, count));
  co_return Fd(stream.release());
}

}  // namespace sortie::runner

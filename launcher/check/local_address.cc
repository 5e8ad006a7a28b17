#include "launcher/check/local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "common/base/fd.h"

namespace sortie::launcher::check {

std::string address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(peer.c_str(), "9", &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  const Fd socket(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only selects the route.
  if (!socket || ::connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0) return "";
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  char text[NI_MAXHOST] = "";
  if (::getsockname(socket.get(), generic, &length) != 0 ||
      ::getnameinfo(generic, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text;
}

}  // namespace sortie::launcher::check

#include "launcher/control/control_socket.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "common/base/peer.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// Address of `name` in the folder that descriptor `folder` refers to, independent of the length of
/// its path.
sockaddr_un address_in(int folder, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", folder, name);
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

struct SocketPlace {
  Fd folder, socket;
  sockaddr_un address{};
};

Result<SocketPlace> place(const fs::path& run, unsigned epoch, int flags) {
  SocketPlace place;
  place.folder.reset(::open(run.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!place.folder) return std::unexpected(os_error(errno, run.string()));
  place.socket.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!place.socket) return std::unexpected(os_error(errno, "socket"));
  place.address = address_in(place.folder.get(), control_path(run, epoch).filename().string());
  return place;
}

}  // namespace

fs::path control_path(const fs::path& run, unsigned epoch) {
  return run / fmt::format("{}{}{}", kControlPrefix, epoch, kControlSuffix);
}

Result<Fd> listen_control(const fs::path& run, unsigned epoch) {
  SORTIE_ASSIGN_OR_RETURN(SocketPlace at, place(run, epoch, SOCK_NONBLOCK));
  const fs::path path = control_path(run, epoch);
  const mode_t mask = ::umask(0177);
  const int bound =
      ::bind(at.socket.get(), reinterpret_cast<const sockaddr*>(&at.address), sizeof at.address);
  const int error = errno;
  ::umask(mask);
  if (bound != 0) return std::unexpected(os_error(error, path.string()));
  if (::listen(at.socket.get(), 64) != 0) return std::unexpected(os_error(errno, path.string()));
  return std::move(at.socket);
}

Result<Fd> connect_control(const fs::path& run, unsigned epoch) {
  SORTIE_ASSIGN_OR_RETURN(SocketPlace at, place(run, epoch, 0));
  // A stopped supervisor accepts no connection once its queue is full: bounds the wait.
  const timeval limit{3, 0};
  ::setsockopt(at.socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(at.socket.get(), reinterpret_cast<const sockaddr*>(&at.address),
                sizeof at.address) != 0)
    return std::unexpected(os_error(errno, control_path(run, epoch).string(), ErrorCode::lost));
  SORTIE_TRY(check_peer(at.socket.get()));
  return std::move(at.socket);
}

Result<> check_peer(int socket) {
  SORTIE_ASSIGN_OR_RETURN(const ucred peer, peer_of(socket));
  if (peer.uid != ::geteuid())
    return fail(ErrorCode::auth,
                fmt::format("control socket: refused: the process at the other end belongs to uid "
                            "{}, this one to uid {}; only the user of a run may control it",
                            peer.uid, ::geteuid()));
  return {};
}

}  // namespace sortie::launcher

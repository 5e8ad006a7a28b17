#include "launcher/warm/place.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/base/hex.h"
#include "common/base/private_folder.h"
#include "common/files/piece.h"
#include "launcher/control/control_socket.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher::warm {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSocketEnd = ".sock";
constexpr std::size_t kBuildLetters = 16;
constexpr off_t kLargeLog = 1 << 20;
/// Maximum number of clients that may connect at the same moment.
constexpr int kListenBacklog = 4096;

Result<fs::path> wanted_folder() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime && *runtime == '/') {
    struct stat info {};
    if (::stat(runtime, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid())
      return fs::path(runtime) / "sortie";
  }
  SORTIE_ASSIGN_OR_RETURN(const fs::path state, state_folder(""));
  return state / "warm";
}

/// Address through /proc/self/fd, so that neither the length of the folder's path nor a rename
/// matters.
sockaddr_un socket_address(int folder, const std::string& build) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}{}", folder, build, kSocketEnd);
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

}  // namespace

std::string build_of(const std::string& runner_hash) {
  struct stat info {};
  ::stat("/proc/self/exe", &info);
  const std::string text = fmt::format("{} {} {} {} {}.{}", runner_hash, info.st_dev, info.st_ino,
                                       info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  return hex(files::hash_bytes(text)).substr(0, kBuildLetters);
}

Result<Place> Place::open() {
  Place place;
  SORTIE_ASSIGN_OR_RETURN(place.path_, wanted_folder());
  std::error_code error;
  fs::create_directories(place.path_.parent_path(), error);
  if (::mkdir(place.path_.c_str(), 0700) != 0 && errno != EEXIST)
    return std::unexpected(os_error(errno, place.path_.string()));
  place.folder_.reset(::open(place.path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!place.folder_ || ::fstat(place.folder_.get(), &info) != 0)
    return std::unexpected(os_error(errno, place.path_.string()));
  if (!is_private_folder(info))
    return fail(ErrorCode::auth,
                fmt::format("{}: is of uid {} with mode {:04o}: connections are kept only where no "
                            "other user may enter; remove the folder, or set XDG_RUNTIME_DIR",
                            place.path_.string(), info.st_uid, info.st_mode & 07777));
  return place;
}

std::vector<std::string> Place::builds() const {
  std::vector<std::string> builds;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    std::string name = entry.path().filename().string();
    if (name.size() == kBuildLetters + kSocketEnd.size() && name.ends_with(kSocketEnd))
      builds.push_back(name.substr(0, kBuildLetters));
  }
  return builds;
}

Result<Fd> Place::connect(const std::string& build) const {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return std::unexpected(os_error(errno, "socket"));
  const sockaddr_un address = socket_address(folder_.get(), build);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return std::unexpected(os_error(errno, (path_ / build).string() + std::string(kSocketEnd),
                                    errno == EAGAIN ? ErrorCode::timeout : ErrorCode::lost));
  SORTIE_TRY(check_peer(socket.get()));
  return socket;
}

Result<Fd> Place::listen(const std::string& build) const {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return std::unexpected(os_error(errno, "socket"));
  remove_socket(build);
  const sockaddr_un address = socket_address(folder_.get(), build);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), kListenBacklog) != 0)
    return std::unexpected(os_error(errno, (path_ / build).string() + std::string(kSocketEnd)));
  return socket;
}

Result<Fd> Place::lock(const std::string& build) const {
  const std::string name = build + ".lock";
  Fd file(::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return std::unexpected(os_error(errno, (path_ / name).string()));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return std::unexpected(os_error(errno, (path_ / name).string(), ErrorCode::lost));
  // The previous holder may have removed the file between the two calls.
  struct stat mine {
  }, there{};
  if (::fstat(file.get(), &mine) != 0 ||
      ::fstatat(folder_.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0 ||
      mine.st_ino != there.st_ino)
    return fail(ErrorCode::lost, (path_ / name).string() + ": was replaced");
  return file;
}

void Place::remove_socket(const std::string& build) const {
  ::unlinkat(folder_.get(), (build + std::string(kSocketEnd)).c_str(), 0);
}

Result<Fd> Place::open_log() const {
  Fd file(
      ::openat(folder_.get(), "log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return std::unexpected(os_error(errno, (path_ / "log").string()));
  if (info.st_size > kLargeLog && ::ftruncate(file.get(), 0) != 0)
    return std::unexpected(os_error(errno, (path_ / "log").string()));
  return file;
}

}  // namespace sortie::launcher::warm

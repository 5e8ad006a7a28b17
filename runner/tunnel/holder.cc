#include "runner/tunnel/holder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sodium.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "runner/process/process_tree.h"
#include "runner/tunnel/holder_orders.h"
#include "runner/tunnel/link_device.h"
#include "runner/tunnel/tool.h"
#include "runner/tunnel/wireguard.h"

namespace sortie::runner::tunnel {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kSocketFolder = "/var/run/wireguard";  // folder of wireguard-go
constexpr milliseconds kServiceStart{3000};
constexpr std::size_t kMaxLine = 1u << 20;
constexpr std::size_t kKeptOutput = 400;
constexpr useconds_t kPause = 5000;

std::string socket_of(const std::string& device) {
  return fmt::format("{}/{}.sock", kSocketFolder, device);
}

/// Takes the abstract Unix socket that marks a live holder. It exists per network namespace, as
/// devices do.
Result<Fd> take_lease(const std::string& device) {
  Fd lease(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "sortie-tunnel-" + device;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (lease && ::bind(lease.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0)
    return lease;
  return std::unexpected(os_error(errno, device, ErrorCode::unsupported));
}

bool accepts(const std::string& path) {
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!socket || path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void remove_dead_sockets() {
  DIR* folder = ::opendir(kSocketFolder);
  if (!folder) return;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view file = entry->d_name;
    if (!file.ends_with(".sock") || !is_device_name(file.substr(0, file.size() - 5))) continue;
    const std::string path = fmt::format("{}/{}", kSocketFolder, file);
    if (!accepts(path) && errno == ECONNREFUSED) ::unlink(path.c_str());
  }
  ::closedir(folder);
}

bool say(const Json& answer) {
  std::string line = json_text(answer) + "\n";
  for (std::string_view left = line; !left.empty();) {
    const ssize_t count = ::write(1, left.data(), left.size());
    if (count <= 0) return false;
    left.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

Json error_json(const Error& error) {
  return {{"error", error.message}, {"code", error_code_name(error.code)}};
}

class Holder {
 public:
  explicit Holder(std::string name) : name_(std::move(name)) {}
  ~Holder() { take_down(); }

  Result<> open() {
    if (!may_configure_networks())
      return fail(ErrorCode::unsupported,
                  "a tunnel needs root or CAP_NET_ADMIN on this host, or sudo without a password; "
                  "sign in as root (runner.ssh.user), or allow sudo");
    wg_ = find_tool("wg");
    if (wg_.empty())
      return fail(ErrorCode::unsupported,
                  "the program wg is missing; install the package wireguard-tools");
    remove_stale_tunnels();
    auto lease = take_lease(name_);
    if (!lease)
      return fail(ErrorCode::unsupported,
                  fmt::format("another tunnel on this host has the name {}", name_));
    lease_ = std::move(*lease);
    if (const Result<> made = create_kernel_device(name_); made)
      via_ = "kernel";
    else if (made.error().code != ErrorCode::unsupported)
      return made;
    else
      SORTIE_TRY(start_userspace(made.error().message));
    keys_ = make_keys();
    return {};
  }

  Json greeting() const { return {{"key", keys_.open}, {"via", via_}}; }

  Json answer(const Json& order) {
    const std::string what = json_member::text(order, "do");
    if (what == "up") {
      const Result<> done = up(order);
      return done ? Json{{"up", true}} : error_json(done.error());
    }
    if (what == "keep") {
      const Result<> done = keep_alive();
      return done ? Json{{"keep", true}} : error_json(done.error());
    }
    if (what == "look") return look();
    return error_json({ErrorCode::protocol, "tunnel: an unknown order"});
  }

  /// wireguard-go, if it is used.
  const Service& service() const { return service_; }
  /// The end of its output.
  std::string complaint() {
    char buffer[4096];
    ssize_t count = 0;
    while (service_.output && (count = ::read(service_.output.get(), buffer, sizeof buffer)) > 0) {
      said_.append(buffer, static_cast<std::size_t>(count));
      if (said_.size() > kKeptOutput) said_.erase(0, said_.size() - kKeptOutput);
    }
    if (count == 0) service_.output.reset();
    return one_line(said_);
  }
  std::string end_of_service() {
    const auto status = ended(service_);
    return status ? fmt::format("wireguard-go ended with {}: {}", status->to_string(), complaint())
                  : "";
  }

 private:
  Result<> start_userspace(const std::string& why) {
    const std::string program = find_tool("wireguard-go");
    if (program.empty())
      return fail(ErrorCode::unsupported,
                  why +
                      ", and the program wireguard-go is missing; load the kernel's module "
                      "(modprobe wireguard), or install the package wireguard-go");
    if (::access("/dev/net/tun", R_OK | W_OK) != 0)
      return fail(ErrorCode::unsupported,
                  why + ", and wireguard-go needs /dev/net/tun, which is missing (modprobe tun)");
    SORTIE_ASSIGN_OR_RETURN(
        service_,
        start_service({program, "--foreground", name_},
                      {"LOG_LEVEL=error", "WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD=1"}));
    via_ = "wireguard-go";
    const auto deadline = Clock::now() + kServiceStart;
    while (!accepts(socket_of(name_))) {
      if (std::string end = end_of_service(); !end.empty()) return fail(ErrorCode::io, end);
      if (Clock::now() >= deadline)
        return fail(ErrorCode::timeout, "wireguard-go makes no device: " + complaint());
      ::usleep(kPause);
    }
    return {};
  }

  Result<> up(const Json& order) {
    SORTIE_ASSIGN_OR_RETURN(UpOrder wanted, read_up_order(order));
    // Through stdin, so that the key appears on no command line and in no file.
    std::string config = config_text(keys_, wanted.port, wanted.peers);
    const auto set = run_tool({wg_, "setconf", name_, "/dev/stdin"}, config);
    sodium_memzero(config.data(), config.size());
    if (!set) return std::unexpected(set.error());
    SORTIE_TRY(configure_device(name_, wanted.address, wanted.prefix, wanted.mtu));
    if (wanted.forward) SORTIE_TRY(forward_packets_of(name_));
    peers_ = std::move(wanted.peers);
    return {};
  }

  Result<> keep_alive() const {
    const auto words = keepalive_words(name_, peers_);
    if (words.empty()) return {};
    std::vector<std::string> command{wg_};
    command.insert(command.end(), words.begin(), words.end());
    const auto set = run_tool(command, "");
    return set ? Result<>() : std::unexpected(set.error());
  }

  Json look() const {
    auto table = run_tool({wg_, "show", name_, "dump"}, "");
    if (!table) return error_json(table.error());
    const auto peers = parse_dump(*table);
    sodium_memzero(table->data(), table->size());
    if (!peers) return error_json(peers.error());
    Json list = Json::array();
    for (const PeerState& peer : *peers)
      list.push_back({{"key", peer.key},
                      {"endpoint", peer.endpoint},
                      {"handshake_unix_s", peer.handshake_unix_s},
                      {"received", peer.received},
                      {"sent", peer.sent}});
    return {{"peers", list}};
  }

  void take_down() {
    if (via_.empty()) return;
    end_service(service_);
    const Result<> gone = delete_device(name_);
    if (!gone) ::dprintf(2, "sortie-runner: tunnel: %s\n", gone.error().message.c_str());
    if (via_ != "kernel") ::unlink(socket_of(name_).c_str());
  }

  const std::string name_;
  std::string wg_, via_, said_;
  Fd lease_;
  KeyPair keys_;
  std::vector<Peer> peers_;
  Service service_;
};

/// Protects the keys of this process: no core dump, no ptrace.
void become_holder() {
  ::setsid();
  ::umask(077);
  ::prctl(PR_SET_NAME, "sortie-tunnel");
  ::prctl(PR_SET_DUMPABLE, 0);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  close_descriptors_except({});
  ::signal(SIGPIPE, SIG_IGN);
  if (::chdir("/") != 0) return;
}

/// Serves until stdin ends, a signal arrives or wireguard-go exits.
void serve(Holder& holder, int signals) {
  std::string buffer;
  for (;;) {
    pollfd waiting[3] = {
        {0, POLLIN, 0}, {signals, POLLIN, 0}, {holder.service().output.get(), POLLIN, 0}};
    if (::poll(waiting, holder.service().output ? 3 : 2, -1) < 0 && errno != EINTR) return;
    if (holder.service().output && waiting[2].revents != 0) holder.complaint();
    signalfd_siginfo info;
    while (::read(signals, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD) return;
      if (const std::string end = holder.end_of_service(); !end.empty()) {
        say({{"lost", end}});
        return;
      }
    }
    if (waiting[0].revents == 0) continue;
    char bytes[16384];
    const ssize_t count = ::read(0, bytes, sizeof bytes);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return;
    if (count > 0) buffer.append(bytes, static_cast<std::size_t>(count));
    if (buffer.size() > kMaxLine) return;
    for (std::size_t end = 0; (end = buffer.find('\n')) != buffer.npos; buffer.erase(0, end + 1)) {
      const Json order = Json::parse(buffer.substr(0, end), nullptr, /*allow_exceptions=*/false);
      if (!say(holder.answer(order))) return;
    }
  }
}

}  // namespace

std::size_t remove_stale_tunnels() {
  std::size_t left = 0;
  for (const std::string& device : tunnel_devices())
    if (const auto lease = take_lease(device); lease && !delete_device(device)) ++left;
  remove_dead_sockets();
  return left;
}

int hold_tunnel(const std::string& name) {
  if (!is_device_name(name)) return kExitUsage;
  become_holder();
  if (sodium_init() < 0) return kExitFailed;
  sigset_t watched;
  sigemptyset(&watched);
  for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&watched, number);
  ::sigprocmask(SIG_SETMASK, &watched, nullptr);
  const Fd signals(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  Holder holder(name);
  if (const Result<> opened = holder.open(); !opened) {
    say(error_json(opened.error()));
    return kExitFailed;
  }
  if (say(holder.greeting())) serve(holder, signals.get());
  return kExitOk;
}

}  // namespace sortie::runner::tunnel

#include "tests/support/sshd.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace sortie::testing {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool answers(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const bool connected =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return connected;
}

}  // namespace

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

std::string make_key(const std::filesystem::path& file, const std::string& type,
                     const std::string& passphrase) {
  const Finished made =
      run({"ssh-keygen", "-q", "-t", type, "-N", passphrase, "-C", "test", "-f", file.string()});
  if (made.code != 0) throw std::runtime_error("ssh-keygen: " + made.output);
  return read_text(file.string() + ".pub");
}

Sshd::Sshd(std::filesystem::path folder, const std::string& authorized_key, SshdOptions options)
    : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_ / "home");
  if (::geteuid() == 0) ::mkdir("/run/sshd", 0755);  // required by sshd when root starts it
  std::string config;
  for (const auto& line : options.config) config += line + '\n';
  // For this keyword the last line takes effect.
  if (!config.contains("MaxStartups")) config += "MaxStartups 1000\n";
  for (const auto& type : options.host_key_types) {
    const auto key = folder_ / ("host_" + type);
    if (!std::filesystem::exists(key)) make_key(key, type);
    config += fmt::format("HostKey {}\n", key.string());
  }
  write_text(folder_ / "authorized_keys", authorized_key);
  config += fmt::format(
      "ListenAddress 127.0.0.1\nPidFile none\nStrictModes no\nUsePAM no\nPrintMotd no\n"
      "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
      "AuthorizedKeysFile {0}/authorized_keys\nSetEnv HOME={0}/home\n",
      folder_.string());
  write_text(folder_ / "sshd_config", config);
  for (int attempt = 0; attempt < 5; ++attempt) {
    port_ = free_port();
    process_ = Child({"/usr/sbin/sshd", "-D", "-e", "-f", (folder_ / "sshd_config").string(), "-p",
                      std::to_string(port_)},
                     folder_ / "sshd.log");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (process_.running() && std::chrono::steady_clock::now() < deadline) {
      if (answers(port_)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  throw std::runtime_error("sshd did not start: " + log());
}

std::string Sshd::log() const {
  return read_text(folder_ / "sshd.log");
}

void Sshd::limit_open_files(int most) {
  const auto number = static_cast<rlim_t>(most);
  const rlimit limit{number, number};
  if (::prlimit(process_.pid(), RLIMIT_NOFILE, &limit, nullptr) != 0)
    throw std::runtime_error("prlimit");
}

std::vector<pid_t> Sshd::sessions() const {
  std::vector<pid_t> pids;
  std::istringstream lines(run({"pgrep", "-P", std::to_string(process_.pid())}).output);
  for (pid_t pid; lines >> pid;) pids.push_back(pid);
  return pids;
}

std::string Sshd::host_key(const std::string& type) const {
  const std::string line = read_text(folder_ / ("host_" + type + ".pub"));
  return line.substr(0, line.find(' ', line.find(' ') + 1));
}

std::string Sshd::known_hosts_line(const std::string& type) const {
  return fmt::format("[127.0.0.1]:{} {}\n", port_, host_key(type));
}

}  // namespace sortie::testing

#include "launcher/ssh/system_ssh.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/program_transport.h"
#include "launcher/ssh/ssh_config.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

// Must be valid in every login shell (sh, bash, zsh, csh, fish).
std::string prologue() {
  return fmt::format("exec /bin/sh -c '{}'", first_script("$SSH_CONNECTION"));
}

// An IPv6 literal without its brackets: ssh would look it up as a name. One with a port stays as it
// is, which ssh refuses: without it the job would run on another server.
std::string name_for_ssh(const std::string& host) {
  const auto spec = parse_host_spec(host);
  return spec && spec->port == 0 && host.starts_with('[') ? spec->host : host;
}

// State shared by the functions of the HostProgram.
struct User {
  User(config::SshConfig s, const UserEnvironment& env)
      : ssh(std::move(s)), environment(env), config_reader(env, ssh.config_file) {}

  std::string server_of(const std::string& host) {
    const HostSpec spec{"", name_for_ssh(host), 0};
    if (const auto files = config_reader.lookup(spec.host)) {
      const auto settings = make_host_settings(spec, ssh, *files, environment, false);
      if (settings && settings->jumps.empty())
        return fmt::format("{}:{}", settings->host_name, settings->port);
      if (settings) return settings->jumps.front();
    }
    return host;
  }
  /// Checks the identity file. A name with tokens or variables is not checked: ssh expands it.
  Result<> check_identity() const {
    if (ssh.identity_file.empty() || ssh.identity_file.contains('%') ||
        ssh.identity_file.contains("${"))
      return {};
    return check_identity_file(environment.expand_home(ssh.identity_file));
  }

  const config::SshConfig ssh;
  const UserEnvironment environment;
  SshConfigReader config_reader;
};

}  // namespace

std::vector<std::string> system_ssh_words(const config::SshConfig& ssh, const std::string& host) {
  std::vector<std::string> words = ssh.command;
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  // Hosts get no access to this machine, whatever the user's config or `command` says: no
  // forwarding of agent, X11 or Kerberos credentials. Flags have precedence over -o and over files.
  add({"-a", "-x", "-k"});
  add({"-T", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes", "-o", "LogLevel=ERROR"});
  // Timeouts for connecting, and for a connection that breaks later.
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(ssh.connect_timeout).count();
  add({"-o", fmt::format("ConnectTimeout={}", seconds)});
  add({"-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"});
  if (ssh.control == "no") add({"-o", "ControlPath=none"});
  if (ssh.accept_new) add({"-o", "StrictHostKeyChecking=accept-new"});
  if (!ssh.known_hosts_file.empty())
    add({"-o", fmt::format("UserKnownHostsFile=\"{}\"", ssh.known_hosts_file)});
  if (!ssh.config_file.empty()) add({"-F", ssh.config_file});
  if (!ssh.identity_file.empty()) add({"-i", ssh.identity_file});
  if (!ssh.user.empty()) add({"-l", ssh.user});
  if (ssh.port != 0) add({"-p", std::to_string(ssh.port)});
  add({"--", name_for_ssh(host)});
  return words;
}

std::vector<std::string> system_ssh_session_words(const config::SshConfig& ssh,
                                                  const std::string& host, bool terminal) {
  std::vector<std::string> words = system_ssh_words(ssh, host);
  // Replace our own -T, not one among the user's words before it.
  const auto ours = words.begin() + static_cast<std::ptrdiff_t>(ssh.command.size());
  if (terminal) *std::find(ours, words.end(), "-T") = "-t";
  return words;
}

std::unique_ptr<Transport> make_system_ssh_transport(asio::any_io_executor executor,
                                                     config::SshConfig ssh,
                                                     const UserEnvironment& environment) {
  const auto user = std::make_shared<User>(std::move(ssh), environment);
  HostProgram way;
  way.key = "runner.ssh.command";
  way.words = [user](const std::string& host) {
    std::vector<std::string> words = system_ssh_words(user->ssh, host);
    words.push_back(prologue());
    return words;
  };
  way.failure = [](std::string_view said, const ProcessStatus& status) {
    return read_ssh_failure(said, status);
  };
  way.server_of = [user](const std::string& host) { return user->server_of(host); };
  way.check = [user] { return user->check_identity(); };
  way.fanout = static_cast<std::size_t>(user->ssh.fanout);
  way.time_to_sign_in = time_to_sign_in(user->ssh);
  way.time_for_drops = user->ssh.handshake_timeout;
  return make_program_transport(std::move(executor), std::move(way));
}

}  // namespace sortie::launcher::ssh

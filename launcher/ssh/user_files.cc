#include "launcher/ssh/user_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/ssh/ssh_config.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;

struct UserFiles::Reader {
  Reader(const config::SshConfig& with, const UserEnvironment& of)
      : ssh(with), environment(of), config(of, with.config_file) {}

  const config::SshConfig ssh;
  const UserEnvironment environment;
  SshConfigReader config;
  KnownHosts known_hosts;
  KeyStore keys;

  Result<HostSettings> settings(const HostSpec& spec, bool is_jump) {
    SORTIE_ASSIGN_OR_RETURN(const HostConfig files, config.lookup(spec.host));
    SORTIE_ASSIGN_OR_RETURN(HostSettings settings,
                            make_host_settings(spec, ssh, files, environment, is_jump));
    if (!ssh.identity_file.empty())
      SORTIE_TRY(check_identity_file(settings.identity_files.front()));
    return settings;
  }

  // Finds a ProxyJump that leads back to itself before any connection is made, because connections
  // being established wait for each other. The first jump host may have its own ProxyJump, and so
  // on.
  Result<> check_jumps(const HostSettings& settings_of, std::vector<std::string> path) {
    if (settings_of.jumps.empty()) return {};
    const std::string& jump = settings_of.jumps.front();
    if (std::ranges::find(path, jump) != path.end())
      return fail(
          ErrorCode::config,
          fmt::format("ProxyJump of {} leads back to itself; give one of them ProxyJump none",
                      jump));
    path.push_back(jump);
    SORTIE_ASSIGN_OR_RETURN(const HostSpec spec, parse_host_spec(jump));
    SORTIE_ASSIGN_OR_RETURN(const HostSettings next, settings(spec, true));
    return check_jumps(next, std::move(path));
  }
};

UserFiles::UserFiles(asio::any_io_executor executor, const config::SshConfig& ssh,
                     const UserEnvironment& environment, FileCalls::Clock::duration limit)
    : calls_(std::move(executor), limit),
      stalled_(fmt::format(
          "ssh's files in {} have not answered within {} ms; is a network file system down?",
          (environment.home / ".ssh").string(),
          std::chrono::duration_cast<std::chrono::milliseconds>(limit).count())),
      reader_(std::make_shared<Reader>(ssh, environment)) {}

Result<const KnownHosts*> UserFiles::load_known_hosts(
    Reader& reader, const std::vector<std::filesystem::path>& files) {
  SORTIE_TRY(reader.known_hosts.load(files));
  return &reader.known_hosts;
}

asio::awaitable<Result<HostSettings>> UserFiles::settings(HostSpec spec) {
  const std::function<Result<HostSettings>()> work =
      [reader = reader_, spec = std::move(spec)]() -> Result<HostSettings> {
    SORTIE_ASSIGN_OR_RETURN(HostSettings settings, reader->settings(spec, false));
    SORTIE_TRY(reader->check_jumps(settings, {}));
    return settings;
  };
  return call(work);
}

asio::awaitable<Result<HostSettings>> UserFiles::jump_settings(HostSpec spec) {
  const std::function<Result<HostSettings>()> work = [reader = reader_, spec = std::move(spec)] {
    return reader->settings(spec, true);
  };
  return call(work);
}

asio::awaitable<Result<ControlSettings>> UserFiles::control_settings(HostSpec spec, bool is_jump) {
  const std::function<Result<ControlSettings>()> work = [reader = reader_, spec = std::move(spec),
                                                         is_jump]() -> Result<ControlSettings> {
    SORTIE_ASSIGN_OR_RETURN(const HostConfig files, reader->config.lookup(spec.host));
    return make_control_settings(spec, reader->ssh, files, reader->environment, is_jump);
  };
  return call(work);
}

asio::awaitable<Result<std::vector<const Identity*>>> UserFiles::identities(
    std::vector<std::filesystem::path> files) {
  const std::function<Result<std::vector<const Identity*>>()> work =
      [reader = reader_, files = std::move(files)]() -> Result<std::vector<const Identity*>> {
    std::vector<const Identity*> read;
    for (const auto& file : files) read.push_back(&reader->keys.load(file));
    return read;
  };
  return call(work);
}

}  // namespace sortie::launcher::ssh

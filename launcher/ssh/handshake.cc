#include "launcher/ssh/handshake.h"

#include <fmt/core.h>
#include <libssh/libssh.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/shell_text.h"
#include "launcher/ssh/base64.h"
#include "launcher/ssh/keys.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

// An sshd that drops a connection sends at most "Exceeded MaxStartups". A server that sends more is
// no sshd.
constexpr std::uint64_t kMostWordsBytes = 64;

// P-256 first: sshd uses libcrypto's assembler for it, but its own portable C for Curve25519, which
// costs every host 3 ms more CPU time. (OpenSSH's default, sntrup761, costs 60 ms more, and libssh
// does not support it.) KexAlgorithms of the ssh config overrides this.
constexpr const char* kKexAlgorithms =
    "ecdh-sha2-nistp256,curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp384,"
    "ecdh-sha2-nistp521,diffie-hellman-group16-sha512,diffie-hellman-group18-sha512,"
    "diffie-hellman-group14-sha256";
constexpr const char* kHostKeyAlgorithms =
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,"
    "rsa-sha2-256";
// AES-GCM is hardware-accelerated on every server CPU.
constexpr const char* kCiphers =
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,"
    "aes256-ctr";

// Lists that edit the defaults ("+x", "-x", "^x") do not replace Sortie's.
bool replaces_defaults(const std::string& list) {
  return !list.empty() && list.front() != '+' && list.front() != '-' && list.front() != '^';
}

// Puts the algorithms of the known key types of the host first, so that a server with several keys
// shows one that can be checked.
std::string host_key_order(const std::vector<std::string>& known_types, const std::string& base) {
  std::string order;
  const auto add = [&](std::string_view algorithm) {
    if (("," + order + ",").find(fmt::format(",{},", algorithm)) != std::string::npos) return;
    if (!order.empty()) order += ',';
    order += algorithm;
  };
  for (const std::string& type : known_types) {
    if (type == "ssh-rsa") {
      add("rsa-sha2-512");
      add("rsa-sha2-256");
    } else if (std::string_view(kHostKeyAlgorithms).find(type) != std::string_view::npos) {
      add(type);
    }
  }
  for (std::string_view rest = base; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    add(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return order;
}

Result<> configure(ssh_session session, const HostSettings& settings,
                   const std::vector<std::string>& known_types) {
  const int no = 0;
  // Only SshConfigReader reads ssh_config: libssh would run ProxyJump through an ssh process.
  SORTIE_CHECK(ssh_options_set(session, SSH_OPTIONS_PROCESS_CONFIG, &no) == SSH_OK);
  // Host keys are checked below. Without files and a host name libssh looks up nothing.
  ssh_options_set(session, SSH_OPTIONS_SSH_DIR, "/nonexistent");
  ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, "/dev/null");
  ssh_options_set(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  ssh_options_set(session, SSH_OPTIONS_COMPRESSION, "no");
  ssh_options_set(session, SSH_OPTIONS_CIPHERS_C_S, kCiphers);
  ssh_options_set(session, SSH_OPTIONS_CIPHERS_S_C, kCiphers);
  if (ssh_options_set(session, SSH_OPTIONS_USER, settings.user.c_str()) != SSH_OK)
    return fail(ErrorCode::config, fmt::format("user '{}' is not a user name", settings.user));
  const std::string kex =
      replaces_defaults(settings.kex_algorithms) ? settings.kex_algorithms : kKexAlgorithms;
  if (ssh_options_set(session, SSH_OPTIONS_KEY_EXCHANGE, kex.c_str()) != SSH_OK)
    return fail(ErrorCode::handshake,
                fmt::format("KexAlgorithms {} of the ssh config: none of them is supported; add "
                            "curve25519-sha256",
                            kex));
  const std::string base = replaces_defaults(settings.host_key_algorithms)
                               ? settings.host_key_algorithms
                               : kHostKeyAlgorithms;
  const std::string order = host_key_order(known_types, base);
  if (ssh_options_set(session, SSH_OPTIONS_HOSTKEYS, order.c_str()) != SSH_OK)
    return fail(
        ErrorCode::handshake,
        fmt::format("HostKeyAlgorithms {} of the ssh config: none of them is supported; add "
                    "ssh-ed25519",
                    order));
  return {};
}

Result<HostKey> server_key(ssh_session session) {
  ssh_key raw = nullptr;
  if (ssh_get_server_publickey(session, &raw) != SSH_OK)
    return fail(ErrorCode::handshake, "the server showed no host key");
  const KeyPtr key(raw);
  char* text = nullptr;
  if (ssh_pki_export_pubkey_base64(raw, &text) != SSH_OK)
    return fail(ErrorCode::handshake, "the server's host key can not be read");
  std::string blob = base64_decode(text);
  ssh_string_free_char(text);
  // The blob starts with the type's name: a length of four bytes and the text.
  const std::size_t size = blob.size() > 4 ? static_cast<unsigned char>(blob[3]) : 0;
  if (size == 0 || blob.size() < 4 + size)
    return fail(ErrorCode::handshake, "the server's host key is garbled");
  return HostKey{blob.substr(4, size), blob};
}

std::string describe(const HostKey& key) {
  return fmt::format("{} {}", key.type, fingerprint(key));
}

// Returns the exact command that trusts the key: ssh-keyscan if it reaches the same host under the
// same name; behind a jump host or with an alias, a command that appends the line itself.
std::string trust_command(const HostSettings& settings, const HostKey& key,
                          const std::string& file) {
  const bool plain =
      settings.jumps.empty() &&
      (settings.key_name == settings.host_name ||
       settings.key_name == fmt::format("[{}]:{}", settings.host_name, settings.port));
  const std::vector<std::string> words =
      plain ? std::vector<std::string>{"ssh-keyscan", "-p", std::to_string(settings.port),
                                       settings.host_name}
            : std::vector<std::string>{"echo", fmt::format("{} {} {}", settings.key_name, key.type,
                                                           base64_encode(key.blob))};
  return fmt::format("{} >> {}", shell_text(words), shell_word(file));
}

// `place`: "file:line" of an entry for the host.
std::string forget_command(const HostSettings& settings, const std::string& place) {
  return shell_text(
      {"ssh-keygen", "-R", settings.key_name, "-f", place.substr(0, place.rfind(':'))});
}

using KnownTypes = std::function<Result<std::vector<std::string>>(const KnownHosts&)>;
using KeyVerdict = std::function<Result<>(const KnownHosts&)>;

Result<> check_host_key(const HostSettings& settings, const KnownHosts& known_hosts,
                        const HostKey& key, bool accept_new) {
  const HostKeyCheck check =
      known_hosts.check(settings.key_name, settings.key_name_without_port, key);
  const std::string file =
      settings.known_hosts_files.empty() ? "" : settings.known_hosts_files.front().string();
  const std::string trust = trust_command(settings, key, file);
  switch (check.verdict) {
    case HostKeyVerdict::known:
      return {};
    case HostKeyVerdict::unknown:
      if (accept_new) {
        log::debug("{}: recording its {} in {}", settings.key_name, describe(key), file);
        return file.empty() ? Result<>{} : record_host_key(file, settings.key_name, key);
      }
      return fail(
          ErrorCode::host_key,
          fmt::format("its host key is not known ({}): refused; if the fingerprint is right, "
                      "trust it with `{}`, or trust all new keys with --set "
                      "runner.ssh.accept_new=true",
                      describe(key), trust));
    case HostKeyVerdict::other_type:
      return fail(
          ErrorCode::host_key,
          fmt::format("its host key is {}, but {} has a key of another type, which the host "
                      "does not show: refused; if the fingerprint is right, trust it with "
                      "`{}`",
                      describe(key), check.place, trust));
    case HostKeyVerdict::changed:
      return fail(
          ErrorCode::host_key,
          fmt::format(
              "its host key has CHANGED: it shows {}, but {} has another: refused, possibly "
              "a man-in-the-middle attack; if the host was reinstalled, remove the old key with "
              "`{}` and trust the new one with `{}`",
              describe(key), check.place, forget_command(settings, check.place), trust));
    case HostKeyVerdict::revoked:
      return fail(ErrorCode::host_key,
                  fmt::format("its host key {} is marked @revoked at {}: refused; "
                              "give the host a new key",
                              describe(key), check.place));
  }
  return {};
}

Error handshake_error(SessionCore& core, std::chrono::milliseconds timeout, bool timed_out) {
  const bool has_banner = ssh_get_serverbanner(core.session()) != nullptr;
  if (timed_out && !has_banner)
    return {
        ErrorCode::handshake,
        fmt::format("connected, but the server sent nothing within {} ms: it is not an sshd, or it "
                    "is overloaded; check the port, or raise runner.ssh.handshake_timeout",
                    timeout.count())};
  if (timed_out)
    return {ErrorCode::handshake,
            fmt::format("key exchange not done within {} ms; see the host's sshd log, or raise "
                        "runner.ssh.handshake_timeout",
                        timeout.count())};
  const std::string reason = core.last_error();
  if (!has_banner && core.bytes_received() > kMostWordsBytes)
    return {ErrorCode::handshake, "the server there is not an SSH server; check the port"};
  if (!has_banner && core.broken())
    return {
        ErrorCode::handshake,
        "the server closed the connection before its banner; is it at sshd's MaxStartups limit, "
        "or does a rule keep this address out?"};
  return {ErrorCode::handshake,
          fmt::format("key exchange failed: {}; see the host's sshd log", reason)};
}

}  // namespace

bool dropped_before_banner(SessionCore& core) {
  return !ssh_get_serverbanner(core.session()) && core.bytes_received() <= kMostWordsBytes &&
         core.broken();
}

asio::awaitable<Result<>> shake_hands(std::shared_ptr<SessionCore> core, HostSettings settings,
                                      std::shared_ptr<UserFiles> files, config::SshConfig ssh) {
  const KnownTypes types_of = [settings](const KnownHosts& known_hosts) {
    auto types = known_hosts.key_types(settings.key_name);
    if (types.empty() && !settings.key_name_without_port.empty())
      types = known_hosts.key_types(settings.key_name_without_port);
    return types;
  };
  const auto known_types = co_await files->with_known_hosts(settings.known_hosts_files, types_of);
  if (!known_types) co_return std::unexpected(known_types.error());
  auto configured = configure(core->session(), settings, *known_types);
  if (!configured) co_return configured;
  const auto deadline = Clock::now() + ssh.handshake_timeout;
  const auto status = co_await core->drive([&] { return core->connect_step(); }, deadline);
  if (!status || *status != SSH_OK)
    co_return std::unexpected(handshake_error(*core, ssh.handshake_timeout, !status));
  const auto key = server_key(core->session());
  if (!key) co_return std::unexpected(key.error());
  // Loads them again: another connection may have recorded a key for this name meanwhile.
  const KeyVerdict verdict_on = [settings, key = *key,
                                 accept_new = ssh.accept_new](const KnownHosts& known_hosts) {
    return check_host_key(settings, known_hosts, key, accept_new);
  };
  co_return co_await files->with_known_hosts(settings.known_hosts_files, verdict_on);
}

}  // namespace sortie::launcher::ssh

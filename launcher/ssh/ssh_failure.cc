#include "launcher/ssh/ssh_failure.h"

#include <fmt/core.h>

#include <algorithm>

namespace sortie::launcher::ssh {
namespace {

constexpr std::size_t kWords = 300;
constexpr int kSshFailed = 255;  // exit code for errors of ssh itself

struct Sign {
  std::string_view words;
  ErrorCode stage;
  std::string_view advice;
};

// The order matters: a failed connection to a jump host also ends the connection through it, and
// the message of the first cause says more.
constexpr Sign kSigns[] = {
    {"Could not resolve hostname", ErrorCode::resolve,
     "check the spelling, /etc/hosts and DNS, or give it a HostName in ~/.ssh/config"},
    {"REMOTE HOST IDENTIFICATION HAS CHANGED", ErrorCode::host_key,
     "its host key has CHANGED, possibly a man-in-the-middle attack; if the host was reinstalled, "
     "remove "
     "the old key with ssh-keygen -R"},
    {"Host key verification failed", ErrorCode::host_key,
     "sign in once with this ssh to trust the key, or set runner.ssh.accept_new"},
    {"host key is known for", ErrorCode::host_key,
     "sign in once with this ssh to trust the key, or set runner.ssh.accept_new"},
    {"Permission denied (", ErrorCode::auth,
     "see whether this ssh signs in without asking (BatchMode=yes)"},
    {"Too many authentication failures", ErrorCode::auth,
     "set IdentitiesOnly and IdentityFile in ~/.ssh/config"},
    {"connect to host", ErrorCode::connect, "is the host up, and sshd running there?"},
    {"open failed: connect failed", ErrorCode::connect,
     "is the host up, as its jump host sees it?"},
    {"open failed: administratively prohibited", ErrorCode::connect,
     "the jump host forwards no connections"},
    {"Bad configuration option", ErrorCode::config, "mend the ssh config or runner.ssh.command"},
    {"Bad owner or permissions", ErrorCode::config, "mend the ssh config"},
    {"terminating, ", ErrorCode::config, "mend the ssh config"},
    {"usage: ", ErrorCode::config, "runner.ssh.command takes options of ssh that it knows"},
    {"hostname contains invalid characters", ErrorCode::config, "mend the host's name"},
    {"remote username contains invalid characters", ErrorCode::config, "mend runner.ssh.user"},
    {"Unable to negotiate", ErrorCode::handshake, "see the host's sshd log"},
    {"timed out", ErrorCode::handshake, "see the host's sshd log"},
};
// Signs of a dropped connection if none of the above matches.
constexpr std::string_view kDrops[] = {"kex_exchange_identification", "Connection closed by",
                                       "Connection reset by", "Exceeded MaxStartups"};

}  // namespace

std::string last_words(std::string_view said) {
  while (!said.empty() && static_cast<unsigned char>(said.back()) <= ' ') said.remove_suffix(1);
  if (said.size() > kWords) {
    said.remove_prefix(said.size() - kWords);
    said.remove_prefix(std::min(said.find('\n') + 1, said.size()));  // npos + 1 = 0: one long line
  }
  std::string text(said);
  std::erase(text, '\r');
  std::string line;
  for (const char c : text) {
    if (c == '\n')
      line += " | ";
    else if (static_cast<unsigned char>(c) >= 32 && c != 127)
      line += c;
  }
  return line;
}

SshFailure read_ssh_failure(std::string_view said, const ProcessStatus& status,
                            std::string_view who) {
  const std::string words = last_words(said);
  const std::string quoted = words.empty() ? "it said nothing" : fmt::format("it said: {}", words);
  if (status.kind == ProcessStatus::Kind::exited && status.code != kSshFailed)
    return {{ErrorCode::channel,
             fmt::format("{}: the shell on the host ended ({}) before it answered; {}", who,
                         status.to_string(), quoted)},
            false};
  if (status.kind != ProcessStatus::Kind::exited)
    return {{ErrorCode::handshake,
             fmt::format("{}: the program ended ({}); {}", who, status.to_string(), quoted)},
            false};
  for (const Sign& sign : kSigns)
    if (said.contains(sign.words))
      return {{sign.stage, fmt::format("{}: {}; {}", who, quoted, sign.advice)}, false};
  const bool dropped =
      std::ranges::any_of(kDrops, [&](std::string_view drop) { return said.contains(drop); });
  return {{ErrorCode::handshake,
           fmt::format("{}: {}; {}", who, quoted,
                       dropped ? "is the server at sshd's MaxStartups limit, or does a rule keep "
                                 "this address out?"
                               : "try the same command with -v by hand")},
          dropped};
}

}  // namespace sortie::launcher::ssh

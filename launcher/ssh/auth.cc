#include "launcher/ssh/auth.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <libssh/libssh.h>
#include <sys/socket.h>

#include <cerrno>

#include "launcher/ssh/agent.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

enum class Outcome { accepted, refused, partial, broken, unsigned_ };

// Authentication calls of libssh use a different value for "again" than all other calls.
int as_again(int status) {
  return status == SSH_AUTH_AGAIN ? SSH_AGAIN : status;
}

Outcome outcome_of(const std::optional<int>& status) {
  if (!status) return Outcome::broken;
  switch (*status) {
    case SSH_AUTH_SUCCESS:
      return Outcome::accepted;
    case SSH_AUTH_DENIED:
      return Outcome::refused;
    case SSH_AUTH_PARTIAL:
      return Outcome::partial;
    default:
      return Outcome::broken;
  }
}

// Reads the sign request that libssh wrote for the agent, without its length. Empty if there is
// none.
std::string read_sign_request(int fd) {
  constexpr char kSignRequest = 13;
  std::string bytes(64 * 1024, '\0');
  const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  for (std::string_view rest = bytes; rest.size() > 4;) {
    std::uint32_t size = 0;
    for (int i = 0; i < 4; ++i) size = size << 8 | static_cast<unsigned char>(rest[i]);
    if (size == 0 || rest.size() - 4 < size) return "";
    if (rest[4] == kSignRequest) return std::string(rest.substr(4, size));
    rest.remove_prefix(4 + size);
  }
  return "";
}

// Owns the agent socket of a session. libssh closes its current socket with the session, but does
// not close one that is replaced.
class AgentSocket {
 public:
  AgentSocket() = default;
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;
  ~AgentSocket() { held_.release(); }
  bool give(ssh_session session, Fd socket) {
    if (ssh_set_agent_socket(session, socket.get()) != SSH_OK) return false;
    held_ = std::move(socket);
    return true;
  }

 private:
  Fd held_;
};

// libssh's agent code writes a request and then blocks until the answer arrives. Here it gets a
// socket that already contains the answers, followed by end of stream, so it never blocks.
class PreparedAgent {
 public:
  explicit PreparedAgent(AgentSocket& socket) : socket_(socket) {}
  bool prepare(ssh_session session, const std::string& answers) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
      return false;
    ours_.reset(pair[0]);
    Fd theirs(pair[1]);
    if (::send(pair[0], answers.data(), answers.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(answers.size()))
      return false;
    ::shutdown(pair[0], SHUT_WR);
    return socket_.give(session, std::move(theirs));
  }
  int requests() const { return ours_.get(); }

 private:
  AgentSocket& socket_;
  Fd ours_;
};

// In two passes: the first stops where libssh needs a signature, which shows the data to sign. The
// agent signs it while the I/O thread continues. The second pass finds the signature prepared.
// `has_file`: the key can also be used from its file, so the agent gets half of the time only.
asio::awaitable<Outcome> try_agent_key(std::shared_ptr<SessionCore> core, HostSettings settings,
                                       AgentKey key, bool has_file, Clock::time_point deadline,
                                       AgentSocket& socket, std::string& problem) {
  const auto session = core->session();
  const auto step = [session] { return as_again(ssh_userauth_agent(session, nullptr)); };
  const std::string identities = make_identities_answer(key);
  PreparedAgent first(socket);
  if (!first.prepare(session, identities)) co_return Outcome::broken;
  const auto offered = co_await core->drive(step, deadline);
  const std::string request = read_sign_request(first.requests());
  if (request.empty()) co_return outcome_of(offered);
  const auto now = Clock::now();
  const auto sign_by = has_file ? now + (deadline - now) / 2 : deadline;
  auto answer = co_await ask_agent(settings.agent_socket, request, sign_by);
  if (!answer || answer->front() != kAgentSignResponse) {
    problem = answer ? "the agent refused to sign" : answer.error().message;
    co_return Outcome::unsigned_;
  }
  PreparedAgent second(socket);
  if (!second.prepare(session, identities + with_length(*answer))) co_return Outcome::broken;
  co_return outcome_of(co_await core->drive(step, deadline));
}

asio::awaitable<Outcome> try_file_key(std::shared_ptr<SessionCore> core, const Identity* identity,
                                      bool ask_first, Clock::time_point deadline) {
  const auto session = core->session();
  if (ask_first && identity->public_key) {
    const auto key = identity->public_key.get();
    const auto offered = co_await core->drive(
        [&] { return as_again(ssh_userauth_try_publickey(session, nullptr, key)); }, deadline);
    if (outcome_of(offered) != Outcome::accepted) co_return outcome_of(offered);
  }
  const auto key = identity->private_key.get();
  const auto status = co_await core->drive(
      [&] { return as_again(ssh_userauth_publickey(session, nullptr, key)); }, deadline);
  co_return outcome_of(status);
}

std::string allowed_methods(ssh_session session) {
  const int methods = ssh_userauth_list(session, nullptr);
  std::vector<std::string_view> names;
  if (methods & SSH_AUTH_METHOD_PUBLICKEY) names.push_back("publickey");
  if (methods & SSH_AUTH_METHOD_PASSWORD) names.push_back("password");
  if (methods & SSH_AUTH_METHOD_INTERACTIVE) names.push_back("keyboard-interactive");
  if (methods & SSH_AUTH_METHOD_HOSTBASED) names.push_back("hostbased");
  if (methods & SSH_AUTH_METHOD_GSSAPI_MIC) names.push_back("gssapi-with-mic");
  return names.empty() ? "no method that it named" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

asio::awaitable<Result<>> authenticate(std::shared_ptr<SessionCore> core, HostSettings settings,
                                       std::shared_ptr<Credentials> credentials,
                                       std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  // An agent that does not answer must leave time for the key files.
  auto found = co_await credentials->candidates(settings, Clock::now() + timeout / 3);
  if (!found) co_return std::unexpected(std::move(found).error());
  Candidates& candidates = *found;
  std::vector<std::string> refused;
  const auto history = [&] {
    std::string text;
    if (!refused.empty()) text += fmt::format("; refused: {}", fmt::join(refused, ", "));
    if (!candidates.problems.empty())
      text += fmt::format("; not usable: {}", fmt::join(candidates.problems, ", "));
    return text;
  };
  if (candidates.keys.empty())
    co_return fail(
        ErrorCode::auth,
        fmt::format("sign in as {}: no key to offer{}; make one with ssh-keygen, name it "
                    "with runner.ssh.identity_file, or start an agent that holds it",
                    settings.user, history()));
  AgentSocket agent_socket;
  bool first = true;
  for (const Candidate& candidate : candidates.keys) {
    Outcome outcome = Outcome::unsigned_;
    std::string problem;
    const bool has_file = candidate.identity && candidate.identity->private_key;
    if (candidate.in_agent)
      outcome = co_await try_agent_key(core, settings, candidate.agent_key, has_file, deadline,
                                       agent_socket, problem);
    if (!problem.empty())
      candidates.problems.push_back(fmt::format("{}: {}", candidate.name, problem));
    if (outcome == Outcome::unsigned_ && has_file) {
      // A signature is cheaper than a round trip, unless there are several keys to try.
      const bool ask_first = !first || candidates.keys.size() > 1;
      outcome = co_await try_file_key(core, candidate.identity, ask_first, deadline);
    }
    first = false;
    switch (outcome) {
      case Outcome::accepted:
        credentials->remember(settings, candidate);
        co_return Result<>{};
      case Outcome::refused:
        refused.push_back(candidate.name);
        break;
      case Outcome::unsigned_:  // one of `problems`
        break;
      case Outcome::partial:
        co_return fail(
            ErrorCode::auth,
            fmt::format("sign in as {}: {} was accepted, but the server asks for more "
                        "({}); Sortie signs in with keys only, make sshd ask these hosts' "
                        "users for no more (AuthenticationMethods publickey)",
                        settings.user, candidate.name, allowed_methods(core->session())));
      case Outcome::broken:
        if (Clock::now() >= deadline)
          co_return fail(ErrorCode::auth,
                         fmt::format("sign in as {}: no answer within {} ms{}; see the host's sshd "
                                     "log, or raise runner.ssh.auth_timeout",
                                     settings.user, timeout.count(), history()));
        co_return fail(
            ErrorCode::auth,
            fmt::format(
                "sign in as {}: the server ended the connection ({}) at {}{}; with many keys "
                "in the agent set IdentitiesOnly and IdentityFile in ~/.ssh/config",
                settings.user, core->last_error(), candidate.name, history()));
    }
  }
  co_return fail(
      ErrorCode::auth,
      fmt::format("sign in as {}: no key was accepted{}; the server allows {}; add one of "
                  "the public keys to ~{}/.ssh/authorized_keys there, or name the right "
                  "key with runner.ssh.identity_file",
                  settings.user, history(), allowed_methods(core->session()), settings.user));
}

}  // namespace sortie::launcher::ssh

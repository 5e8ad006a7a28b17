#include "launcher/nodes/node_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "common/base/file_lock.h"
#include "common/base/json_text.h"
#include "launcher/control/supervisor_lock.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kTurn{10};

/// mkdir -p; new folders are accessible only to this user.
Result<> make_folder(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  if (path.has_parent_path() && path.parent_path() != path)
    SORTIE_TRY(make_folder(path.parent_path()));
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return std::unexpected(os_error(errno, path.string()));
}

Result<Fd> lock_beside(const fs::path& file) {
  SORTIE_TRY(make_folder(file.parent_path()));
  const std::string name = file.string() + ".lock";
  Fd lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return std::unexpected(os_error(errno, name));
  const auto until = std::chrono::steady_clock::now() + NodeStore::kPatience;
  // Without file locks a change is still atomic, but it may undo a concurrent one.
  for (;;) {
    const FileLock got = try_lock_file(lock.get(), LOCK_EX);
    if (got == FileLock::taken || got == FileLock::absent) break;
    if (got == FileLock::failed) return std::unexpected(os_error(errno, name));
    if (std::chrono::steady_clock::now() >= until)
      return fail(ErrorCode::timeout,
                  fmt::format("{}: another process has held it for {} s; see who does with "
                              "`fuser {}`",
                              name, NodeStore::kPatience.count() / 1000, name));
    std::this_thread::sleep_for(kTurn);
  }
  return lock;
}

}  // namespace

Result<NodeStore> NodeStore::open() {
  SORTIE_ASSIGN_OR_RETURN(const fs::path state, state_folder(""));
  return NodeStore(state / "nodes.json");
}

Result<NodeState> NodeStore::read() const {
  auto text = read_file(file_);
  if (!text && text.error().code == ErrorCode::not_found) return NodeState{};
  auto state = text ? parse_node_state(*text) : std::unexpected(text.error());
  if (state) return state;
  if (!text)
    return fail(ErrorCode::data,
                fmt::format("{}: the list of cordoned hosts can not be read: {}; see that {} is a "
                            "folder of yours (XDG_STATE_HOME is the folder above it)",
                            file_.string(), state.error().message, file_.parent_path().string()));
  return fail(
      ErrorCode::data,
      fmt::format("{}: the list of cordoned hosts can not be read: {}; correct the file, or "
                  "remove it and cordon them again",
                  file_.string(), state.error().message));
}

Result<> NodeStore::change(const std::function<void(NodeState&)>& change) const {
  SORTIE_ASSIGN_OR_RETURN(const Fd lock, lock_beside(file_));
  SORTIE_ASSIGN_OR_RETURN(NodeState state, read());
  const NodeState before = state;
  change(state);
  if (state == before) return {};
  return write_file_atomic(file_, json_text(to_json(state), 2) + "\n", 0600);
}

Result<NodeState> cordoned_hosts() {
  const auto store = NodeStore::open();
  return store ? store->read() : NodeState{};
}

Result<CordonOutcome> cordon_hosts_of_run(const NodeStore& store, const std::string& run,
                                          const std::vector<CordonOrder>& orders,
                                          const std::vector<std::string>& all) {
  CordonOutcome outcome;
  SORTIE_TRY(store.change([&](NodeState& state) {
    for (const auto& [host, reason, blames] : orders) {
      const RunCordon done =
          cordon_by_run(state, {host, reason, this_user(), run, unix_time(), blames}, all);
      if (done == RunCordon::done) outcome.cordoned.push_back(host);
      if (done == RunCordon::breaker_open) outcome.breaker_open = true;
    }
  }));
  return outcome;
}

Result<std::map<std::string, std::string>> note_blames_of_run(const NodeStore& store,
                                                              const std::string& run,
                                                              std::vector<Blame> blames,
                                                              std::int64_t runs, double window) {
  for (Blame& one : blames) one.run = run;
  std::map<std::string, std::string> chronic;
  SORTIE_TRY(store.change([&](NodeState& state) {
    const double now = unix_time();
    note_blames(state, run, blames, now);
    for (const std::string& host : chronic_hosts(state, runs, window, now))
      chronic[host] = blames_text(state.blames_of(host, now - window), window, now);
  }));
  return chronic;
}

std::string this_user() {
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  const bool known =
      ::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found;
  return fmt::format("{}@{}", known ? found->pw_name : fmt::format("uid {}", ::getuid()),
                     machine_name());
}

}  // namespace sortie::launcher

// NodeStore: the cordoned hosts of this user, one file for all runs: <state>/nodes.json, where
// <state> is $XDG_STATE_HOME/sortie or ~/.local/state/sortie, whatever logger.log_dir is. A lock
// beside it orders changes of runs that go on at the same time; a process that dies lets go of it.
// The file is replaced whole: it holds what was before a change or after it.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/nodes/node_state.h"

namespace sortie::launcher {

class NodeStore {
 public:
  /// How long a change waits for that of another process.
  static constexpr std::chrono::milliseconds kPatience{5000};

  /// That of this user. ErrorCode::config without a HOME: there is no place for one.
  static Result<NodeStore> open();
  explicit NodeStore(std::filesystem::path file) : file_(std::move(file)) {}

  /// Nothing is cordoned where there is no file. A file that can not be read is an error that says
  /// so: which hosts are cordoned is not known then.
  Result<NodeState> read() const;

  /// Reads, calls `change`, and writes what became of it, with the lock held. Waits up to
  /// kPatience: ErrorCode::timeout. ErrorCode::io when it can not be written.
  Result<> change(const std::function<void(NodeState&)>& change) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

/// The cordoned hosts for a run that is to start: none where this user can have no store.
Result<NodeState> cordoned_hosts();

/// What a run's order to cordon hosts came to.
struct CordonOutcome {
  std::vector<std::string> cordoned;
  bool breaker_open = false;  // some were not, for that
};
/// For the loop of a run: cordons `hosts` in this user's store. `reason_of`: why, by host; `all`:
/// all hosts that the run knows, spares too.
Result<CordonOutcome> cordon_hosts_of_run(
    const NodeStore& store, const std::string& run, const std::vector<std::string>& hosts,
    const std::function<std::pair<std::string, std::uint32_t>(const std::string&)>& reason_of,
    const std::vector<std::string>& all);

/// For the loop of a run: what it has against hosts by now (Blame::run is not looked at). Returns
/// those that so many runs blame within the window (chronic_hosts), with the reason for a cordon.
Result<std::map<std::string, std::string>> note_blames_of_run(const NodeStore& store,
                                                              const std::string& run,
                                                              std::vector<Blame> blames,
                                                              std::int64_t runs, double window);

/// "ana@bastion": who cordons.
std::string this_user();

}  // namespace sortie::launcher

// NodeStore: the NodeState of this user in one file for all runs: <state>/nodes.json, where <state>
// is $XDG_STATE_HOME/sortie or ~/.local/state/sortie, independent of logger.log_dir. A lock file
// next to it serializes changes of concurrent runs; it is released when its process exits. The file
// is replaced atomically.
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
  /// How long a change waits for the lock.
  static constexpr std::chrono::milliseconds kPatience{5000};

  /// Opens the store of this user. ErrorCode::config without HOME.
  static Result<NodeStore> open();
  explicit NodeStore(std::filesystem::path file) : file_(std::move(file)) {}

  /// Reads the state. Without a file, nothing is cordoned. A file that can not be read is an error,
  /// because the cordoned hosts are then unknown.
  Result<NodeState> read() const;

  /// Reads the state, calls `change` and writes the result, while holding the lock.
  /// ErrorCode::timeout if the lock is not free within kPatience; ErrorCode::io if the file can not
  /// be written.
  Result<> change(const std::function<void(NodeState&)>& change) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

/// Returns the state for a run before its start; nothing is cordoned if this user has no store.
Result<NodeState> cordoned_hosts();

/// Result of cordon_hosts_of_run().
struct CordonOutcome {
  std::vector<std::string> cordoned;
  bool breaker_open = false;  // some hosts were not cordoned because of it
};
/// A host that a run cordons, the reason, and for how many failures the host was blamed.
struct CordonOrder {
  std::string host;
  std::string reason;
  std::uint32_t blames = 0;
};
/// For the loop of a run: cordons hosts in `store`. `all`: all hosts that the run knows, including
/// spares.
Result<CordonOutcome> cordon_hosts_of_run(const NodeStore& store, const std::string& run,
                                          const std::vector<CordonOrder>& orders,
                                          const std::vector<std::string>& all);

/// For the loop of a run: stores its current blames (Blame::run is ignored). Returns the
/// chronic_hosts() for `runs` and `window`, with the reason for a cordon.
Result<std::map<std::string, std::string>> note_blames_of_run(const NodeStore& store,
                                                              const std::string& run,
                                                              std::vector<Blame> blames,
                                                              std::int64_t runs, double window);

/// Returns "ana@bastion", for Cordon::by.
std::string this_user();

}  // namespace sortie::launcher

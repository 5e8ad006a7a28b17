// SaveSignals: SIGTERM = save and stop, SIGUSR1 = save and continue, both at the end of a step.
#pragma once

#include <string>

namespace sortie::trainer {

/// Installs signal handlers as long as an object exists; the settings of the first object apply.
/// Several objects at a time belong to ranks that are threads of one process.
///
/// A rank whose peers are gone waits in a collective that never ends, but must exit after SIGTERM.
/// So the first SIGTERM also starts a timer. If no step ends before it expires, waits for peers are
/// given up (communicator.h), so that the rank can save what it has. If no save begins then, the
/// process dies by SIGTERM. A second SIGTERM ends it at once. The timer's signal is SIGALRM.
class SaveSignals {
 public:
  /// After SIGTERM, a step or a save with the peers may take at most `longest_seconds`: otherwise
  /// no time would be left to save before the process is killed. If the file `socket_path` +
  /// training::kHurrySuffix exists at the SIGTERM, it may take only three times the duration given
  /// to expect(). `socket_path` is SORTIE_SOCKET; empty: there is no such file.
  explicit SaveSignals(double longest_seconds, const std::string& socket_path = "");
  ~SaveSignals();
  SaveSignals(const SaveSignals&) = delete;
  SaveSignals& operator=(const SaveSignals&) = delete;

  bool stop_requested() const;
  /// Whether a save was requested since the last call.
  bool take_save_request();

  /// The next step, save or validation will take about `seconds`.
  void expect(double seconds);
  /// Call when a step has ended after which all ranks save and stop: the timer is stopped, and a
  /// SIGTERM that this rank gets later starts none.
  void step_ended();
  /// Call when the last save of this rank begins, with or without a SIGTERM before; it will take
  /// about `seconds`.
  void last_save(double seconds);
  /// Ends the process by SIGTERM, as if it had no handler.
  [[noreturn]] static void die();
};

}  // namespace sortie::trainer

// SaveSignals: SIGTERM = save and stop, SIGUSR1 = save and go on, both at the end of a step.
#pragma once

#include <string>

namespace sortie::trainer {

/// Handlers of this process for as long as one lives: those of the first one. Several at a time are
/// ranks that are threads of one process.
///
/// A rank whose peers are gone waits in a collective that never ends: it must not outlive its
/// SIGTERM. So the first one also sets a timer. When no step ends until then, waits for peers are
/// given up (communicator.h), so that the rank can save what it has; where that begins nothing, the
/// process dies by SIGTERM after all. A second SIGTERM ends it at once. The timer's signal is
/// SIGALRM.
class SaveSignals {
 public:
  /// Nothing is waited for longer than `longest_seconds`, a step as little as a save with the
  /// peers: after that there would be no time to save before the process is killed. Where the file
  /// `SORTIE_SOCKET` + training::kHurrySuffix is there at the SIGTERM, no longer than a step or a
  /// save usually takes. `socket_path` empty: there is nobody who would say that.
  explicit SaveSignals(double longest_seconds, const std::string& socket_path = "");
  ~SaveSignals();
  SaveSignals(const SaveSignals&) = delete;
  SaveSignals& operator=(const SaveSignals&) = delete;

  bool stop_requested() const;
  /// Since the last call.
  bool take_save_request();

  /// What comes next, a step, a save or a validation, takes about `seconds`.
  void expect(double seconds);
  /// A step has ended: from here on a requested stop is under way and may take its time.
  void step_ended();
  /// The last save of this rank begins, with or without a SIGTERM before; it takes about `seconds`.
  void last_save(double seconds);
  /// Ends the process as if it had not taken its SIGTERM.
  [[noreturn]] static void die();
};

}  // namespace sortie::trainer

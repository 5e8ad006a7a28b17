// SaveSignals: SIGTERM = save and stop, SIGUSR1 = save and go on, both at the end of a step.
#pragma once

namespace sortie::trainer {

/// Handlers of this process for as long as it lives; one at a time.
///
/// A rank whose peers are gone waits in a collective that never ends: it must not outlive its
/// SIGTERM. So the first one also sets a timer; when no step ends in the time that one is expected
/// to take, the process dies by SIGTERM after all. A second SIGTERM ends it at once.
class SaveSignals {
 public:
  SaveSignals();
  ~SaveSignals();
  SaveSignals(const SaveSignals&) = delete;
  SaveSignals& operator=(const SaveSignals&) = delete;

  bool stop_requested() const;
  /// Since the last call.
  bool take_save_request();

  /// What comes next ends in about `seconds`.
  void expect(double seconds);
  /// A step has ended: from here on a requested stop is under way and may take its time.
  void step_ended();
};

}  // namespace sortie::trainer

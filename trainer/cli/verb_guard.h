// VerbGuard: exceptions of a verb become errors with an exit code.
#pragma once

#include <exception>
#include <functional>

namespace sortie::trainer {

/// At most one exists in a process, for its whole run. `train` and `bench comm`, which may have
/// peers, install their own handler (RankEnd) within it.
class VerbGuard {
 public:
  /// From now on, an uncaught exception on any thread ends the process with its error and exit
  /// code.
  VerbGuard();
  ~VerbGuard();
  VerbGuard(const VerbGuard&) = delete;
  VerbGuard& operator=(const VerbGuard&) = delete;

  /// Runs the verb and returns its exit code. If it throws, reports the error on stderr, after
  /// destructors have removed temporary files: lack of memory or of threads as
  /// ErrorCode::unsupported, which is the code of `train` for it.
  int run(const std::function<int()>& verb);

 private:
  static void on_terminate();
  std::terminate_handler old_terminate_;
};

}  // namespace sortie::trainer

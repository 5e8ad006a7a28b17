// `sortie attach --adopt`: a new supervisor for a run whose supervisor is gone and whose hosts hold
// their ranks (runner.on_launcher_loss).
#pragma once

#include <string>

namespace sortie::launcher {

struct AttachRequest;

/// Starts the new supervisor apart from this terminal, then attaches to it. Returns the run's exit
/// code, as attach; or what stood in the way.
int adopt(const AttachRequest& request);

}  // namespace sortie::launcher

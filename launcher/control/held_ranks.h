// What the files of a run say whose supervisor is gone: when it was last alive, and how long its
// hosts may hold its ranks.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

/// What a last sign may be older than the moment in which hosts lost their supervisor, in seconds:
/// there is one a minute (run/run_journal.h), hosts wait for their lease, and clocks differ.
inline constexpr double kSignSlackSeconds = 600;

/// When something was last written to the folder of a run or to those of its sites, in whatever
/// attempt; seconds since 1970. 0: there is no such folder.
double last_sign_of_life(const std::filesystem::path& run);

/// For how many seconds the run's hosts hold their ranks without a supervisor
/// (runner.on_launcher_loss); 0: not at all. Error: its config.toml can not be read.
Result<double> hold_seconds(const std::filesystem::path& run);

/// For how many seconds from now hosts may still hold ranks, at most; 0: not any more. `hold`, in
/// seconds: how long they do that.
double hold_left(double last_sign, double hold);

/// The two commands that help then: "`sortie attach --adopt ID` goes on with them, ...".
std::string help_for_held(const std::string& run_id);

}  // namespace sortie::launcher

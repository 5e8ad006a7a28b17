// Ownership: which process may commit to a save folder. The fencing token of checkpoints.
//
// The file `.lock` names the owner: run, attempt, and a token that is random for each claim. A
// process that opens the folder to save claims it by replacing this file with a new one. A commit
// checks that the file still names its own claim; so an attempt that a later one has superseded (a
// rank that was stopped, a host that was cut off and returns) commits nothing any more. README.md
// says why that holds between any two system calls.
//
// If `.lock` is removed during a run, alone or with the whole folder, its claimant claims the
// folder again at the next save, with the same token, unless another process has done so first.
//
// On one machine, or on file systems that support flock between hosts, the file is locked as well:
// then two independent runs do not take the folder from each other. A later attempt of the same run
// does not wait for the lock of an earlier one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

/// The run and the attempt that open a save folder. Attempts are those of one run id; with an empty
/// id no attempt is later than another.
struct Claimant {
  std::string run_id{};
  std::int64_t attempt = 1;
};

class Ownership {
 public:
  /// Claims an existing folder. ErrorCode::checkpoint if another run has locked it, or if a later
  /// attempt of this run has claimed it.
  static Result<Ownership> claim(const std::filesystem::path& save_dir, const Claimant& claimant);
  /// The claim of another process, identified by its token; allows commits while that claim is
  /// current.
  static Ownership of(std::filesystem::path save_dir, Claimant claimant, std::string token);

  /// ErrorCode::checkpoint if the folder has another owner by now, or none.
  Result<> check() const;
  /// ErrorCode::checkpoint if the folder has another owner by now; no error if it has none.
  Result<> check_not_taken() const;
  /// The same as check(), but if the folder or its `.lock` was removed, and no other process has
  /// claimed it since, makes the folder and claims it again, with a warning. The claim of another
  /// process (of()) is never renewed: on its host the folder may be a different one. Not for two
  /// threads at once.
  Result<> keep();
  const std::string& token() const { return token_; }

 private:
  Ownership(std::filesystem::path save_dir, Claimant claimant, std::string token, Fd lock);
  Result<> claim_again();

  std::filesystem::path save_dir_;
  Claimant claimant_;
  std::string token_;
  Fd lock_;  // held as long as this object exists; none for the claim of another process
};

}  // namespace sortie::trainer

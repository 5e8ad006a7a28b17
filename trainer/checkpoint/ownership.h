// Ownership: which process may commit into a save folder. The fencing token of checkpoints.
//
// The file `.lock` names the owner: run, attempt, and a token made at random for each claim. Who
// opens the folder to save claims it by putting a new file in its place. A commit asks whether the
// file still names its own claim; so an attempt whose place a later one has taken (a rank that was
// stopped, a host that was cut off and comes back) commits nothing any more. README.md says why
// that holds between any two system calls.
//
// Of one machine, or of file systems that carry flock between hosts, the file is locked as well:
// then two runs that know nothing of each other do not claim the folder in turns. A later attempt
// of the same run does not wait for the lock of an earlier one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

/// Who opens a save folder. Attempts are those of one run id; an empty id is nobody's later
/// attempt.
struct Claimant {
  std::string run_id{};
  std::int64_t attempt = 1;
};

class Ownership {
 public:
  /// Claims the folder, which is there. ErrorCode::checkpoint where another run has it locked, or a
  /// later attempt of this run has claimed it.
  static Result<Ownership> claim(const std::filesystem::path& save_dir, const Claimant& claimant);
  /// The claim of another process, by its token: as good for commits as long as it stands.
  static Ownership of(std::filesystem::path save_dir, Claimant claimant, std::string token);

  /// ErrorCode::checkpoint where the folder has another owner by now, or none.
  Result<> check() const;
  const std::string& token() const { return token_; }

 private:
  Ownership(std::filesystem::path save_dir, Claimant claimant, std::string token, Fd lock);

  std::filesystem::path save_dir_;
  Claimant claimant_;
  std::string token_;
  Fd lock_;  // held as long as this is; none for the claim of another process
};

}  // namespace sortie::trainer

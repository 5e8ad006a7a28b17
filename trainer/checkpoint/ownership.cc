#include "trainer/checkpoint/ownership.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/atomic_file.h"
#include "common/base/file_lock.h"
#include "common/base/host_name.h"
#include "common/base/json_text.h"
#include "common/base/log.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/small_file.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLockFile = ".lock";
constexpr std::size_t kMaxOwner = 4096;

/// The contents of `.lock`; members are empty if it does not have them, as in older versions.
struct Owner {
  Claimant claimant{};
  std::string token{}, host{};
  std::int64_t pid = 0;

  std::string text() const {
    if (token.empty()) return "an unknown process";
    return fmt::format("run {}, attempt {}, pid {} on {}", claimant.run_id, claimant.attempt, pid,
                       host);
  }
};

std::string to_text(const Owner& owner) {
  const nlohmann::ordered_json root = {{"run_id", owner.claimant.run_id},
                                       {"attempt", owner.claimant.attempt},
                                       {"token", owner.token},
                                       {"host", owner.host},
                                       {"pid", owner.pid}};
  return json_text(root) + "\n";
}

Owner parse_owner(std::string_view text) {
  const auto root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Owner owner;
  if (!root.is_object()) return owner;
  const auto string = [&](const char* key, std::string& to) {
    if (const auto at = root.find(key); at != root.end() && at->is_string()) at->get_to(to);
  };
  const auto number = [&](const char* key, std::int64_t& to) {
    if (const auto at = root.find(key); at != root.end() && at->is_number_integer()) at->get_to(to);
  };
  string("run_id", owner.claimant.run_id);
  string("token", owner.token);
  string("host", owner.host);
  number("attempt", owner.claimant.attempt);
  number("pid", owner.pid);
  return owner;
}

/// Returns nullopt if there is no such file. Opens it anew, so that network file systems ask the
/// server.
Result<std::optional<Owner>> read_owner(const fs::path& save_dir) {
  Result<std::string> text = read_file(save_dir / kLockFile, kMaxOwner);
  if (!text && text.error().code == ErrorCode::not_found) return std::nullopt;
  if (!text) return std::unexpected(std::move(text).error());
  return parse_owner(*text);
}

bool is_later_attempt(const Claimant& claimant, const Claimant& than) {
  return !claimant.run_id.empty() && claimant.run_id == than.run_id &&
         claimant.attempt > than.attempt;
}

/// Whether the path still refers to the open file.
bool is_named(const Fd& file, const fs::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(file.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

/// Locks the existing file, so that two claims do not happen at once. Returns no lock if there is
/// no file yet, or if its holder is an attempt that `claimant` supersedes.
Result<Fd> lock_present(const fs::path& save_dir, const Claimant& claimant) {
  const fs::path path = save_dir / kLockFile;
  for (;;) {
    Fd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock && errno == ENOENT) return Fd();
    if (!lock) return std::unexpected(os_error(errno, "open " + path.string()));
    const FileLock got = try_lock_file(lock.get(), LOCK_EX);
    if (got == FileLock::absent) return Fd();
    if (got == FileLock::failed) return std::unexpected(os_error(errno, "lock " + path.string()));
    if (got == FileLock::taken) {
      if (is_named(lock, path)) return lock;
      continue;  // it was replaced meanwhile
    }
    SORTIE_ASSIGN_OR_RETURN(const std::optional<Owner> found, read_owner(save_dir));
    const Owner holder = found.value_or(Owner{});
    if (is_later_attempt(claimant, holder.claimant)) return Fd();
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: another run saves there ({}); wait for it or set another "
                            "trainer.save_dir",
                            save_dir.string(), holder.text()));
  }
}

std::unexpected<Error> taken_over(const fs::path& save_dir, const Owner& owner,
                                  const Claimant& claimant) {
  return fail(ErrorCode::checkpoint,
              fmt::format("{}: it now belongs to {}; this is run {}, attempt {}, which must not "
                          "commit there: end it",
                          save_dir.string(), owner.text(), claimant.run_id, claimant.attempt));
}

struct WrittenClaim {
  fs::path path;  // to be renamed to `.lock`
  Fd lock;        // of that file
};

/// Writes a new file that names the owner, and locks it.
Result<WrittenClaim> write_claim(const fs::path& save_dir, const Owner& owner) {
  fs::path path = save_dir / fmt::format(".tmp-lock.{}", new_lineage());  // unique
  SORTIE_TRY(write_small_file(path, to_text(owner)));
  Fd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) return std::unexpected(os_error(errno, "open " + path.string()));
  if (!lock_file_or_none(lock.get(), LOCK_EX))
    return std::unexpected(os_error(errno, "lock " + path.string()));
  return WrittenClaim{std::move(path), std::move(lock)};
}

}  // namespace

Ownership::Ownership(fs::path save_dir, Claimant claimant, std::string token, Fd lock)
    : save_dir_(std::move(save_dir)),
      claimant_(std::move(claimant)),
      token_(std::move(token)),
      lock_(std::move(lock)) {}

Ownership Ownership::of(fs::path save_dir, Claimant claimant, std::string token) {
  return Ownership(std::move(save_dir), std::move(claimant), std::move(token), Fd());
}

Result<Ownership> Ownership::claim(const fs::path& save_dir, const Claimant& claimant) {
  SORTIE_ASSIGN_OR_RETURN(const Fd before, lock_present(save_dir, claimant));
  SORTIE_ASSIGN_OR_RETURN(const std::optional<Owner> owner, read_owner(save_dir));
  if (owner && is_later_attempt(owner->claimant, claimant))
    return taken_over(save_dir, *owner, claimant);

  const Owner self{claimant, new_lineage(), host_name(), ::getpid()};
  SORTIE_ASSIGN_OR_RETURN(WrittenClaim written, write_claim(save_dir, self));
  SORTIE_TRY(file_ops::rename_path(written.path, save_dir / kLockFile));
  SORTIE_TRY(file_ops::sync_dir(save_dir));
  Ownership ownership(save_dir, claimant, self.token, std::move(written.lock));
  // Without a file to lock two processes may have claimed at once: the last one owns the folder.
  SORTIE_TRY(ownership.check());
  return ownership;
}

Result<> Ownership::check() const {
  SORTIE_ASSIGN_OR_RETURN(const std::optional<Owner> owner, read_owner(save_dir_));
  if (!owner)
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: the folder or its {} was removed, so that it has no owner; "
                            "this process must not commit there",
                            save_dir_.string(), kLockFile));
  if (owner->token == token_) return {};
  return taken_over(save_dir_, *owner, claimant_);
}

Result<> Ownership::check_not_taken() const {
  SORTIE_ASSIGN_OR_RETURN(const std::optional<Owner> owner, read_owner(save_dir_));
  if (!owner || owner->token == token_) return {};
  return taken_over(save_dir_, *owner, claimant_);
}

Result<> Ownership::keep() {
  SORTIE_ASSIGN_OR_RETURN(const std::optional<Owner> owner, read_owner(save_dir_));
  if (!owner && lock_) SORTIE_TRY(claim_again());
  return check();
}

/// Puts `.lock` back, with the same token: the other processes of the attempt know it. Whoever has
/// claimed the folder since keeps it, because the file is not replaced; check() then fails.
Result<> Ownership::claim_again() {
  std::error_code error;
  const bool made = fs::create_directories(save_dir_, error);
  if (error)
    return fail(ErrorCode::io, fmt::format("create {}, which was removed during the run: {}",
                                           save_dir_.string(), error.message()));
  SORTIE_ASSIGN_OR_RETURN(WrittenClaim written,
                          write_claim(save_dir_, {claimant_, token_, host_name(), ::getpid()}));
  SORTIE_ASSIGN_OR_RETURN(const bool placed,
                          file_ops::rename_if_absent(written.path, save_dir_ / kLockFile));
  if (!placed) return file_ops::remove_tree(written.path);
  SORTIE_TRY(file_ops::sync_dir(save_dir_));
  lock_ = std::move(written.lock);
  if (made)
    log::warning(
        "{}: the folder was removed or moved during the run, with the checkpoints in it; it was "
        "made again, and the next checkpoint is saved there",
        save_dir_.string());
  else
    log::warning("{}: its {} was removed during the run; the folder was claimed again",
                 save_dir_.string(), kLockFile);
  return {};
}

}  // namespace sortie::trainer

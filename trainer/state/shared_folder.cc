#include "trainer/state/shared_folder.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/base/atomic_file.h"
#include "common/base/log.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/state/rank_texts.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

std::string file_of_rank(int rank) {
  return fmt::format("rank-{}", rank);
}

Result<> write_token(const fs::path& path, const std::string& token) {
  SORTIE_ASSIGN_OR_RETURN(Fd file, file_ops::create_file(path));
  SORTIE_TRY(file_ops::write_all(file, std::as_bytes(std::span(token)), path));
  return file_ops::close_file(std::move(file), path);
}

bool has_token(const fs::path& path, const std::string& token) {
  const Result<std::string> text = read_file(path, 1u << 10);
  return text && *text == token;
}

/// Returns a string that distinguishes a file from any other; empty if it cannot be read.
std::string identity_of(const fs::path& file) {
  struct stat info {};
  const Result<std::string> text = read_file(file, 1u << 10);
  if (!text || ::stat(file.c_str(), &info) != 0) return "";
  return fmt::format("{} {}.{:09} {}", info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                     *text);
}

bool all_say_yes(Communicator& communicator, bool mine) {
  const auto votes = communicator.all_gather(mine ? "y" : "n");
  return std::ranges::all_of(votes, [](const std::string& vote) { return vote == "y"; });
}

}  // namespace

Result<bool> all_ranks_write_to(Communicator& communicator, const fs::path& folder) {
  if (communicator.size() == 1) return true;
  const bool first = communicator.rank() == 0;
  // The name is new, so no client of a network file system has looked it up before. It is one that
  // CheckpointStore::open removes, should this process die.
  const std::string own_token = new_lineage();
  Result<std::string> made = own_token;
  if (first)
    if (auto done = file_ops::make_dir(folder / fmt::format(".tmp-probe-{}", own_token)); !done)
      made = std::unexpected(std::move(done).error());
  const auto told = unpack(communicator.all_gather(first ? pack({made}) : "")[0]);
  if (!told.front()) return std::unexpected(told.front().error());
  const std::string& token = *told.front();
  const fs::path probe = folder / fmt::format(".tmp-probe-{}", token);
  const Result<> wrote = write_token(probe / file_of_rank(communicator.rank()), token);
  bool all = all_say_yes(communicator, wrote.has_value());
  if (first && all)
    for (int rank = 0; rank < communicator.size(); ++rank)
      all = all && has_token(probe / file_of_rank(rank), token);
  all = all_say_yes(communicator, all);
  if (first)
    if (auto removed = file_ops::remove_tree(probe); !removed)
      log::warning("{}", removed.error().message);
  return all;
}

bool all_ranks_see(Communicator& communicator, const fs::path& checkpoint) {
  if (communicator.size() == 1) return true;
  const auto identities = communicator.all_gather(identity_of(checkpoint / kCommitFile));
  return !identities[0].empty() &&
         std::ranges::all_of(identities, [&](const auto& one) { return one == identities[0]; });
}

}  // namespace sortie::trainer

// Tests of saves by several ranks, which are processes here. Each writes its shard into one folder;
// rank 0 begins and commits. Any of them may be killed, or get an error, at any system call.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "common/base/process_status.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kRanks = 3;

/// Carries one line of text from one process to another.
struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read_end = ends[0];
    write_end = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(read_end);
    close(write_end);
  }
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  void send(const std::string& text) const {
    const std::string line = text + "\n";
    if (::write(write_end, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      ::_exit(30);
  }
  /// Returns an empty text if no process has the write end open.
  std::string receive() const {
    std::string text;
    for (char c = 0; ::read(read_end, &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
};

struct Channels {
  std::array<Pipe, kRanks> folders, reports;  // rank 0 to ranks 1 and 2, and back
};

/// Exit codes of ranks that were not killed.
enum Exit { kSaved = 0, kSaveFailed = 12, kPeerLost = 20 };

/// Does one rank's part of a save. Returns kPeerLost if a peer is gone, as a failed collective
/// would.
int save_as(std::size_t rank, CheckpointStore* store, std::int64_t step, Channels& channels) {
  Result<fs::path> folder;
  if (rank == 0) {
    folder = store->begin(step, 10'000);
    for (std::size_t peer = 1; peer < kRanks; ++peer)
      channels.folders[peer].send(folder ? folder->string() : "-");
    if (!folder) return kSaveFailed;
  } else {
    const std::string told = channels.folders[rank].receive();
    if (told.empty()) return kPeerLost;
    if (told == "-") return kSaveFailed;
    folder = told;
  }
  const Result<ShardInfo> own = test_job::write_one(*folder, step, rank, kRanks);
  if (rank != 0) {
    channels.reports[rank].send(own ? serialize(*own) : "-");
    return own ? kSaved : kSaveFailed;
  }
  std::vector<ShardInfo> shards;
  bool all = own.has_value();
  if (own) shards.push_back(*own);
  for (std::size_t peer = 1; peer < kRanks; ++peer) {
    const std::string text = channels.reports[peer].receive();
    if (text.empty()) return kPeerLost;
    const auto shard = parse_shard_info(text);
    all = all && shard.has_value();
    if (shard) shards.push_back(*shard);
  }
  if (!all) return store->abandon(*folder) ? kSaveFailed : kPeerLost;
  if (!store->commit(*folder, test_job::manifest_of(step), shards)) return kSaveFailed;
  return store->retain(step, 2) ? kSaved : kSaveFailed;
}

struct Ended {
  std::vector<ProcessStatus> ranks;
  bool all_saved = true;
};

/// Saves a step with three processes. Rank `faulty` runs with `fault`.
Ended save_by_processes(const fs::path& dir, std::int64_t step, std::size_t faulty,
                        const std::string& fault) {
  Channels channels;
  std::array<pid_t, kRanks> children{};
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    children[rank] = ::fork();
    REQUIRE(children[rank] >= 0);
    if (children[rank] != 0) continue;
    ::signal(SIGPIPE, SIG_IGN);
    // Keeps only the pipe ends of this rank open, so that the exit of a peer is seen as end of
    // file.
    for (std::size_t peer = 1; peer < kRanks; ++peer) {
      Pipe::close(rank == 0 ? channels.folders[peer].read_end : channels.folders[peer].write_end);
      Pipe::close(rank == 0 ? channels.reports[peer].write_end : channels.reports[peer].read_end);
      if (rank == 0 || rank == peer) continue;
      Pipe::close(channels.folders[peer].read_end);
      Pipe::close(channels.reports[peer].write_end);
    }
    std::optional<CheckpointStore> store;
    if (rank == 0) {
      auto opened = CheckpointStore::open(dir, {"test"});
      if (!opened) ::_exit(10);
      store = std::move(*opened);
    }
    if (!file_ops::set_fault(rank == faulty ? fault : "")) ::_exit(11);
    ::_exit(save_as(rank, store ? &*store : nullptr, step, channels));
  }
  for (std::size_t peer = 1; peer < kRanks; ++peer)
    for (Pipe* pipe : {&channels.folders[peer], &channels.reports[peer]}) {
      Pipe::close(pipe->read_end);
      Pipe::close(pipe->write_end);
    }
  Ended ended;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    ended.ranks.push_back(ProcessStatus::from_wait_status(status));
    ended.all_saved = ended.all_saved && status == 0;
  }
  return ended;
}

std::int64_t newest_step(const fs::path& dir) {
  const auto latest = find_latest(dir, CheckDepth::hashes);
  REQUIRE(latest.has_value());
  CHECK(latest->skipped.empty());
  REQUIRE(latest->entry.has_value());
  CHECK(test_job::holds_step(latest->entry->folder, latest->entry->step));
  return latest->entry->step;
}

/// Injects a fault at operation 1, 2, ... of rank `faulty`, until `at` is beyond its last
/// operation.
void check_faults(std::size_t faulty, const std::string& action) {
  CAPTURE(faulty);
  CAPTURE(action);
  for (std::uint64_t at = 1;; ++at) {
    CAPTURE(at);
    REQUIRE(at < 200);
    test::ScopedTempDir dir("/dev/shm");
    for (const std::int64_t step : {1, 2})
      REQUIRE(save_by_processes(dir.path(), step, 0, "").all_saved);
    const Ended ended =
        save_by_processes(dir.path(), 3, faulty, "checkpoint:" + std::to_string(at) + ":" + action);
    const std::int64_t newest = newest_step(dir.path());
    if (ended.all_saved) {
      CHECK(newest == 3);
      CHECK(at > (faulty == 0 ? 10u : 3u));
      return;
    }
    CHECK(newest >= 2);
    if (action == "kill") CHECK(ended.ranks[faulty].code == SIGKILL);
    // Nothing is committed if the shard of any rank is missing.
    if (faulty != 0) CHECK(newest == 2);
    REQUIRE(save_by_processes(dir.path(), 4, 0, "").all_saved);
    CHECK(newest_step(dir.path()) == 4);
    std::size_t hidden = 0;
    for (const auto& entry : fs::directory_iterator(dir.path()))
      hidden += entry.path().filename().string().starts_with(".") ? 1 : 0;
    CHECK(hidden == 1);  // the lock
  }
}

}  // namespace

TEST_CASE("a rank that is killed at any system call of a save costs that save alone") {
  for (const std::size_t rank : {0u, 1u, 2u}) check_faults(rank, "kill");
}

TEST_CASE("an error of one rank at any system call of a save costs that save alone") {
  for (const char* action : {"enospc", "eio"})
    for (const std::size_t rank : {0u, 1u}) check_faults(rank, action);
}

TEST_CASE("a rank that outlives its run writes into no later save") {
  test::ScopedTempDir dir("/dev/shm");
  auto old = CheckpointStore::open(dir.path(), {"old"});
  REQUIRE(old.has_value());
  const auto folder = old->begin(1, 10'000);
  REQUIRE(folder.has_value());
  REQUIRE(test_job::write_one(*folder, 1, 1, 2).has_value());
  old = fail(ErrorCode::lost, "its rank 0 is gone");
  auto store = CheckpointStore::open(dir.path(), {"new"});
  REQUIRE(store.has_value());
  const auto again = store->begin(1, 10'000);
  REQUIRE(again.has_value());
  CHECK_FALSE(test_job::write_one(*folder, 1, 0, 2).has_value());  // the late rank's path is gone
  CHECK(fs::is_empty(*again));
  REQUIRE(test_job::save(*store, 1).has_value());
  CHECK(newest_step(dir.path()) == 1);
}

}  // namespace sortie::trainer

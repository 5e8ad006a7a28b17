// Tests of the shares of a checkpoint in memory files: what a process that dies at any moment
// leaves there.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/memory_share.h"
#include "trainer/storage/sha256.h"

using namespace sortie;
using namespace sortie::trainer;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kShareBytes = 1 << 16;

SealedShare share_of_step(std::int64_t step, char slot, const std::string& run = "run-a") {
  SealedShare share;
  share.name = {1, 3, slot};
  share.attempt = 2;
  share.manifest.run_id = run;
  share.manifest.lineage = "5d2c81f09ab34e67";
  share.manifest.step = step;
  share.shard.file = share_data_path("", share.name).string();
  share.shard.bytes = kShareBytes;
  share.shard.pieces.push_back({.key = "w@0",
                                .name = "w",
                                .shape = {kShareBytes / 4},
                                .piece = Piece::whole({kShareBytes / 4})});
  return share;
}

/// Takes a snapshot as a rank does: writes bytes that differ from step to step, then seals the
/// share.
Result<> take_share(const fs::path& folder, SealedShare share) {
  SORTIE_TRY(unseal_share(folder, share.name));
  SORTIE_ASSIGN_OR_RETURN(const ShareMemory memory,
                          ShareMemory::take(folder, share.name, kShareBytes));
  std::memset(memory.bytes().data(), static_cast<int>(share.manifest.step), memory.bytes().size());
  share.shard.sha256 = sha256_hex(memory.bytes());
  return seal_share(folder, share);
}

bool is_whole(const fs::path& folder, const SealedShare& share) {
  const std::string bytes = sortie::test::read_text(share_data_path(folder, share.name));
  return bytes.size() == kShareBytes && sha256_hex(bytes) == share.shard.sha256 &&
         bytes.front() == static_cast<char>(share.manifest.step);
}

}  // namespace

TEST_CASE("a sealed share comes back as it was, and only to its own run") {
  const sortie::test::ScopedTempDir dir;
  REQUIRE(take_share(dir.path(), share_of_step(20, 'a')));
  const auto found = sealed_shares(dir.path(), "run-a");
  REQUIRE(found.size() == 1);
  CHECK(found[0].name == ShareName{1, 3, 'a'});
  CHECK(found[0].attempt == 2);
  CHECK(found[0].manifest.step == 20);
  CHECK(found[0].manifest.lineage == "5d2c81f09ab34e67");
  REQUIRE(found[0].shard.pieces.size() == 1);
  CHECK(found[0].shard.pieces[0].name == "w");
  CHECK(is_whole(dir.path(), found[0]));
  CHECK(sealed_shares(dir.path(), "run").empty());
  CHECK(sealed_shares(dir / "absent", "run-a").empty());
}

TEST_CASE("a share whose seal was changed is none; so is one that was unsealed") {
  const sortie::test::ScopedTempDir dir;
  REQUIRE(take_share(dir.path(), share_of_step(20, 'a')));
  const fs::path seal = dir / "share-00001-of-00003.a.seal";
  const std::string text = sortie::test::read_text(seal);
  for (std::size_t at = 0; at < text.size(); at += 37) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    sortie::test::write_text(seal, changed);
    CAPTURE(at);
    CHECK(sealed_shares(dir.path(), "run-a").empty());
  }
  sortie::test::write_text(seal, text.substr(0, text.size() / 2));
  CHECK(sealed_shares(dir.path(), "run-a").empty());
  sortie::test::write_text(seal, text);
  CHECK(sealed_shares(dir.path(), "run-a").size() == 1);
  REQUIRE(unseal_share(dir.path(), {1, 3, 'a'}));
  CHECK(sealed_shares(dir.path(), "run-a").empty());
  CHECK(unseal_share(dir.path(), {1, 3, 'a'}));
}

TEST_CASE("a process that is killed at any operation leaves the other slot, and no share torn") {
  bool done = false;
  for (int operation = 1; !done && operation < 20; ++operation) {
    CAPTURE(operation);
    const sortie::test::ScopedTempDir dir;
    REQUIRE(take_share(dir.path(), share_of_step(20, 'a')));
    REQUIRE(take_share(dir.path(), share_of_step(40, 'b')));
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      (void)file_ops::set_fault("checkpoint:" + std::to_string(operation) + ":kill");
      ::_exit(take_share(dir.path(), share_of_step(60, 'a')) ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    done = WIFEXITED(status);
    CHECK((done ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL));
    const auto found = sealed_shares(dir.path(), "run-a");
    bool before = false, now = false;
    for (const SealedShare& share : found) {
      CHECK(is_whole(dir.path(), share));
      CHECK(share.manifest.step != 20);
      before = before || share.manifest.step == 40;
      now = now || share.manifest.step == 60;
    }
    CHECK(before);
    CHECK((now || !done));
    // The next clean-up removes a share that was left half written.
    REQUIRE(remove_shares_but(dir.path(), {{1, 3, 'b'}}));
    CHECK(sealed_shares(dir.path(), "run-a").size() == 1);
    CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 2);
  }
  CHECK(done);
}

TEST_CASE("memory that is not there is an error before anything is written to it") {
  const sortie::test::ScopedTempDir dir;
  const auto taken = ShareMemory::take(dir.path(), {0, 1, 'a'}, std::uint64_t{1} << 60);
  REQUIRE_FALSE(taken);
  CHECK_FALSE(fs::exists(dir / "share-00000-of-00001.a.data"));
  CHECK_FALSE(ShareMemory::take(dir / "absent", {0, 1, 'a'}, 100));
}

TEST_CASE("a folder that was removed and made again is noticed") {
  const sortie::test::ScopedTempDir dir;
  fs::create_directory(dir / "m");
  const auto memory = ShareMemory::take(dir / "m", {0, 1, 'a'}, 100);
  REQUIRE(memory);
  CHECK(memory->is_named());
  fs::remove_all(dir / "m");
  CHECK_FALSE(memory->is_named());
  fs::create_directory(dir / "m");
  const auto other = ShareMemory::take(dir / "m", {0, 1, 'a'}, 100);
  REQUIRE(other);
  CHECK(other->is_named());
  CHECK_FALSE(memory->is_named());
}

TEST_CASE("who uses a share's memory hears of its end, once, wherever the share has moved") {
  const sortie::test::ScopedTempDir dir;
  std::vector<std::size_t> released;
  {
    ShareMemory kept;
    for (const std::size_t bytes : {100, 200}) {
      auto taken = ShareMemory::take(dir.path(), {0, 1, bytes == 100 ? 'a' : 'b'}, bytes);
      REQUIRE(taken);
      taken->on_release([&](std::span<std::byte> memory) {
        memory[0] = std::byte{1};  // still mapped
        released.push_back(memory.size());
      });
      kept = std::move(*taken);
    }
    CHECK(released == std::vector<std::size_t>{100});
    const ShareMemory moved = std::move(kept);
    CHECK(released.size() == 1);
  }
  CHECK(released == std::vector<std::size_t>{100, 200});
}

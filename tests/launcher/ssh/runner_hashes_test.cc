// Hashes of the runner: cached as long as its file is unchanged, and read only from a trusted cache
// file.
#include "launcher/host/runner_hashes.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;

const std::string kOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

struct Hashed {
  test::ScopedTempDir dir;
  test::ScopedVariable cache{"XDG_CACHE_HOME", dir.str("")};
  fs::path remembered = dir / "sortie/runner-hashes";
  struct stat info {};

  /// A file whose last change is old enough for caching.
  Hashed() {
    test::write_text(dir / "runner", "abc");
    REQUIRE(::stat((dir / "runner").c_str(), &info) == 0);
    info.st_ctim.tv_sec -= 100;
  }
};

}  // namespace

TEST_CASE("the hashes of a runner are remembered, and found again") {
  Hashed world;
  const auto hashes = hashes_of_runner("abc", world.info);
  CHECK(hashes.sha256 == kOfAbc);
  CHECK(hashes.xxh3 == "78af5f94892f3950");
  struct stat file {};
  REQUIRE(::stat(world.remembered.c_str(), &file) == 0);
  CHECK((file.st_mode & 07777) == 0600);
  // The content is not read again.
  CHECK(hashes_of_runner("abd", world.info).sha256 == kOfAbc);
}

TEST_CASE("a runner's file that is another one, or that others may write about, is hashed again") {
  Hashed world;
  hashes_of_runner("abc", world.info);
  for (int field = 0; field < 4; ++field) {
    CAPTURE(field);
    struct stat other = world.info;
    if (field == 0) ++other.st_ino;
    if (field == 1) ++other.st_size;
    if (field == 2) ++other.st_ctim.tv_nsec;
    if (field == 3) ++other.st_mtim.tv_sec;
    CHECK(hashes_of_runner("abd", other).sha256 != kOfAbc);
    hashes_of_runner("abc", world.info);
  }
  REQUIRE(::chmod(world.remembered.c_str(), 0622) == 0);
  CHECK(hashes_of_runner("abd", world.info).sha256 != kOfAbc);
}

TEST_CASE("a broken memory of a runner's hashes is no memory") {
  Hashed world;
  hashes_of_runner("abc", world.info);
  const std::string whole = test::read_text(world.remembered);
  std::string wrong = whole;
  wrong[whole.size() - 5] = 'x';
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() - 1), whole + "a",
                                  std::string(whole.size(), '\0'), wrong}) {
    test::write_text(world.remembered, text);
    CHECK(hashes_of_runner("abd", world.info).sha256 != kOfAbc);
  }
}

TEST_CASE("a runner's file that has just changed is not remembered") {
  Hashed world;
  world.info.st_ctim.tv_sec += 1000;
  CHECK(hashes_of_runner("abc", world.info).sha256 == kOfAbc);
  CHECK_FALSE(fs::exists(world.remembered));
}

}  // namespace sortie::launcher

// A runner installed under the hash of its content runs only with that content.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/hex.h"
#include "common/files/piece.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"

namespace sortie {
namespace {

namespace fs = std::filesystem;

struct Ended {
  std::string output;  // both streams
  int code = -1;
};

/// Starts the runner as a launcher does, but with an empty input.
Ended start(const fs::path& runner, const std::string& sum = "") {
  Ended ended;
  const std::string command =
      runner.string() + " --stdio --announce " + sum + " < /dev/null 2>&1 | cat -v";
  FILE* pipe = ::popen(("bash -o pipefail -c '" + command + "'").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[512];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    ended.output.append(buffer, count);
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

}  // namespace

TEST_CASE("a runner whose content is not that of its name goes, and says so instead of starting") {
  const std::string content = test::read_text(SORTIE_RUNNER_BINARY);
  const std::string xxh3 =
      fmt::format(" --xxh3 {:016x}", XXH3_64bits(content.data(), content.size()));
  for (const std::string& sum : {std::string(), xxh3}) {
    CAPTURE(sum);
    const test::ScopedTempDir dir;
    const fs::path good = dir / ("runner-" + hex(files::hash_bytes(content)));
    fs::copy_file(SORTIE_RUNNER_BINARY, good);
    CHECK(start(good, sum).output.find("SORTIE HAVE") != std::string::npos);
    CHECK(fs::exists(good));

    std::fstream file(good, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);  // the last byte is not code
    file.put(static_cast<char>(content.back() ^ 1));
    file.close();
    const Ended damaged = start(good, sum);
    CHECK(damaged.output.find("SORTIE HAVE") == std::string::npos);
    CHECK(damaged.output.find("was damaged on this disk") != std::string::npos);
    CHECK(damaged.code != 0);
    CHECK_FALSE(fs::exists(good));

    const fs::path other = dir / "my-runner";  // no hash in its name, as in development
    fs::copy_file(SORTIE_RUNNER_BINARY, other);
    CHECK(start(other, sum).output.find("SORTIE HAVE") != std::string::npos);
  }
}

TEST_CASE("a runner with a job shows by its file's time of access that it is in use") {
  const std::string content = test::read_text(SORTIE_RUNNER_BINARY);
  const std::string hash = hex(files::hash_bytes(content));
  const test::ScopedTempDir dir;
  const fs::path file = dir / ("runner-" + hash);
  fs::copy_file(SORTIE_RUNNER_BINARY, file);
  // A time in the future, which reading the file can not explain: only the runner sets the time
  // back.
  const std::int64_t tomorrow = ::time(nullptr) + 86400;
  const timespec times[] = {{.tv_sec = tomorrow, .tv_nsec = 0},
                            {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  test::RunnerClient client(file.string());
  client.send(wire::Hello{wire::kProtocolVersion, hash});
  REQUIRE(client.expect<wire::Hello>());
  client.send(test::make_job({test::kHelper, "sleep", "60"}));
  REQUIRE(client.expect<wire::JobReady>());
  CHECK(client.wait_until([&] {
    struct stat now {};
    REQUIRE(::stat(file.c_str(), &now) == 0);
    return now.st_atim.tv_sec < tomorrow;
  }));
}

TEST_CASE("a runner that was found good is read again when it was written to, or an hour later") {
  const std::string content = test::read_text(SORTIE_RUNNER_BINARY);
  const std::string sum =
      fmt::format(" --xxh3 {:016x}", XXH3_64bits(content.data(), content.size()));
  const test::ScopedTempDir dir;
  const fs::path file = dir / ("runner-" + hex(files::hash_bytes(content)));
  fs::copy_file(SORTIE_RUNNER_BINARY, file);
  const auto starts = [&] {
    return start(file, sum).output.find("SORTIE HAVE") != std::string::npos;
  };
  // As after installation: a content verified by SHA-256 need not be verified by XXH3 again.
  CHECK(start(file).output.find("SORTIE HAVE") != std::string::npos);
  constexpr const char* kNote = "user.sortie.content";
  char note[256];
  const ssize_t size = ::getxattr(file.c_str(), kNote, note, sizeof note);
  // Simulates damage on disk: the modification time is unchanged. Without extended attributes there
  // is no note, so the file is read again.
  struct stat before {};
  REQUIRE(::stat(file.c_str(), &before) == 0);
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-1, std::ios::end);
    bytes.put(static_cast<char>(content.back() ^ 1));
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  CHECK(starts() == (size > 0));
  if (size > 0) {
    std::string old(note, static_cast<std::size_t>(size));
    const std::size_t time = old.rfind(' ') + 1;
    old = old.substr(0, time) + std::to_string(std::stoll(old.substr(time)) - 3'600'001);
    REQUIRE(::setxattr(file.c_str(), kNote, old.data(), old.size(), 0) == 0);
    CHECK_FALSE(starts());
  }
  CHECK_FALSE(fs::exists(file));
}

}  // namespace sortie

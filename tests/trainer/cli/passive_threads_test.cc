// Tests how the compute threads of the built sortie-train wait: the process executes itself again
// with OMP_WAIT_POLICY=passive and a short spin, unless the user has chosen a policy.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace {

using sortie::Fd;
using sortie::testing::Child;

/// Returns the environment of `sortie-train WORDS... CONFIG` at the time at which it reads its
/// config, one variable per line. `changes` are arguments of env(1), which starts the process.
std::string environment_of(const std::vector<std::string>& changes,
                           const std::vector<std::string>& words) {
  const sortie::test::ScopedTempDir dir;
  const std::string config = dir.str("config");
  REQUIRE(::mkfifo(config.c_str(), 0600) == 0);
  std::vector<std::string> argv = {"/usr/bin/env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"};
  argv.insert(argv.end(), changes.begin(), changes.end());
  argv.push_back(SORTIE_TRAIN_BINARY);
  argv.insert(argv.end(), words.begin(), words.end());
  argv.push_back(config);
  Child child(argv, dir.str("log"));
  // A FIFO can be opened for non-blocking writing only once a process has opened it for reading.
  Fd writer;
  for (int i = 0; !writer && i < 2000; ++i) {
    writer.reset(::open(config.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (!writer) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE_MESSAGE(writer, sortie::test::read_text(dir / "log"));
  std::string text =
      "\n" + sortie::test::read_text("/proc/" + std::to_string(child.pid()) + "/environ");
  for (char& c : text)
    if (c == '\0') c = '\n';
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("compute threads wait passively, unless the user wants them to spin") {
  const std::string by_default = environment_of({}, {"train", "--config"});
  CHECK(has(by_default, "\nOMP_WAIT_POLICY=passive\n"));
  const std::string spin = "\nGOMP_SPINCOUNT=";
  REQUIRE(has(by_default, spin));
  const long spins_for = std::stol(by_default.substr(by_default.find(spin) + spin.size()));
  CHECK(spins_for >= 100);  // 25 us; an iteration takes 10 to 50 ns
  CHECK(spins_for <= 10000);
  // A flag before the verb changes nothing.
  CHECK(has(environment_of({}, {"-q", "train", "--config"}), "\nOMP_WAIT_POLICY=passive\n"));
  const std::string active = environment_of({"OMP_WAIT_POLICY=active"}, {"train", "--config"});
  CHECK(has(active, "\nOMP_WAIT_POLICY=active\n"));
  CHECK_FALSE(has(active, spin));
  const std::string spins = environment_of({"GOMP_SPINCOUNT=1000"}, {"train", "--config"});
  CHECK(has(spins, "\nGOMP_SPINCOUNT=1000\n"));
  CHECK_FALSE(has(spins, "OMP_WAIT_POLICY"));
}

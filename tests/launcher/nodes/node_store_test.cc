// The store on disk: concurrent processes, killed processes, damaged files.
#include "launcher/nodes/node_store.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::contains;
namespace fs = std::filesystem;

pid_t forked(const std::function<void()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    work();
    ::_exit(0);
  }
  return child;
}

int ended(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

void add_one(const NodeStore& store, const std::string& host) {
  // On a slow machine the wait for the lock may time out. Then the change is tried again.
  for (;;) {
    const auto done = store.change([&](NodeState& state) {
      cordon(state, {host, "fan", "ana@b", "", 5, 0});
    });
    if (done) return;
    if (done.error().code != ErrorCode::timeout) ::_exit(1);
  }
}

TEST_CASE("no file is no cordon; the first change makes it, for this user alone") {
  const test::ScopedTempDir dir;
  const NodeStore store(dir / "state/sortie/nodes.json");
  CHECK(store.read()->cordons.empty());
  CHECK_FALSE(fs::exists(dir / "state"));
  REQUIRE(store.change([](NodeState& state) { cordon(state, {"h1", "fan", "a@b", "", 5, 0}); }));
  CHECK(store.read()->find("h1") != nullptr);
  CHECK(fs::status(store.file()).permissions() == fs::perms(0600));
  CHECK(fs::status(dir / "state/sortie").permissions() == fs::perms(0700));
  // A change without effect writes nothing.
  const auto written = fs::last_write_time(store.file());
  fs::remove(dir / "state/sortie/nodes.json.lock");
  REQUIRE(store.change([](NodeState&) {}));
  CHECK(fs::last_write_time(store.file()) == written);
}

TEST_CASE("many processes at once: no change is lost") {
  const test::ScopedTempDir dir;
  const NodeStore store(dir / "nodes.json");
  constexpr int kProcesses = 8, kHosts = 10;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p)
    children.push_back(forked([&] {
      for (int i = 0; i < kHosts; ++i)
        add_one(store, "h" + std::to_string(p) + "-" + std::to_string(i));
    }));
  for (const pid_t child : children) CHECK(ended(child) == 0);
  CHECK(store.read()->cordons.size() == kProcesses * kHosts);
}

TEST_CASE("processes that are killed in mid-change: a whole file, and no lock that stays") {
  const test::ScopedTempDir dir;
  const NodeStore store(dir / "nodes.json");
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const pid_t child = forked([&] {
      for (int i = 0;; ++i) add_one(store, "h" + std::to_string(i % 50));
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ::kill(child, SIGKILL);
    CHECK(WIFSIGNALED(ended(child)));
    REQUIRE(store.read());
    REQUIRE(store.change([&](NodeState& state) {
      cordon(state, {"mine", std::to_string(round), "a@b", "", 5, 0});
    }));
    CHECK(store.read()->find("mine")->reason == std::to_string(round));
  }
}

TEST_CASE("a damaged file stops readers and writers, and is left as it is") {
  const test::ScopedTempDir dir;
  const NodeStore store(dir / "nodes.json");
  test::write_text(store.file(), "{\"schema\": \"sortie/no");
  const auto read = store.read();
  REQUIRE_FALSE(read);
  CHECK(contains(read.error().message,
                 store.file().string() +
                     ": the list of cordoned hosts can not be read: it is no JSON; "
                     "correct the file, or remove it"));
  bool called = false;
  CHECK_FALSE(store.change([&](NodeState&) { called = true; }));
  CHECK_FALSE(called);
  CHECK(test::read_text(store.file()) == "{\"schema\": \"sortie/no");
  // A folder in place of the file.
  fs::remove(store.file());
  fs::create_directory(store.file());
  CHECK_FALSE(store.read());
}

TEST_CASE("a run's cordons: those that the breaker lets through") {
  const test::ScopedTempDir dir;
  const NodeStore store(dir / "nodes.json");
  const auto order = [](const std::string& host) {
    return CordonOrder{host, "rank 3 on " + host, 2};
  };
  const std::vector<std::string> all = {"h1", "h2", "h3", "s1"};
  auto outcome = cordon_hosts_of_run(store, "run-1", {order("h1")}, all);
  REQUIRE(outcome);
  CHECK(outcome->cordoned == std::vector<std::string>{"h1"});
  outcome = cordon_hosts_of_run(store, "run-2", {order("h2"), order("h3")}, all);
  REQUIRE(outcome);
  CHECK(outcome->cordoned == std::vector<std::string>{"h2"});
  CHECK(outcome->breaker_open);
  const NodeState state = *store.read();
  CHECK(state.breaker_open);
  CHECK(state.seen.size() == 4);
  CHECK(state.find("h1")->run == "run-1");
  CHECK(state.find("h1")->reason == "rank 3 on h1");
  CHECK(state.find("h1")->blames == 2);
  CHECK(state.find("h1")->by == this_user());
  CHECK(test::has(this_user(), "@"));
}

}  // namespace
}  // namespace sortie::launcher

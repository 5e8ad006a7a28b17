// Holders of memory checkpoints: the folder outlives jobs, and nothing of it is left after the run,
// however it ends.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "runner/memory/memory_folder.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

namespace {

std::string new_run_id() {
  static int number = 0;
  return "memory-test-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

/// Starts a holder as the launcher does. Returns its folder, or "" if the runner holds none.
std::string hold_memory(RunnerClient& client, const std::string& run_id, std::uint32_t hold_ms = 0,
                        const std::string& host = "h1", std::uint32_t epoch = 1) {
  client.send(wire::Hello{});
  client.send(wire::HoldMemory{run_id, host, hold_ms, 200, 10000, epoch});
  const auto held = client.expect<wire::MemoryHeld>();
  return held ? held->folder : "";
}

bool gone_within(const std::string& path, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (fs::exists(path) && std::chrono::steady_clock::now() < deadline) ::usleep(10000);
  return !fs::exists(path);
}

void keep_something(const std::string& folder) {
  write_text(fs::path(folder) / "share-00000-of-00001.a.data", std::string(100000, 'x'));
}

}  // namespace

TEST_CASE("memory is held until Goodbye, in a folder of this user's own") {
  RunnerClient client;
  const std::string run = new_run_id(), folder = hold_memory(client, run);
  REQUIRE(folder == runner::memory_folder_path(run, "h1"));
  struct stat info {};
  REQUIRE(::stat(folder.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(info.st_uid == ::geteuid());
  keep_something(folder);
  client.pump(milliseconds(500));
  CHECK(fs::exists(folder + "/share-00000-of-00001.a.data"));
  client.send(wire::Goodbye{});
  const auto status = client.wait_exit();
  CHECK((status && status->success()));
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("memory goes when the launcher is gone: end of input, silence, and signals") {
  RunnerClient client;
  const std::string folder = hold_memory(client, new_run_id());
  REQUIRE_FALSE(folder.empty());
  keep_something(folder);
  SUBCASE("end of input") {
    client.close_input();
  }
  SUBCASE("SIGTERM") {
    client.signal(SIGTERM);
  }
  SUBCASE("SIGHUP") {
    client.signal(SIGHUP);
  }
  CHECK(client.wait_exit());
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("the lease: a launcher that says nothing any more") {
  RunnerClient client;
  client.send_heartbeats = false;
  client.send(wire::Hello{});
  client.send(wire::HoldMemory{new_run_id(), "h1", 0, 50, 400});
  const auto held = client.expect<wire::MemoryHeld>();
  REQUIRE(held);
  CHECK(client.wait_exit());
  CHECK_FALSE(fs::exists(held->folder));
}

TEST_CASE(
    "with a hold the memory waits for another launcher, which takes it over with its content") {
  const std::string run = new_run_id();
  RunnerClient first, second;
  const std::string folder = hold_memory(first, run, 60000);
  REQUIRE_FALSE(folder.empty());
  keep_something(folder);
  first.close_input();
  REQUIRE_FALSE(gone_within(folder, milliseconds(300)));
  REQUIRE(hold_memory(second, run) == folder);
  // The first holder exits, because another one holds the memory, and does not remove it.
  CHECK(first.wait_exit());
  CHECK(fs::exists(folder + "/share-00000-of-00001.a.data"));
  second.send(wire::Goodbye{});
  CHECK(second.wait_exit());
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("a hold that nobody comes for ends") {
  RunnerClient client;
  const std::string folder = hold_memory(client, new_run_id(), 300);
  REQUIRE_FALSE(folder.empty());
  client.close_input();
  CHECK(client.wait_exit());
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE(
    "a holder that was killed: the next one of the run takes over, one of another run removes") {
  const std::string run = new_run_id();
  RunnerClient first;
  const std::string folder = hold_memory(first, run);
  REQUIRE_FALSE(folder.empty());
  keep_something(folder);
  // The test holds it too: otherwise holders of concurrent tests would remove it.
  Fd hold(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(hold.get(), LOCK_SH) == 0);
  first.signal(SIGKILL);
  REQUIRE(first.wait_exit());
  REQUIRE(fs::exists(folder));
  SUBCASE("the same run") {
    RunnerClient second;
    REQUIRE(hold_memory(second, run) == folder);
    CHECK(fs::exists(folder + "/share-00000-of-00001.a.data"));
    second.send(wire::Goodbye{});
    CHECK(second.wait_exit());
  }
  SUBCASE("another run") {
    hold.reset();
    RunnerClient second;
    const std::string other = hold_memory(second, new_run_id());
    REQUIRE_FALSE(other.empty());
    CHECK_FALSE(fs::exists(folder));
    CHECK(fs::exists(other));
    second.send(wire::Goodbye{});
    CHECK(second.wait_exit());
    CHECK_FALSE(fs::exists(other));
  }
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("holders that come and go at the same time do not take the place from each other") {
  // The last holder to leave removes the parent folder of all memory, which the other one is about
  // to use.
  const auto come_and_go = [](const std::string& run) {
    int failed = 0;
    for (int i = 0; i < 1000; ++i) {
      auto holder = runner::MemoryHolder::take(run, "h1", 1);
      if (holder)
        holder->remove();
      else
        ++failed;
    }
    return failed;
  };
  const std::string run = new_run_id();
  const pid_t other = ::fork();
  if (other == 0) ::_exit(come_and_go(run + "-other") == 0 ? 0 : 1);
  CHECK(come_and_go(run) == 0);
  int status = 0;
  REQUIRE(::waitpid(other, &status, 0) == other);
  CHECK(status == 0);
}

TEST_CASE("holders of other runs and hosts are left alone") {
  const std::string run = new_run_id();
  RunnerClient first, second, third;
  const std::string a = hold_memory(first, run), b = hold_memory(second, run + "-x"),
                    c = hold_memory(third, run, 0, "h2");
  CHECK(a != b);
  CHECK(a != c);
  runner::remove_unheld_memory(run);
  CHECK(fs::exists(a));
  CHECK(fs::exists(c));
  first.send(wire::Goodbye{});
  CHECK(first.wait_exit());
  CHECK_FALSE(fs::exists(a));
  CHECK(fs::exists(b));
  CHECK(fs::exists(c));
  for (RunnerClient* client : {&second, &third}) {
    client->send(wire::Goodbye{});
    CHECK(client->wait_exit());
  }
}

TEST_CASE("ranks find the folder, and keep it when their attempt is over") {
  RunnerClient holder, client;
  wire::JobSpec job = make_job({public_helper(), "show"});
  job.memory = 1;
  const std::string folder = hold_memory(holder, job.run_id, 0, job.host);
  REQUIRE_FALSE(folder.empty());
  keep_something(folder);
  REQUIRE(client.run(job));
  CHECK(shown_environment(client.out[0])["SORTIE_MEMORY"] == folder);
  CHECK(fs::exists(folder + "/share-00000-of-00001.a.data"));
  holder.send(wire::Goodbye{});
  CHECK(holder.wait_exit());
  CHECK(remains(job) == "");
}

TEST_CASE("launcher and holder killed: the job's runner removes what nobody holds") {
  RunnerClient holder, client;
  wire::JobSpec job = make_job({public_helper(), "sleep"});
  job.memory = 1;
  const std::string folder = hold_memory(holder, job.run_id, 0, job.host);
  REQUIRE_FALSE(folder.empty());
  REQUIRE(client.start(job));
  keep_something(folder);
  holder.signal(SIGKILL);
  REQUIRE(holder.wait_exit());
  client.close_input();
  CHECK(client.wait_exit());
  CHECK(remains(job) == "");
}

TEST_CASE("a sweep ends holders, frozen ones too, and removes what they kept") {
  RunnerClient holder, other;
  const std::string run = new_run_id();
  const std::string folder = hold_memory(holder, run, 60000),
                    theirs = hold_memory(other, run + "-x");
  REQUIRE_FALSE(folder.empty());
  keep_something(folder);
  SUBCASE("working") {}
  SUBCASE("frozen") {
    holder.signal(SIGSTOP);
  }
  RunnerClient sweeper;
  sweeper.send(wire::Hello{});
  sweeper.send(wire::Sweep{run, 200, "", ""});
  const auto swept = sweeper.expect<wire::Swept>();
  REQUIRE(swept);
  CHECK(swept->killed == 1);
  CHECK(swept->left.empty());
  CHECK(holder.wait_exit());
  CHECK(gone_within(folder, milliseconds(0)));
  CHECK(fs::exists(theirs));
  other.send(wire::Goodbye{});
  CHECK(other.wait_exit());
}

TEST_CASE("a launcher that was replaced gets no memory, and takes none from the one after it") {
  const std::string run = new_run_id();
  RunnerClient first, second, late;
  const std::string folder = hold_memory(first, run, 60000, "h1", 1);
  REQUIRE_FALSE(folder.empty());
  keep_something(folder);
  // The next launcher arrives while the first one is still connected: the first holder ends.
  REQUIRE(hold_memory(second, run, 60000, "h1", 2) == folder);
  const auto told = first.expect<wire::RunnerError>();
  REQUIRE(told);
  CHECK(contains(told->message, "another holder has it"));
  CHECK(first.wait_exit());
  // The first launcher tries again.
  late.send(wire::Hello{});
  late.send(wire::HoldMemory{run, "h1", 60000, 200, 10000, 1});
  const auto refused = late.expect<wire::RunnerError>();
  REQUIRE(refused);
  CHECK(contains(refused->message, "epoch 1 is below 2"));
  CHECK(late.wait_exit());
  CHECK(fs::exists(folder + "/share-00000-of-00001.a.data"));
  second.send(wire::Goodbye{});
  const auto status = second.wait_exit();
  CHECK((status && status->success()));
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("a holder whose folder was removed says so and ends") {
  RunnerClient client;
  const std::string folder = hold_memory(client, new_run_id(), 60000);
  REQUIRE_FALSE(folder.empty());
  fs::remove_all(folder);
  const auto told = client.expect<wire::RunnerError>();
  REQUIRE(told);
  CHECK(contains(told->message, "or it was removed"));
  CHECK(client.wait_exit());
}

TEST_CASE("memory for another user of a container: open itself, below a folder that is not") {
  RunnerClient client;
  const std::string folder = hold_memory(client, new_run_id());
  REQUIRE_FALSE(folder.empty());
  REQUIRE(runner::open_memory_to_others(folder));
  struct stat info {};
  REQUIRE(::stat(folder.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0777);
  REQUIRE(::stat(fs::path(folder).parent_path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK_FALSE(runner::open_memory_to_others(folder + "-none"));
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit());
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("orders that are not one") {
  RunnerClient client;
  client.send(wire::Hello{});
  SUBCASE("a run id that no run has") {
    client.send(wire::HoldMemory{"../x", "h1", 0, 200, 10000});
  }
  SUBCASE("no heartbeats") {
    client.send(wire::HoldMemory{"abc", "h1", 0, 0, 0});
  }
  SUBCASE("twice") {
    const std::string run = new_run_id();
    client.send(wire::HoldMemory{run, "h1", 0, 200, 10000});
    REQUIRE(client.expect<wire::MemoryHeld>());
    client.send(wire::HoldMemory{run, "h1", 0, 200, 10000});
  }
  SUBCASE("a job beside the memory") {
    client.send(wire::HoldMemory{new_run_id(), "h1", 0, 200, 10000});
    REQUIRE(client.expect<wire::MemoryHeld>());
    client.send(make_job({public_helper(), "show"}));
  }
  SUBCASE("a sweep beside the memory") {
    client.send(wire::HoldMemory{new_run_id(), "h1", 0, 200, 10000});
    REQUIRE(client.expect<wire::MemoryHeld>());
    client.send(wire::Sweep{"other", 200, "", ""});
  }
  const auto error = client.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "protocol");
  CHECK(client.wait_exit());
}

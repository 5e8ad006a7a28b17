// A rank that the OOM killer ends, in a memory group that is not its own: told from a plain
// SIGKILL.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;

namespace {

/// A memory group of 48 MiB below our own, of cgroup v1 or v2; removed in the end.
class SmallGroup {
 public:
  SmallGroup() {
    std::ifstream self("/proc/self/cgroup");
    for (std::string line; std::getline(self, line);) {
      const auto first = line.find(':'), second = line.find(':', first + 1);
      const std::string controllers = line.substr(first + 1, second - first - 1);
      const std::string path = line.substr(second + 1),
                        name = "/sortie-oom-" + std::to_string(::getpid());
      if (controllers == "memory")
        try_make("/sys/fs/cgroup/memory" + path + name, "/memory.limit_in_bytes");
      else if (controllers.empty())
        try_make("/sys/fs/cgroup" + path + name, "/memory.max");
    }
  }
  ~SmallGroup() {
    for (int tries = 0; !folder_.empty() && tries < 200 && ::rmdir(folder_.c_str()) != 0; ++tries)
      ::usleep(10000);
  }
  bool made() const { return !folder_.empty(); }
  void take(pid_t pid) const { std::ofstream(folder_ + "/cgroup.procs") << pid << std::flush; }

 private:
  void try_make(const std::string& folder, const std::string& limit) {
    if (made() || ::mkdir(folder.c_str(), 0755) != 0) return;
    std::ofstream file(folder + limit);
    file << (48u << 20) << std::flush;
    if (file.good())
      folder_ = folder;
    else
      ::rmdir(folder.c_str());
  }
  std::string folder_;
};

}  // namespace

TEST_CASE("a rank that the OOM killer ended is told from one that was killed") {
  const SmallGroup group;
  // Without the right to make one there is only what parts_test.cc checks: how counters are read.
  if (!group.made()) return MESSAGE("no memory group can be made here; no OOM was provoked");
  RunnerClient client;
  // Rank 1 is killed first, by us; then rank 0 takes memory until there is none.
  wire::JobSpec job = make_job(
      {"/bin/sh", "-c", "[ $RANK = 1 ] && exec sleep 1000; sleep 1; exec tail /dev/zero"}, 2);
  REQUIRE(client.prepare(job));
  group.take(client.pid());
  client.send(wire::Start{});
  while (!client.pids.contains(1)) REQUIRE(client.next());
  ::kill(client.pids.at(1), SIGKILL);
  REQUIRE(client.wait_finished(milliseconds(30000)));
  CHECK(client.exited.at(1).code == SIGKILL);
  CHECK(client.exited.at(1).oom_killed == 0);
  CHECK(client.exited.at(0).signaled == 1);
  CHECK(client.exited.at(0).code == SIGKILL);
  CHECK(client.exited.at(0).oom_killed != 0);
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit());
  CHECK(remains(job) == "");
}

// The runner's pure parts: environment, cgroup texts, event lines, folder names.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runner/cgroup.h"
#include "runner/environment.h"
#include "runner/event_socket.h"
#include "runner/process_tree.h"
#include "runner/run_folder.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::runner;

namespace {

std::string value(const std::vector<std::string>& environment, std::string_view name) {
  return std::string(env_value(environment, name));
}

RankContext host(std::uint32_t cpus) {
  RankContext context;
  context.cpus = cpus;
  return context;
}

}  // namespace

TEST_CASE("threads per rank: the host's cores over its ranks, at least one, unless set") {
  wire::JobSpec job = test::make_job({"x"}, 3);
  CHECK(value(rank_environment({}, job, job.ranks[0], host(16)), "OMP_NUM_THREADS") == "5");
  CHECK(value(rank_environment({}, job, job.ranks[0], host(2)), "OMP_NUM_THREADS") == "1");
  job.env = {{"OMP_NUM_THREADS", "7"}};
  CHECK(value(rank_environment({}, job, job.ranks[0], host(16)), "OMP_NUM_THREADS") == "7");
}

TEST_CASE("Open MPI yields when ranks exceed cores, only then") {
  wire::JobSpec job = test::make_job({"x"}, 3);
  job.mpi = 1;
  const std::string name = "OMPI_MCA_mpi_yield_when_idle";
  CHECK(value(rank_environment({}, job, job.ranks[0], host(2)), name) == "1");
  CHECK(value(rank_environment({}, job, job.ranks[0], host(3)), name) == "");
  job.mpi = 0;
  CHECK(value(rank_environment({}, job, job.ranks[0], host(2)), name) == "");
}

TEST_CASE("who wins: PMIX_* and SORTIE_* over rank over job over PMIx' advice over base") {
  wire::JobSpec job = test::make_job({"x"});
  job.env = {{"PMIX_RANK", "9"}, {"OMPI_MCA_btl", "job"}, {"A", "job"}};
  job.ranks[0].env = {{"A", "rank"}};
  RankContext context;
  context.pmix_env = {"PMIX_RANK=0", "OMPI_MCA_btl=pmix", "OMPI_MCA_x=pmix"};
  context.socket_path = "/s";
  const auto env = rank_environment({"A=base", "B=base"}, job, job.ranks[0], context);
  CHECK(value(env, "A") == "rank");
  CHECK(value(env, "B") == "base");
  CHECK(value(env, "PMIX_RANK") == "0");
  CHECK(value(env, "OMPI_MCA_btl") == "job");
  CHECK(value(env, "OMPI_MCA_x") == "pmix");
  CHECK(value(env, "SORTIE_SOCKET") == "/s");
}

TEST_CASE("PMIx lines: common ones and those of the rank") {
  const std::vector<std::string> lines = {"A=1", "#rank 0", "R=0", "#rank 10", "R=10"};
  CHECK(pmix_lines_for(lines, 0) == std::vector<std::string>{"A=1", "R=0"});
  CHECK(pmix_lines_for(lines, 10) == std::vector<std::string>{"A=1", "R=10"});
  CHECK(pmix_lines_for(lines, 1) == std::vector<std::string>{"A=1"});
}

TEST_CASE("program candidates are those of execvp") {
  using Strings = std::vector<std::string>;
  CHECK(program_candidates("./a", "/x:/y") == Strings{"./a"});
  CHECK(program_candidates("a", "/x::/y") == Strings{"/x/a", "./a", "/y/a"});
  CHECK(program_candidates("a", "") == Strings{"/usr/local/bin/a", "/usr/bin/a", "/bin/a"});
}

TEST_CASE("the own cgroup is found on unified and hybrid mounts and in containers") {
  const std::string unified =
      "24 31 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
  CHECK(cgroup::own_folder(unified, "0::/user.slice/s.scope\n").value() ==
        "/sys/fs/cgroup/user.slice/s.scope");
  const std::string hybrid =
      "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
  CHECK(cgroup::own_folder(hybrid, "9:name=systemd:/\n0::/\n").value() == "/sys/fs/cgroup/unified");
  const std::string part = "24 31 0:22 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  CHECK(cgroup::own_folder(part, "0::/docker/abc/x\n").value() == "/sys/fs/cgroup/x");
  CHECK(cgroup::own_folder(part, "0::/other\n").error().message ==
        "own cgroup is outside the mounted part");
  CHECK(cgroup::own_folder("", "0::/\n").error().message == "no cgroup2 mount");
  CHECK(cgroup::own_folder(unified, "3:memory:/\n").error().message ==
        "this process is in no cgroup2");
}

TEST_CASE("OOM kills are read from memory.events") {
  const std::filesystem::path folder = "/tmp/sortie-test-events-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  CHECK(cgroup::oom_kills(folder) == 0);
  std::ofstream(folder / "memory.events") << "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n";
  CHECK(cgroup::oom_kills(folder) == 2);
  std::filesystem::remove_all(folder);
}

TEST_CASE("event lines: objects in valid UTF-8") {
  CHECK(is_event_line("{}"));
  CHECK(is_event_line("  {\"a\":\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"}\t"));
  for (const char* bad :
       {"", "{", "}", "[1]", "{\"a\":1", "{\"\xff\"}", "{\"\xc0\xaf\"}", "{\"\xed\xa0\x80\"}",
        "{\"\xf4\x90\x80\x80\"}", "{\"\xe2\x82\"}", "{\"\x01\"}"}) {
    CAPTURE(bad);
    CHECK_FALSE(is_event_line(bad));
  }
}

TEST_CASE("folder names stay short and distinct, socket paths fit") {
  CHECK(run_folder_name("run-1", 2, 3) == "run-1-2-3");
  const std::string a = run_folder_name(std::string(63, 'a') + "1", 1, 0);
  const std::string b = run_folder_name(std::string(63, 'a') + "2", 1, 0);
  CHECK(a != b);
  CHECK(a.size() <= 30);
}

TEST_CASE("children are found through the children file and through all of /proc") {
  std::vector<pid_t> forked;
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (i == 2) ::_exit(0);  // a zombie counts
      ::sleep(20);
      ::_exit(0);
    }
    forked.push_back(pid);
  }
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(forked[2]), &info, WEXITED | WNOWAIT);
  std::vector<pid_t> quick = direct_children(), slow = direct_children_by_search();
  std::sort(quick.begin(), quick.end());
  std::sort(slow.begin(), slow.end());
  CHECK(quick == forked);
  CHECK(slow == forked);
  CHECK(process_state(forked[2]) == 'Z');
  kill_children(forked);
  for (pid_t pid : forked) CHECK(::waitpid(pid, nullptr, 0) == pid);
  CHECK(direct_children().empty());
}

TEST_CASE("descriptors become close-on-exec one by one where close_range is missing") {
  const int fd = ::open("/dev/null", O_RDONLY);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0);
  cloexec_all_descriptors_by_search();
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  ::close(fd);
}

// Parts of the runner without side effects: environment, cgroup texts, event lines, folder names.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "runner/cleanup/run_folder.h"
#include "runner/cleanup/sweep.h"
#include "runner/job/environment.h"
#include "runner/process/cgroup.h"
#include "runner/process/oom.h"
#include "runner/process/order.h"
#include "runner/process/process_tree.h"
#include "runner/streams/event_socket.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"

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

bool comes_true(const std::function<bool()>& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!what() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return what();
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
  job.env = {{"PMIX_RANK", "9"},
             {"OMPI_MCA_btl", "job"},
             {"A", "job"},
             {"OMPI_MCA_pmix_base_async_modex", "1"}};
  job.ranks[0].env = {{"A", "rank"}};
  RankContext context;
  context.pmix_env = {"PMIX_RANK=0", "OMPI_MCA_btl=pmix", "OMPI_MCA_x=pmix",
                      "OMPI_MCA_pmix_base_async_modex=0"};
  context.socket_path = "/s";
  const auto env = rank_environment({"A=base", "B=base"}, job, job.ranks[0], context);
  CHECK(value(env, "A") == "rank");
  CHECK(value(env, "B") == "base");
  CHECK(value(env, "PMIX_RANK") == "0");
  CHECK(value(env, "OMPI_MCA_pmix_base_async_modex") == "0");
  CHECK(value(env, "OMPI_MCA_btl") == "job");
  CHECK(value(env, "OMPI_MCA_x") == "pmix");
  CHECK(value(env, "SORTIE_SOCKET") == "/s");
}

TEST_CASE("sortie-pmix gets the base and what concerns libpmix") {
  wire::JobSpec job = test::make_job({"x"});
  job.env = {{"PMIX_MCA_gds", "hash"}, {"SECRET", "1"}, {"LD_LIBRARY_PATH", "/opt/pmix/lib"}};
  CHECK(pmix_environment({"PATH=/bin"}, job) ==
        std::vector<std::string>{"PATH=/bin", "PMIX_MCA_gds=hash", "LD_LIBRARY_PATH=/opt/pmix/lib",
                                 "HWLOC_COMPONENTS=-gl"});
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
  CHECK(oom::kills_in(folder) == 0);
  std::ofstream(folder / "memory.events") << "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n";
  CHECK(oom::kills_in(folder) == 2);
  std::filesystem::remove_all(folder);
}

TEST_CASE("an OOM kill is evidence for one to two minutes, also one in the rank's own group") {
  const std::string root = "/tmp/sortie-test-late-" + std::to_string(::getpid());
  const std::string its = root + "/proc/77", v2 = root + "/sys/fs/cgroup/a";
  for (const std::string& folder : {its, root + "/proc/self", v2})
    std::filesystem::create_directories(folder);
  const auto count = [&](int kills) {
    std::ofstream(v2 + "/memory.events") << "oom " << kills << "\noom_kill " << kills << "\n";
  };
  std::ofstream(root + "/proc/self/mountinfo")
      << "31 29 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  std::ofstream(its + "/cgroup") << "0::/a\n";
  count(0);
  oom::Group container(77, root);
  oom::Watch rank;
  rank.follow(v2);
  const auto tick = [&] {
    container.tick();
    rank.tick();
  };
  tick();
  CHECK_FALSE(container.has_killed());
  CHECK_FALSE(rank.own_rose());
  count(1);  // a helper process is killed, in the first hour
  CHECK(container.has_killed());
  CHECK(rank.own_rose());
  tick();
  CHECK(container.has_killed());
  CHECK(rank.own_rose());
  for (int minutes = 0; minutes < 3; ++minutes) tick();
  CHECK_FALSE(container.has_killed());
  CHECK_FALSE(rank.own_rose());
  count(2);  // the rank itself is killed
  CHECK(container.has_killed());
  CHECK(rank.own_rose());
  std::filesystem::remove_all(root);
}

TEST_CASE("OOM counters above a rank: cgroup v2 as far as one counts, v1, and the kernel's") {
  const std::string root = "/tmp/sortie-test-oom-" + std::to_string(::getpid());
  const std::string proc = root + "/proc/self", v2 = root + "/sys/fs/cgroup/unified",
                    v1 = root + "/sys/fs/cgroup/memory";
  for (const std::string& folder : {proc, v2 + "/a/b/c", v1 + "/x/y"})
    std::filesystem::create_directories(folder);
  CHECK(oom::Counters::read(root).host == 0);  // no files: counters are 0
  std::ofstream(proc + "/mountinfo")
      << "30 29 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
         "31 29 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
         "32 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  std::ofstream(proc + "/cgroup") << "4:cpu:/z\n3:hugetlb,memory:/x/y\n0::/a/b/c\n";
  std::ofstream(root + "/proc/vmstat") << "nr_free_pages 1\noom_kill 7\n";
  std::ofstream(v2 + "/a/memory.events") << "oom 9\noom_kill 5\n";
  std::ofstream(v2 + "/memory.events") << "oom_kill 100\n";
  std::ofstream(v1 + "/x/y/memory.oom_control") << "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
  const auto before = oom::Counters::read(root);
  CHECK(before.group_v2 == 5);
  CHECK(before.group_v1 == 3);
  CHECK(before.host == 7);
  CHECK(!oom::Counters::read(root).rose_since(before));
  std::ofstream(root + "/proc/vmstat") << "nr_free_pages 1\noom_kill 8\n";
  CHECK(oom::Counters::read(root).rose_since(before));
  CHECK(!oom::Counters::read(root).killed_here_since(before));  // elsewhere on the host
  std::ofstream(v1 + "/x/y/memory.oom_control") << "oom_kill 4\n";
  CHECK(oom::Counters::read(root).killed_here_since(before));
  // If no cgroup counts kills, those of the host may concern this job.
  std::filesystem::remove_all(root + "/sys");
  const auto without = oom::Counters::read(root);
  CHECK(!without.group_v2);
  CHECK(!without.group_v1);
  CHECK(without.killed_here_since(before));
  std::filesystem::remove_all(root);
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

TEST_CASE("folders of a run are told from those of a run with a longer id") {
  CHECK(is_run_folder_name(run_folder_name("run-a", 1, 12), "run-a"));
  CHECK(!is_run_folder_name(run_folder_name("run-a-b", 1, 12), "run-a"));
  CHECK(!is_run_folder_name("run-a-1-", "run-a"));
  const std::string long_id(60, 'x');
  CHECK(is_run_folder_name(run_folder_name(long_id, 1, 0), long_id));
}

TEST_CASE("an order to sweep can name nothing but what runners make") {
  CHECK(check_sweep({"run-a", 0, "", ""}));
  CHECK(check_sweep({"run-a", 0, "/sys/fs/cgroup/user.slice/sortie-run-a-1-0", ""}));
  for (const wire::Sweep& bad :
       {wire::Sweep{"", 0, "", ""}, wire::Sweep{"../a", 0, "", ""},
        wire::Sweep{"run-a", 0, "/etc", ""},
        wire::Sweep{"run-a", 0, "/sys/fs/cgroup/user.slice", ""},
        wire::Sweep{"run-a", 0, "/sys/fs/cgroup/sortie-run-b-1-0", ""},
        wire::Sweep{"run-a", 0, "/sys/fs/cgroup/../../tmp/sortie-run-a-1-0", ""}})
    CHECK(!check_sweep(bad));
}

TEST_CASE("children are found through the children file and through all of /proc") {
  std::vector<pid_t> forked;
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (i == 2) ::_exit(0);  // zombies count
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
  std::vector<pid_t> all = forked;  // PIDs wrap around at the kernel's limit
  std::sort(all.begin(), all.end());
  CHECK(quick == all);
  CHECK(slow == all);
  CHECK(process_state(forked[2]) == 'Z');
  kill_children(forked);
  for (pid_t pid : forked) CHECK(::waitpid(pid, nullptr, 0) == pid);
  CHECK(direct_children().empty());
}

TEST_CASE("a process is ending when all of its threads are") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::thread([] { ::pause(); }).detach();
    ::syscall(SYS_exit, 0);  // ends this thread only: the process continues with a zombie leader
  }
  REQUIRE(pid > 0);
  REQUIRE(comes_true([&] { return process_state(pid) == 'Z'; }));
  CHECK_FALSE(is_ending(pid));
  ::kill(pid, SIGKILL);
  CHECK(comes_true([&] { return is_ending(pid); }));
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  CHECK_FALSE(is_ending(pid));
  CHECK_FALSE(is_ending(::getpid()));
}

TEST_CASE("descriptors become close-on-exec one by one where close_range is missing") {
  const int fd = ::open("/dev/null", O_RDONLY);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0);
  cloexec_all_descriptors_by_search();
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  ::close(fd);
}

TEST_CASE("an order of a process arrives as it was") {
  HeldSpec spec;
  spec.title = "t";
  spec.argv = {"a", "", std::string("z\xff\n", 3)};
  spec.env = {"X=" + std::string(1 << 20, 'y')};
  spec.folders = {"/"};
  spec.cpus = {0, 3};
  spec.run_folder = "/tmp/x";
  spec.cgroup = "/sys/fs/cgroup/job/rank-0";
  spec.job_cgroup = "/sys/fs/cgroup/job";
  spec.defaults.umask = 027;
  spec.announce = true;
  const std::string bytes = encode_spec(spec);
  const auto back = decode_spec(bytes);
  REQUIRE(back);
  CHECK(back->argv == spec.argv);
  CHECK(back->env == spec.env);
  CHECK(back->cpus == spec.cpus);
  CHECK(back->defaults.umask == 027);
  CHECK(back->run_folder == spec.run_folder);
  CHECK(back->cgroup == spec.cgroup);
  CHECK(back->job_cgroup == spec.job_cgroup);
  CHECK(back->announce);
  CHECK_FALSE(back->detaches);
  CHECK_FALSE(back->refuse_mpi);
  for (const std::size_t cut : {0ul, 7ul, 20ul, bytes.size() - 1})
    CHECK_FALSE(decode_spec(bytes.substr(0, cut)));
  CHECK_FALSE(decode_spec(bytes + "x"));
}

TEST_CASE("orders, small ones and those that need a file, bring their descriptors") {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  const Fd from(pair[0]), to(pair[1]);
  using std::chrono::milliseconds;
  CHECK(await_order(to.get(), milliseconds(1)).error().code == ErrorCode::timeout);
  const sortie::testing::TempDir dir;
  for (const std::size_t size : {1ul, 15000ul, 17000ul, 1ul << 20}) {
    CAPTURE(size);
    HeldSpec spec;
    spec.title = "t";
    spec.argv = {"a"};
    spec.env = {std::string(size, 'y')};
    spec.candidates = {"/bin/a"};
    Fd files[4];
    struct stat infos[4];
    for (std::size_t i = 0; i < 4; ++i) {
      const std::string path = dir.path() / std::to_string(i);
      files[i].reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
      REQUIRE(::fstat(files[i].get(), &infos[i]) == 0);
    }
    spec.stdout_fd = files[0].get();
    spec.stderr_fd = files[1].get();
    spec.stdin_fd = files[2].get();
    REQUIRE(send_order(from.get(), spec, files[3].get()));
    const auto order = await_order(to.get(), milliseconds(-1));
    REQUIRE_MESSAGE(order, (order ? "" : order.error().message));
    CHECK(order->spec.env == spec.env);
    CHECK(order->spec.candidates == spec.candidates);
    const int received[] = {order->spec.stdout_fd, order->spec.stderr_fd, order->spec.stdin_fd,
                            order->control.get()};
    for (std::size_t i = 0; i < 4; ++i) {
      struct stat info {};
      REQUIRE(::fstat(received[i], &info) == 0);
      CHECK(info.st_ino == infos[i].st_ino);
    }
  }
  REQUIRE(::send(from.get(), "not an order, but long enough", 29, 0) == 29);
  CHECK(await_order(to.get(), milliseconds(-1)).error().code == ErrorCode::protocol);
}

TEST_CASE("an order waits, but not forever, for a receiver that is slower than the sender") {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  const Fd from(pair[0]), to(pair[1]);
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  using std::chrono::milliseconds;
  HeldSpec spec;
  spec.argv = {"a"};
  spec.env = {std::string(15000, 'y')};
  spec.stdout_fd = spec.stderr_fd = null.get();
  int sent = 0;
  while (sent < 1000 && send_order(from.get(), spec, -1)) ++sent;
  REQUIRE(sent < 1000);  // the buffer is full
  CHECK_FALSE(send_order(from.get(), spec, -1, milliseconds(50)));
  std::thread receiver([&] {
    std::this_thread::sleep_for(milliseconds(100));
    for (int order = 0; order < sent; ++order) CHECK(await_order(to.get(), milliseconds(-1)));
  });
  CHECK(send_order(from.get(), spec, -1, milliseconds(20000)));
  receiver.join();
  CHECK(await_order(to.get(), milliseconds(1000)));
}

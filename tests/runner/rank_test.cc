// The state in which a rank starts, and how its end is reported. Real runner, real processes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/cpu_time.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;

TEST_CASE("argv and environment reach the rank byte for byte") {
  const std::string nasty = "a b'c\"d$(id)`x`\\\n\t{a: b} \xff\xfe \x01*";
  wire::JobSpec job = make_job({kHelper, "show", nasty, "", "--x=\xc3\xa4"});
  job.env = {{"JOB", nasty}, {"BOTH", "job"}, {"SORTIE_RUN_ID", "forged"}, {"EMPTY", ""}};
  job.ranks[0].env = {{"BOTH", "rank"}, {"name.with-dots", "1"}};
  RunnerClient client;
  REQUIRE(client.run(job));
  const std::string& shown = client.out[0];
  using namespace std::string_literals;
  CHECK(shown.starts_with("arg "s + kHelper + "\0arg show\0arg "s + nasty +
                          "\0arg \0arg --x=\xc3\xa4\0env "s));
  const auto env = shown_environment(shown);
  CHECK(env.at("JOB") == nasty);
  CHECK(env.at("EMPTY") == "");
  CHECK(env.at("BOTH") == "rank");
  CHECK(env.at("name.with-dots") == "1");
  CHECK(env.at("SORTIE_RUN_ID") == job.run_id);
  CHECK(env.at("SORTIE_ATTEMPT") == "1");
  CHECK(env.contains("SORTIE_SOCKET"));
  CHECK_FALSE(env.contains("SORTIE_CONFIG"));
  CHECK(remains(job) == "");
}

TEST_CASE("a rank inherits a clean base of the runner's environment and nothing else") {
  wire::JobSpec job = make_job({kHelper, "show"});
  RunnerClient client(SORTIE_RUNNER_BINARY,
                      {"PATH=/usr/bin:/bin", "HOME=/tmp", "LC_ALL=C", "SECRET=1", "LD_DEBUG_X=1"});
  REQUIRE(client.run(job));
  const auto env = shown_environment(client.out[0]);
  CHECK(env.at("PATH") == "/usr/bin:/bin");
  CHECK(env.at("HOME") == "/tmp");
  CHECK(env.at("LC_ALL") == "C");
  CHECK_FALSE(env.contains("SECRET"));
  CHECK_FALSE(env.contains("LD_DEBUG_X"));
  CHECK(std::atoi(env.at("OMP_NUM_THREADS").c_str()) >= 1);
}

TEST_CASE("the resolved config is a private file named by SORTIE_CONFIG") {
  wire::JobSpec job = make_job({"sh", "-c",
                                "stat -c '%a %F' \"$SORTIE_CONFIG\"; cat \"$SORTIE_CONFIG\"; "
                                "stat -c %a \"$(dirname \"$SORTIE_CONFIG\")\""});
  job.config_toml = "[trainer]\nsteps = 3\n";
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.out[0] == "600 regular file\n[trainer]\nsteps = 3\n700\n");
  CHECK(remains(job) == "");
}

TEST_CASE("a rank starts with three descriptors, default signals, its own group, its folder") {
  const int leak = ::open("/dev/null", O_RDONLY);  // inherited by the runner, must not reach a rank
  wire::JobSpec job = make_job({kHelper, "state"});
  job.work_dir = "/usr";
  ::umask(027);
  RunnerClient client;
  ::umask(022);
  ::close(leak);
  REQUIRE(client.run(job));
  std::ifstream own_score("/proc/self/oom_score_adj");
  std::string score;
  own_score >> score;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  CHECK(client.out[0] ==
        "fds 0 1 2 \nstdin /dev/null\ncwd /usr\nblocked 0 handled 0\numask 027\nleader 1 1\noom " +
            score + "\nnofile " + std::to_string(files.rlim_cur) + "\n");
}

TEST_CASE("more ranks than the host has open files for are refused before any starts") {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{100, 100};
  RunnerClient client;
  REQUIRE(::prlimit(client.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
  CHECK_FALSE(client.prepare(make_job({"true"}, 16)));
  REQUIRE(client.errors.size() == 1);
  CHECK(client.errors[0].code == "unsupported");
  CHECK(client.errors[0].message ==
        "16 ranks need 208 open files, this host allows 100; raise the hard limit of `ulimit -n` "
        "there (for example in /etc/security/limits.conf)");
  RunnerClient roomy;
  const rlimit enough{208, 208};
  REQUIRE(::prlimit(roomy.pid(), RLIMIT_NOFILE, &enough, nullptr) == 0);
  CHECK(roomy.run(make_job({"true"}, 16)));
}

TEST_CASE("without its work folder a rank starts in the home folder") {
  wire::JobSpec job = make_job({"pwd", "-P"});
  job.work_dir = "/no/such/folder";
  RunnerClient client(SORTIE_RUNNER_BINARY, {"PATH=/usr/bin:/bin", "HOME=/usr/lib"});
  REQUIRE(client.run(job));
  CHECK(client.out[0] == "/usr/lib\n");
  RunnerClient asked;
  const auto ready = asked.prepare(job);
  REQUIRE(ready);
  CHECK(ready->no_work_dir == 1);
}

TEST_CASE("a job that requires its work folder is refused without it") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "file", "");
  struct Row {
    std::string folder, why;
  };
  for (const Row& row : {Row{dir.str("absent"), "No such file or directory"},
                         Row{dir.str("file"), "Not a directory"}}) {
    wire::JobSpec job = make_job({"pwd"});
    job.work_dir = row.folder;
    job.need_work_dir = 1;
    RunnerClient client;
    CHECK_FALSE(client.prepare(job));
    REQUIRE(client.errors.size() == 1);
    CHECK(client.errors[0].code == "unsupported");
    CHECK(client.errors[0].message == "runner.work_dir: " + row.folder + ": " + row.why +
                                          "; create that folder on this host, or correct the key");
  }
  wire::JobSpec job = make_job({"pwd", "-P"});
  job.work_dir = "/usr";
  job.need_work_dir = 1;
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.out[0] == "/usr\n");
  RunnerClient asked;
  const auto ready = asked.prepare(job);
  REQUIRE(ready);
  CHECK(ready->no_work_dir == 0);
}

TEST_CASE("an exit code arrives as it is") {
  wire::JobSpec job = make_job({kHelper, "by-rank"}, 3);
  RunnerClient client;
  REQUIRE(client.run(job));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    const wire::RankExited& exited = client.exited.at(rank);
    CHECK(exited.signaled == 0);
    CHECK(exited.code == 10 + rank);
    CHECK(exited.stopped == 0);
    CHECK(exited.leftovers_killed == 0);
    const auto now = std::chrono::duration_cast<milliseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    CHECK(static_cast<std::int64_t>(exited.time_unix_ms) > now - 20000);
    CHECK(static_cast<std::int64_t>(exited.time_unix_ms) <= now);
  }
  CHECK(remains(job) == "");
}

TEST_CASE("death by SIGSEGV and exit 11 are told apart") {
  RunnerClient by_signal;
  REQUIRE(by_signal.run(make_job({kHelper, "raise", "11"})));
  CHECK(by_signal.exited.at(0).signaled == 1);
  CHECK(by_signal.exited.at(0).code == SIGSEGV);
  RunnerClient by_code;
  REQUIRE(by_code.run(make_job({kHelper, "exit", "11"})));
  CHECK(by_code.exited.at(0).signaled == 0);
  CHECK(by_code.exited.at(0).code == 11);
}

TEST_CASE("SIGKILL from outside is a signal, not a Stop") {
  wire::JobSpec job = make_job({kHelper, "sleep"}, 2);
  RunnerClient client;
  REQUIRE(client.start(job));
  REQUIRE(client.wait_up(2));
  ::kill(client.pids.at(1), SIGKILL);
  REQUIRE(client.expect<wire::RankExited>());
  CHECK(client.exited.at(1).signaled == 1);
  CHECK(client.exited.at(1).code == SIGKILL);
  CHECK(client.exited.at(1).stopped == 0);
  client.send(wire::Stop{1000, "rank 1 failed"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).code == SIGTERM);
  CHECK(client.exited.at(0).stopped == 1);
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("a program that is not there: RunnerError spawn, then exit 127") {
  RunnerClient by_name;
  REQUIRE(by_name.run(make_job({"no-such-program-x"})));
  REQUIRE(by_name.errors.size() == 1);
  CHECK(by_name.errors[0].code == "spawn");
  CHECK(by_name.errors[0].rank == 0);
  CHECK(by_name.errors[0].message.starts_with(
      "cannot start no-such-program-x: No such file or directory; not in PATH=/"));
  CHECK(by_name.exited.at(0).code == 127);
  CHECK(by_name.exited.at(0).signaled == 0);
  CHECK(by_name.pids.empty());
  RunnerClient by_path;
  REQUIRE(by_path.run(make_job({"/no/such/program"})));
  CHECK(by_path.errors.at(0).message ==
        "cannot start /no/such/program: No such file or directory; a program must be at the same "
        "path on every host");
}

TEST_CASE("a program that may not be run: RunnerError spawn, then exit 126") {
  const std::string path = "/tmp/sortie-test-noexec-" + std::to_string(::getpid());
  std::ofstream(path) << "#!/bin/sh\n";
  ::chmod(path.c_str(), 0644);
  RunnerClient client;
  REQUIRE(client.run(make_job({path})));
  CHECK(client.errors.at(0).code == "spawn");
  CHECK(
      client.errors.at(0).message ==
      "cannot start " + path +
          ": Permission denied; needs execute permission, on a file system mounted without noexec");
  CHECK(client.exited.at(0).code == 126);
  RunnerClient folder;
  REQUIRE(folder.run(make_job({"/usr"})));
  CHECK(folder.errors.at(0).message ==
        "cannot start /usr: Permission denied; it is a folder; name a program");
  CHECK(folder.exited.at(0).code == 126);
  std::ofstream(path) << "#!/no/such/interpreter\n";
  ::chmod(path.c_str(), 0755);
  RunnerClient interpreter;
  REQUIRE(interpreter.run(make_job({path})));
  CHECK(interpreter.errors.at(0).message ==
        "cannot start " + path +
            ": No such file or directory; the file exists, so its interpreter (#! line or ELF "
            "loader) is missing");
  std::ofstream(path) << "echo plain text $1\n";
  RunnerClient plain;
  REQUIRE(plain.run(make_job({path, "works"})));
  CHECK(plain.out[0] == "plain text works\n");
  ::unlink(path.c_str());
}

TEST_CASE("200 ranks of true on one host") {
  wire::JobSpec job = make_job({"true"}, 200);
  RunnerClient client;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(client.run(job));
  MESSAGE("200 ranks: "
          << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()
          << " s");
  CHECK(client.exited.size() == 200);
  for (const auto& [rank, exited] : client.exited) CHECK(exited.code == 0);
  CHECK(client.pids.size() == 200);
  CHECK(remains(job) == "");
}

TEST_CASE("events on SORTIE_SOCKET arrive, broken ones are dropped with a warning") {
  wire::JobSpec job = make_job({kHelper, "events"});
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.exited.at(0).code == 0);
  CHECK(client.events[0] ==
        std::vector<std::string>{"{\"step\":1,\"loss\":2.5}", "{\"step\":2}", "{\"step\":3}"});
  const std::string log = client.diagnostics();
  CHECK(log.find("rank 0: a line of more than 65536 bytes on SORTIE_SOCKET dropped") !=
        std::string::npos);
  CHECK(log.find("no JSON object") != std::string::npos);
  CHECK(remains(job) == "");
}

TEST_CASE("answers reach the connections that listen, and no other") {
  wire::JobSpec job = make_job(
      {"/usr/bin/python3", "-ISc",
       "import os, socket\n"
       "def link():\n"
       "    s = socket.socket(socket.AF_UNIX); s.connect(os.environ['SORTIE_SOCKET']); return s\n"
       "deaf, idle, ears = link(), link(), link()\n"
       "deaf.sendall(b'{\"type\":\"note\",\"text\":\"listen\"}\\n')\n"
       "idle.sendall(b'{\"type\":\"listen\"}\\n')\n"  // never reads
       "ears.sendall(b'{\"type\": \"listen\"}\\n{\"type\":\"ask\",\"number\":1}\\n')\n"
       "lines = ears.makefile('rb')\n"
       "print(lines.readline()[:40], flush=True)\n"
       "ears.sendall(b'{\"type\":\"ask\",\"number\":2}\\n')\n"
       "while not lines.readline().startswith(b'{\"last\"'): pass\n"
       "deaf.setblocking(False)\n"
       "try: print(deaf.recv(10))\n"
       "except BlockingIOError: print('nothing', flush=True)\n"});
  RunnerClient client;
  REQUIRE(client.start(job));
  const auto asked = [&](const std::string& line) {
    return client.wait_until([&] { return std::ranges::count(client.events[0], line) == 1; });
  };
  REQUIRE(asked("{\"type\":\"ask\",\"number\":1}"));
  client.send(wire::RankAnswer{0, "{\"number\":1}"});
  REQUIRE(asked("{\"type\":\"ask\",\"number\":2}"));
  // More than sockets and queues hold: `idle` loses lines, but blocks neither the runner nor the
  // other reader, which gets all of it.
  for (int i = 0; i < 64; ++i) {
    client.send(wire::RankAnswer{0, "{\"pad\":\"" + std::string(32000, 'x') + "\"}"});
    client.pump(milliseconds(5));
  }
  for (int i = 0; i < 1500 && client.exited.empty(); ++i) {
    client.send(wire::RankAnswer{0, "{\"last\":1}"});  // on a slow machine it may lose lines too
    client.pump(milliseconds(20));
  }
  REQUIRE(client.wait_finished());
  CHECK(client.out[0] == "b'{\"number\":1}\\n'\nnothing\n");
  CHECK(client.exited.at(0).code == 0);
  CHECK(client.events[0].size() == 3);
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit());
  CHECK(client.diagnostics().find("of answers were not read from SORTIE_SOCKET") !=
        std::string::npos);
  CHECK(remains(job) == "");
}

TEST_CASE("an answer that is for no rank here, or no line, ends the conversation") {
  for (const wire::RankAnswer& answer :
       {wire::RankAnswer{7, "{}"}, wire::RankAnswer{0, "{\n}"}, wire::RankAnswer{0, "none"}}) {
    RunnerClient client;
    REQUIRE(client.start(make_job({kHelper, "sleep"})));
    REQUIRE(client.wait_up(1));
    client.send(answer);
    REQUIRE(client.wait_exit());
    CHECK(client.diagnostics().find("RankAnswer") != std::string::npos);
  }
}

TEST_CASE("a rank has streams to other hosts by way of the launcher, and others have them to it") {
  using wire::kForwardWindow;
  wire::JobSpec job = make_job(
      {"/usr/bin/python3", "-ISc",
       "import os, socket\n"
       "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['SORTIE_FORWARD'])\n"
       "s.sendall(b'far 7000\\nfirst bytes')\n"  // programs may send before the stream is open
       "print(os.environ['SORTIE_HOST'], s.makefile('rb').readline(), flush=True)\n"
       "l = socket.create_server(('127.0.0.1', 0))\n"
       "print(l.getsockname()[1], flush=True)\n"
       "c, _ = l.accept()\n"
       "size = 0\n"
       "while size < 3 << 20: size += len(c.recv(65536))\n"
       "c.sendall(b'got it'); c.close()\n"
       "print('rest', s.recv(10), flush=True)\n"});
  job.forwards = 1;
  RunnerClient client;
  REQUIRE(client.start(job));
  const auto opened = client.expect<wire::ForwardOpen>();
  REQUIRE(opened);
  CHECK((opened->host == "far" && opened->port == 7000));
  CHECK(client.expect<wire::ForwardCredit>()->bytes == kForwardWindow);
  client.send(wire::ForwardCredit{opened->id, kForwardWindow});
  const auto first = client.expect<wire::ForwardData>();
  REQUIRE(first);
  CHECK(first->bytes == "first bytes");
  client.send(wire::ForwardData{opened->id, "hello\n"});
  // In the other direction: a port of this host.
  const auto lines = [&] { return std::ranges::count(client.out[0], '\n'); };
  REQUIRE(client.wait_until([&] { return lines() == 2; }));
  CHECK(client.out[0].starts_with(job.host + " b'hello\\n'\n"));
  const auto port =
      static_cast<std::uint32_t>(std::stoul(client.out[0].substr(client.out[0].find('\n') + 1)));
  const std::uint64_t id = wire::kForwardByLauncher | 1;
  client.send(wire::ForwardOpen{id, "", port});
  std::uint64_t credit = 0, sent = 0;
  while (sent < 3u << 20) {
    while (credit < wire::kMaxForwardBytes) {
      const auto more = client.expect<wire::ForwardCredit>();
      REQUIRE(more);
      if (more->id == id) credit += more->bytes;
    }
    client.send(wire::ForwardData{id, std::string(wire::kMaxForwardBytes, 'x')});
    credit -= wire::kMaxForwardBytes;
    sent += wire::kMaxForwardBytes;
  }
  client.send(wire::ForwardCredit{id, kForwardWindow});
  const auto reply = client.expect<wire::ForwardData>();
  REQUIRE(reply);
  CHECK((reply->id == id && reply->bytes == "got it"));
  CHECK(client.expect<wire::ForwardClose>()->id == id);
  client.send(wire::ForwardClose{opened->id, ""});
  REQUIRE(client.wait_finished());
  CHECK(client.out[0].ends_with("rest b''\n"));
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit());
  CHECK(remains(job) == "");
}

TEST_CASE("a stream to a port where nobody listens is closed with the reason") {
  wire::JobSpec job = make_job({kHelper, "sleep"});
  job.forwards = 1;
  RunnerClient client;
  REQUIRE(client.start(job));
  REQUIRE(client.wait_up(1));
  client.send(wire::ForwardOpen{wire::kForwardByLauncher | 1, "", 1});
  const auto closed = client.expect<wire::ForwardClose>();
  REQUIRE(closed);
  CHECK(closed->why == "port 1: Connection refused");
  client.send(wire::ForwardData{wire::kForwardByLauncher | 1, "late"});  // was in transit
  client.send(wire::ForwardOpen{7, "", 1});
  REQUIRE(client.wait_exit());
  CHECK(client.diagnostics().find("ForwardOpen that can not be") != std::string::npos);
}

TEST_CASE("while ranks run quietly, runner and keepers use less than 1 % of a core") {
  wire::JobSpec job = make_job({kHelper, "sleep"}, 4);
  job.heartbeat_interval_ms = 2000;
  job.heartbeat_timeout_ms = 10000;
  RunnerClient client;
  REQUIRE(client.start(job));
  REQUIRE(client.wait_up(4));
  std::vector<pid_t> measured = {client.pid()};
  for (const auto& [rank, pid] : client.pids) measured.push_back(parent_of(pid));
  const auto used = [&] {
    double sum = 0;
    for (pid_t pid : measured) sum += cpu_seconds(pid);
    return sum;
  };
  // Other load on the machine can only add to the CPU time measured, so the minimum of three
  // windows counts.
  double share = 1;
  REQUIRE(used() > 0);
  for (int window = 0; window < 3; ++window) {
    const double before = used();
    const auto begin = std::chrono::steady_clock::now();
    client.pump(milliseconds(1500));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    share = std::min(share, (used() - before) / time.count());
  }
  MESSAGE("CPU of runner and 4 keepers: " << share * 100 << " % of a core");
  CHECK(share <= 0.01);
  client.send(wire::Stop{0, "test"});
  REQUIRE(client.wait_finished());
}

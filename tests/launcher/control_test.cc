// The control socket, the locks of supervisors, and the plan of an adopted run.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "launcher/control/adopt.h"
#include "launcher/control/control_client.h"
#include "launcher/control/control_server.h"
#include "launcher/control/control_socket.h"
#include "launcher/control/show_runs.h"
#include "launcher/control/supervisor_lock.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

/// A server on a separate thread, in a folder whose path is too long for a socket address.
struct Served {
  test::ScopedTempDir dir;
  fs::path run = dir.path() / std::string(120, 'x');
  boost::asio::io_context io{1};
  int stops = 0, stops_now = 0;
  ControlServer server{io.get_executor(),
                       {[] {
                          return OrderedJson{{"state", "running"}};
                        },
                        [this](bool now) { now ? ++stops_now : ++stops; }}};
  std::thread thread;
  Served() {
    fs::create_directory(run);
    REQUIRE(server.open(run, 1));
    thread = std::thread([this] { io.run_for(std::chrono::seconds(20)); });
  }
  ~Served() {
    io.stop();
    thread.join();
  }
};

std::string raw_exchange(const fs::path& run, const std::string& bytes) {
  const auto socket = connect_control(run, 1);
  REQUIRE(socket);
  REQUIRE(::send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
  char buffer[1024];
  const ssize_t count = ::recv(socket->get(), buffer, sizeof buffer, 0);
  return count > 0 ? std::string(buffer, static_cast<std::size_t>(count)) : std::string();
}

TEST_CASE("control: orders are answered, and what is no order is refused with a reason") {
  Served served;
  struct stat info {};
  REQUIRE(::stat(control_path(served.run, 1).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  auto client = ControlClient::connect(served.run, 1);
  REQUIRE(client);
  const auto status = client->ask({{"op", "status"}});
  REQUIRE(status);
  CHECK((*status)["state"] == "running");
  CHECK(client->ask({{"op", "stop"}, {"now", true}}));
  CHECK(client->ask({{"op", "stop"}}));
  CHECK(served.stops_now == 1);
  CHECK(served.stops == 1);
  const auto unknown = client->ask({{"op", "dance"}});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message.find("no such order") != std::string::npos);
  CHECK(raw_exchange(served.run, "{\"sortie\":2,\"op\":\"status\"}\n").find("version 1") !=
        std::string::npos);
  CHECK(raw_exchange(served.run, "rubbish\n").find("one JSON object") != std::string::npos);
  CHECK(raw_exchange(served.run, std::string(70'000, 'a')).find("too long") != std::string::npos);
}

TEST_CASE("control: the end of a run reaches whoever listens, with its exit code") {
  Served served;
  auto client = ControlClient::connect(served.run, 1);
  REQUIRE(client);
  REQUIRE(client->ask({{"op", "status"}}));
  std::promise<void> finished;
  boost::asio::post(served.io, [&] {
    served.server.finish({{"event", "end"}, {"exit_code", 7}});
    finished.set_value();
  });
  while (client->take()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE(client->end_exit_code());
  CHECK(*client->end_exit_code() == 7);
  finished.get_future().wait();  // clients are disconnected before the socket is removed
  CHECK_FALSE(ControlClient::connect(served.run, 1));
}

TEST_CASE("control: a process of another user is refused" * doctest::skip(::geteuid() != 0)) {
  Served served;
  for (const fs::path& path : {served.dir.path(), served.run}) ::chmod(path.c_str(), 0755);
  ::chmod(control_path(served.run, 1).c_str(), 0666);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(9);
    // connect_control() rejects a server of another user. A client without that check is rejected
    // by the server.
    const auto polite = connect_control(served.run, 1);
    if (polite || polite.error().code != ErrorCode::auth) ::_exit(1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, "control-1.sock");
    const Fd rude(::socket(AF_UNIX, SOCK_STREAM, 0));
    if (::chdir(served.run.c_str()) != 0 ||
        ::connect(rude.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      ::_exit(2);
    const std::string order = "{\"sortie\":1,\"op\":\"stop\"}\n";
    (void)!::write(rude.get(), order.data(), order.size());
    std::string said(1024, '\0');
    const ssize_t count = ::read(rude.get(), said.data(), said.size());
    ::_exit(count > 0 && said.find("refused") != said.npos ? 0 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(served.stops + served.stops_now == 0);
}

TEST_CASE("control: a supervisor's file is locked as long as it lives, and has one owner") {
  test::ScopedTempDir dir;
  CHECK(latest_supervisor(dir.path()).epoch == 0);
  {
    const auto lock = SupervisorLock::take(dir.path(), 1);
    REQUIRE(lock);
    CHECK(latest_supervisor(dir.path()).alive);
    CHECK(latest_supervisor(dir.path()).pid == ::getpid());
    CHECK_FALSE(SupervisorLock::take(dir.path(), 1));
    const auto next = SupervisorLock::take(dir.path(), 2);
    REQUIRE(next);
    CHECK(latest_supervisor(dir.path()).epoch == 2);
  }
  CHECK_FALSE(latest_supervisor(dir.path()).alive);
}

TEST_CASE("control: a supervisor is gone only when that is certain") {
  test::ScopedTempDir dir;
  const auto lock = SupervisorLock::take(dir.path(), 1);
  REQUIRE(lock);
  SUBCASE("no descriptor is left to find it out") {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    const bool latest = latest_supervisor(dir.path()).alive;
    const bool first = supervisor_of(dir.path(), 1).alive;
    ::setrlimit(RLIMIT_NOFILE, &before);
    CHECK(latest);
    CHECK(first);
  }
  SUBCASE("a cleaner has removed its file") {
    fs::remove(supervisor_file(dir.path(), 1));
    CHECK(latest_supervisor(dir.path()).alive);
    CHECK(supervisor_of(dir.path(), 1).alive);
  }
  SUBCASE("a cleaner has removed the file of an earlier one") {
    const auto next = SupervisorLock::take(dir.path(), 2);
    REQUIRE(next);
    fs::remove(supervisor_file(dir.path(), 1));
    CHECK(latest_supervisor(dir.path()).epoch == 2);
    CHECK(latest_supervisor(dir.path()).alive);
  }
  SUBCASE("a cleaner has removed the file of the latest one, and left its socket") {
    const auto next = SupervisorLock::take(dir.path(), 2);
    REQUIRE(next);
    const auto socket = listen_control(dir.path(), 2);
    REQUIRE(socket);
    fs::remove(supervisor_file(dir.path(), 2));
    const SupervisorFacts latest = latest_supervisor(dir.path());
    CHECK(latest.epoch == 2);
    CHECK(latest.alive);
    CHECK_FALSE(latest.elsewhere());
    CHECK(latest.process() == "its file supervisor-2 was removed");
  }
  SUBCASE("a cleaner that honours locks leaves the folder alone") {
    const Fd folder(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    CHECK(::flock(folder.get(), LOCK_EX | LOCK_NB) != 0);
  }
}

TEST_CASE("adopt: the sweep of a host that is lost later knows that ranks are in containers") {
  RunRecord record;
  record.hosts = {{"h1", {0, 1}, {0, 1}}};
  config::JobConfig job;
  CHECK_FALSE(adopted_plan(record, job).container);
  job.runner.container.engine = "docker";
  job.runner.container.image = "image";
  const LaunchPlan plan = adopted_plan(record, job);
  REQUIRE(plan.container);
  CHECK(plan.container->engine == "docker");
  CHECK(plan.hosts.at(0).ranks.at(1).rank == 1);
}

}  // namespace
}  // namespace sortie::launcher

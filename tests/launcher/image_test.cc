// The image phase over fake hosts in memory: all hosts have the same image, or no rank starts.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <future>

#include "common/asio/spawn.h"
#include "common/base/exit_code.h"
#include "launcher/plan/plan_container.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using std::chrono::milliseconds;
using test::FakeHost;
using test::FakeRunner;
using test::Launch;

const std::string kId = "sha256:" + std::string(64, 'a');
const std::string kOther = "sha256:" + std::string(64, 'b');

/// The answer of a host to ImageOrder. After that it behaves like any other host.
struct Image {
  wire::Message answer;
  std::vector<std::string> progress = {};
  milliseconds takes{0};
  FakeHost::Script then = test::succeed;
};

wire::ImageReady image(const std::string& id, bool pulled = false) {
  wire::ImageReady ready;
  ready.image_id = id;
  ready.engine_version = "docker 20.10.24";
  ready.bytes = 3u << 20;
  ready.pulled = pulled;
  return ready;
}

awaitable<void> with_image(FakeRunner& runner, std::shared_ptr<Image> what) {
  const bool greeted = co_await runner.until<wire::Hello>();
  if (!greeted) co_return;
  runner.send(wire::Hello{wire::kProtocolVersion, "build"});
  const bool asked = co_await runner.until<wire::ImageOrder>();
  if (!asked) co_return;
  for (const std::string& text : what->progress) runner.send(wire::ImageProgress{text});
  for (milliseconds left = what->takes; left.count() > 0; left -= milliseconds(50)) {
    runner.send(wire::Heartbeat());
    co_await runner.sleep(milliseconds(50));
  }
  runner.send(what->answer);
  co_await what->then(runner);
}

FakeHost::Script answers(Image what) {
  const auto shared = std::make_shared<Image>(std::move(what));
  return [shared](FakeRunner& runner) { return with_image(runner, shared); };
}

struct ContainerLaunch : Launch {
  explicit ContainerLaunch(std::initializer_list<config::HostSlots> hosts) : Launch(hosts) {
    job.runner.container.engine = "docker";
    job.runner.container.image = "trainer:1";
  }
};

TEST_CASE("hosts with the same image start, and start that image") {
  ContainerLaunch launch({{"h1", {0, 1}}, {"h2", {0}}});
  launch.job.runner.container.pull = "always";
  launch.host("h1").script = answers({image(kId)});
  launch.host("h2").script = answers({image(kId, true)});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  for (const char* name : {"h1", "h2"}) {
    const FakeRunner& runner = launch.runner(name);
    REQUIRE(runner.all<wire::ImageOrder>().size() == 1);
    CHECK(runner.all<wire::ImageOrder>()[0].engine == "docker");
    CHECK(runner.all<wire::ImageOrder>()[0].image == "trainer:1");
    CHECK(runner.all<wire::ImageOrder>()[0].pull == 1);
    CHECK(runner.all<wire::ImageOrder>()[0].heartbeat_timeout_ms == 200);
    CHECK(runner.job.container.image_id == kId);
    CHECK(runner.job.container.engine == "docker");
  }
  // No host got its JobSpec before all had the image.
  CHECK(*launch.runner("h1").time_of<wire::JobSpec>() >=
        *launch.runner("h2").time_of<wire::ImageOrder>());
  REQUIRE(launch.events_named("image").size() == 1);
  const auto event = launch.events_named("image")[0];
  CHECK(event["image"] == "trainer:1");
  CHECK(event["image_id"] == kId);
  CHECK(event["hosts"] == 2);
  CHECK(event["pulled"] == 1);
  CHECK(event["engines"]["docker 20.10.24"] == "h[1-2]");
  CHECK(
      launch.shown.find("image trainer:1 (sha256:aaaaaaaaaaaa, 3.0 MiB) on 2 hosts: pulled on 1") !=
      std::string::npos);
}

TEST_CASE("a host that beats for ever and never has the image ends the run by a deadline") {
  ContainerLaunch launch({{"h1", {0}}, {"h2", {0}}});
  launch.job.runner.heartbeat_timeout = milliseconds(100);  // work_patience() is 3 s
  launch.host("h1").script = answers({image(kId)});
  launch.host("h2").script = answers({image(kId), {}, milliseconds(7000)});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code != 0);
  CHECK_MESSAGE(verdict.text.find(
                    "h2: timeout: image trainer:1: runner: alive, but without progress for 3 s") !=
                    std::string::npos,
                verdict.text);
  CHECK(launch.ran < test::patient(milliseconds(6000)));
}

TEST_CASE("one host without the image: the engine's words, and nothing starts anywhere") {
  ContainerLaunch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}});
  launch.host("h1").script = launch.host("h3").script = answers({image(kId)});
  launch.host("h2").script =
      answers({wire::RunnerError{"runner", "docker pull trainer:1: manifest unknown", -1}});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == exit_code_for(ErrorCode::runner));
  CHECK(verdict.text.find("h2: runner: image trainer:1: docker pull trainer:1: manifest unknown") !=
        std::string::npos);
  CHECK(verdict.text.find("no rank was started: 2 of 3 hosts were ready") != std::string::npos);
  for (const char* name : {"h1", "h2", "h3"})
    CHECK(launch.runner(name).all<wire::JobSpec>().empty());
  CHECK(launch.events_named("image").empty());
  CHECK(launch.events_named("host_failed").size() == 1);
}

TEST_CASE("two images of one name: no start, hosts by what they have") {
  ContainerLaunch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}});
  launch.host("h1").script = launch.host("h2").script = answers({image(kId)});
  launch.host("h3").script = answers({image(kOther)});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == exit_code_for(ErrorCode::runner));
  CHECK(verdict.text.find("image trainer:1: is not the same one on all hosts; no rank was started\n"
                          "h[1-2]: " +
                          kId + "\nh3: " + kOther + "\n") != std::string::npos);
  for (const char* name : {"h1", "h2", "h3"})
    CHECK(launch.runner(name).all<wire::JobSpec>().empty());
}

TEST_CASE("what a host says of its image is checked") {
  for (const std::string& id : {std::string("sha256:12"), "--privileged" + std::string(59, 'a'),
                                std::string(), kId + "\n"}) {
    CAPTURE(id);
    ContainerLaunch launch({{"h1", {0}}});
    launch.host("h1").script = answers({image(id)});
    const Verdict verdict = launch.run();
    CHECK(verdict.text.find("runner sent an image id outside the grammar") != std::string::npos);
    CHECK(launch.runner("h1").all<wire::JobSpec>().empty());
  }
  ContainerLaunch launch({{"h1", {0}}});
  launch.host("h1").script = answers({wire::Finished{}});
  CHECK(launch.run().text.find("runner sent Finished instead of ImageReady") != std::string::npos);
}

TEST_CASE("a terminal sees which hosts are still pulling, and what") {
  ContainerLaunch launch({{"fast", {0}}, {"slow", {0}}});
  launch.terminal = true;
  launch.host("fast").script = answers({image(kId)});
  launch.host("slow").script =
      answers({image(kId, true), {"1.5 GiB\x1b[2J of 2.0 GiB"}, milliseconds(1500)});
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.shown.find("image on 1/2 hosts; slow: 1.5 GiB") != std::string::npos);
  CHECK(launch.shown.find("\x1b[2J") == std::string::npos);
}

TEST_CASE("a host that says nothing while it should have the image is lost, in time") {
  ContainerLaunch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = answers({image(kId)});
  launch.host("h2").script = [](FakeRunner& runner) -> awaitable<void> {
    const bool greeted = co_await runner.until<wire::Hello>();
    if (!greeted) co_return;
    runner.send(wire::Hello{wire::kProtocolVersion, "build"});
    co_await runner.until<wire::Goodbye>();
  };
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitLost);
  CHECK(verdict.text.find("h2: lost: image trainer:1: no heartbeat") != std::string::npos);
  CHECK(launch.ran < test::patient(milliseconds(4000)));
}

TEST_CASE("logins travel with the order for the image, and are nowhere else") {
  ContainerLaunch launch({{"h1", {0}}});
  const std::string text = R"({"auths":{"reg.example":{"auth":"bWU6aHVudGVyMg=="}}})";
  test::write_text(launch.dir / "config.json", text);
  ::chmod(launch.dir.str("config.json").c_str(), 0600);
  launch.job.runner.container.credentials_file = launch.dir.str("config.json");
  launch.host("h1").script = answers({image(kId)});
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.runner("h1").all<wire::ImageOrder>()[0].credentials == text);
  CHECK(wire::encode(launch.runner("h1").job).find("bWU6aHVudGVyMg") == std::string::npos);
  CHECK(launch.shown.find("bWU6aHVudGVyMg") == std::string::npos);
  for (const auto& event : launch.events)
    CHECK(event.dump().find("bWU6aHVudGVyMg") == std::string::npos);
}

TEST_CASE(
    "a file of logins that is none, or is open to others, ends a run before any host is touched") {
  struct Row {
    const char* text;
    unsigned mode;
    const char* error;
  };
  for (const Row& row : {Row{R"({"auths":{"r":{"auth":"c2VjcmV0"}}})", 0644,
                             "is open to others (mode 0644); chmod 600 it"},
                         Row{"c2VjcmV0", 0600, "is no JSON object; `docker login` writes one"},
                         Row{R"({"auths":{"r":{}},"credsStore":"c2VjcmV0"})", 0600,
                             "names registries, but has no login for any"},
                         Row{R"({"credsStore":"c2VjcmV0"})", 0600, "names a credential helper"},
                         Row{"{}", 0600, "has no logins (\"auths\")"}}) {
    CAPTURE(row.text);
    ContainerLaunch launch({{"h1", {0}}});
    launch.job.runner.container.credentials_file = launch.dir.str("config.json");
    test::write_text(launch.dir / "config.json", row.text);
    ::chmod(launch.dir.str("config.json").c_str(), row.mode);
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == exit_code_for(ErrorCode::config));
    CHECK(verdict.text.find("runner.container.credentials_file: ") != std::string::npos);
    CHECK(verdict.text.find(row.error) != std::string::npos);
    CHECK(verdict.text.find("c2VjcmV0") == std::string::npos);
    CHECK(!launch.transport.has_runner("h1"));
  }
}

/// A launch with a file of logins, on a disk that stalls with stall().
struct StalledLogins : ContainerLaunch {
  StalledLogins() : ContainerLaunch({{"h1", {0}}}) {
    test::write_text(dir / "config.json", kLogins);
    ::chmod(dir.str("config.json").c_str(), 0600);
    job.runner.container.credentials_file = dir.str("config.json");
    files = &impatient;
  }
  /// Until the end of run().
  void stall() {
    const std::function<int()> wait = [back = back] {
      back.wait();
      return 0;
    };
    spawn(io.get_executor(), hold(wait));
  }
  Verdict run() {
    Verdict verdict = ContainerLaunch::run();
    disk_is_back.set_value();
    CHECK(impatient.drain(std::chrono::seconds(60)));
    return verdict;
  }

  static constexpr const char* kLogins = R"({"auths":{"reg.example":{"auth":"bWU6aHVudGVyMg=="}}})";
  FileCalls impatient{io.get_executor(), std::chrono::seconds(2)};
  std::promise<void> disk_is_back;
  std::shared_future<void> back = disk_is_back.get_future().share();

 private:
  awaitable<void> hold(std::function<int()> wait) { (void)co_await impatient.call(wait, nullptr); }
};

TEST_CASE("a disk that stalls under the file of logins: no host is reached") {
  StalledLogins launch;
  launch.stall();
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == exit_code_for(ErrorCode::timeout));
  CHECK_MESSAGE(test::has(verdict.text, "config.json: the disk does not answer"), verdict.text);
  CHECK(!launch.transport.has_runner("h1"));
}

TEST_CASE("a disk that stalls under the file of logins: a restart uses those of the last attempt") {
  StalledLogins launch;
  launch.job.recovery.max_restarts = 1;
  launch.job.recovery.backoff = milliseconds(1);
  const auto fails = test::after_start([&launch](FakeRunner& runner) {
    launch.stall();
    runner.exit_rank(runner.job.ranks[0].rank, 1);
  });
  test::in_turn(launch.host("h1"), {answers({image(kId), {}, {}, fails}), answers({image(kId)})});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(launch.events_named("attempt").size() == 2);
  CHECK_MESSAGE(
      test::has(launch.shown, "the disk does not answer; the logins of the last attempt are used"),
      launch.shown);
  CHECK(launch.runner("h1").all<wire::ImageOrder>().at(0).credentials == StalledLogins::kLogins);
}

TEST_CASE(
    "a /dev/shm larger than the memory of some hosts: one warning names them, and ranks start") {
  ContainerLaunch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}, {"h4", {0}}});
  launch.job.runner.container.shm_size = "8GiB";
  for (const auto& [name, gib] : {std::pair{"h1", 4u}, {"h2", 8u}, {"h3", 2u}, {"h4", 0u}}) {
    launch.host(name).script = answers({image(kId)});
    launch.host(name).ready.memory_bytes = std::uint64_t{gib} << 30;  // 0 = unknown
  }
  CHECK(launch.run().exit_code == 0);
  CHECK(test::contains(launch.shown,
                       "runner.container.shm_size: 8.0 GiB is more than the memory of h[1,3] "
                       "(2.0 GiB): ranks that fill /dev/shm are killed; lower it\n"));
}

TEST_CASE("a /dev/shm within the memory: no warning") {
  ContainerLaunch launch({{"h1", {0}}});
  launch.job.runner.container.shm_size = "8GiB";
  launch.host("h1").script = answers({image(kId)});
  launch.host("h1").ready.memory_bytes = std::uint64_t{8} << 30;
  CHECK(launch.run().exit_code == 0);
  CHECK_FALSE(test::has(launch.shown, "shm_size"));
}

TEST_CASE("a host that speaks to containerd says through which client") {
  ContainerLaunch launch({{"h1", {0}}, {"h2", {0}}});
  launch.job.runner.container.engine = "containerd";
  wire::ImageReady nerdctl = image(kId), ctr = image(kId);
  nerdctl.engine_version = "nerdctl 1.7.6";
  ctr.engine_version = "ctr 1.6.20";
  launch.host("h1").script = answers({nerdctl});
  launch.host("h2").script = answers({ctr});
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.runner("h1").job.container.engine == "nerdctl");
  CHECK(launch.runner("h2").job.container.engine == "ctr");
}

}  // namespace
}  // namespace sortie::launcher

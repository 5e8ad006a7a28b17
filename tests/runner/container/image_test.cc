// Images before a job: looked up, and pulled from a real registry with the order's own credentials.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "runner/container/ctr_image.h"
#include "runner/container/engine.h"
#include "runner/container/host_facts.h"
#include "runner/container/image.h"
#include "tests/support/docker_engine.h"
#include "tests/support/runner_client.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::test;
using Ms = std::chrono::milliseconds;

namespace {

using sortie::test::has;

namespace fs = std::filesystem;

/// htpasswd line of user "ann" with password "secret word".
constexpr const char* kUser = "ann:$2b$05$abcdefghijklmnopqrstuu1C7yeI3ZG3Jm.nHdnKkGJg1xTYKP9Oy\n";
constexpr const char* kLogin = "YW5uOnNlY3JldCB3b3Jk";

/// A registry on this machine that requires a login.
class Registry {
 public:
  Registry() : folder_("/tmp/sortie-registry-" + std::to_string(::getpid())) {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "users") << kUser;
    std::ofstream(folder_ / "config.yml")
        << "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: "
        << (folder_ / "data").native() << "\nhttp:\n  addr: " << address()
        << "\nauth:\n  htpasswd:\n    realm: test\n    path: " << (folder_ / "users").native()
        << '\n';
    pid_ = ::fork();
    if (pid_ == 0) {
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 1);
      ::dup2(null, 2);
      const std::string config = folder_ / "config.yml";
      ::execlp("docker-registry", "docker-registry", "serve", config.c_str(), nullptr);
      ::_exit(127);
    }
    if (run_program({"docker-registry", "--version"}).code != 0)
      throw std::runtime_error("docker-registry is not here; install it: scripts/setup --test");
    fs::create_directories(folder_ / "login");
    std::ofstream(folder_ / "login" / "config.json") << credentials();
  }
  ~Registry() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    fs::remove_all(folder_);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(10000 + ::getpid() % 10000); }
  std::string credentials() const {
    return "{\"auths\":{\"" + address() + "\":{\"auth\":\"" + kLogin + "\"}}}";
  }
  /// Pushes the test image to the registry under `name`; returns the full image name.
  std::string push(const std::string& name) const {
    const std::string image = address() + '/' + name;
    Ran pushed;
    for (int i = 0; i < 300; ++i) {
      pushed = run_program({"sh", "-c",
                            "docker tag sortie-test:1 " + image + " && docker --config " +
                                (folder_ / "login").native() + " push " + image});
      if (pushed.code == 0) break;
      std::this_thread::sleep_for(Ms(100));
    }
    REQUIRE_MESSAGE(pushed.code == 0, pushed.output);
    return image;
  }

 private:
  fs::path folder_;
  pid_t pid_ = -1;
};

wire::ImageOrder order_of(std::string image, std::uint8_t pull) {
  wire::ImageOrder order;
  order.engine = "docker";
  order.image = std::move(image);
  order.pull = pull;
  order.heartbeat_interval_ms = 200;
  order.heartbeat_timeout_ms = 20000;
  return order;
}

struct Answer {
  std::optional<wire::ImageReady> ready;
  std::vector<std::string> progress;
  std::string error;
};

Answer ask(RunnerClient& client, const wire::ImageOrder& order) {
  client.send(order);
  Answer answer;
  for (;;) {
    const auto message = client.next();
    if (!message) break;
    if (const auto* progress = std::get_if<wire::ImageProgress>(&*message))
      answer.progress.push_back(progress->text);
    if (const auto* ready = std::get_if<wire::ImageReady>(&*message)) {
      answer.ready = *ready;
      break;
    }
  }
  if (!client.errors.empty())
    answer.error = client.errors[0].code + ": " + client.errors[0].message;
  return answer;
}

Answer ask(const wire::ImageOrder& order) {
  RunnerClient client;
  client.send(wire::Hello{wire::kProtocolVersion, ""});
  return ask(client, order);
}

}  // namespace

TEST_CASE("an image that is there, and the job that follows") {
  const DockerEngine& engine = DockerEngine::get();
  RunnerClient client;
  client.send(wire::Hello{wire::kProtocolVersion, ""});
  const Answer answer = ask(client, order_of(DockerEngine::kImage, 2));
  REQUIRE_MESSAGE(answer.ready, answer.error);
  CHECK(answer.ready->image_id == engine.image_id(DockerEngine::kImage));
  CHECK(answer.ready->engine_version.starts_with("docker "));
  CHECK(answer.ready->bytes > 1000000);
  CHECK(answer.ready->pulled == 0);
  wire::JobSpec job = make_job({"echo", "from inside"});
  job.container.engine = "docker";
  job.container.image = DockerEngine::kImage;
  job.container.image_id = answer.ready->image_id;
  job.autostart = 1;
  client.send(job);
  REQUIRE(client.wait_finished());
  CHECK(client.out[0] == "from inside\n");
  CHECK(engine.containers_left() == "");
}

TEST_CASE("pulled with a login that is nowhere afterwards") {
  const DockerEngine& engine = DockerEngine::get();
  const Registry registry;
  const std::string image = registry.push("team/train:2");
  engine.run({"rmi", image});
  const Answer refused = ask(order_of(image, 0));
  CHECK(has(refused.error, "image " + image + ": docker: pull: "));
  CHECK(has(refused.error, "no basic auth credentials"));

  wire::ImageOrder order = order_of(image, 0);
  order.credentials = registry.credentials();
  const Answer answer = ask(order);
  REQUIRE_MESSAGE(answer.ready, answer.error);
  CHECK(answer.ready->pulled == 1);
  CHECK(answer.ready->image_id == engine.image_id(DockerEngine::kImage));
  CHECK(answer.ready->repo_digest.starts_with(registry.address() + "/team/train@sha256:"));
  CHECK_FALSE(answer.progress.empty());
  CHECK(ask(order).ready->pulled == 0);
  order.pull = 1;
  const Answer again = ask(order);
  REQUIRE_MESSAGE(again.ready, again.error);
  CHECK(again.ready->pulled == 0);  // the same image is already present
  order.image = registry.address() + "/team/none:1";
  CHECK(has(ask(order).error, "image " + order.image + ": docker: pull: "));
  order.credentials = "no json";
  CHECK(has(ask(order).error, "the credentials are not a Docker config.json"));
  for (const auto& entry : fs::directory_iterator("/tmp/sortie-" + std::to_string(::geteuid())))
    CHECK_FALSE(entry.path().filename().native().starts_with("pull-"));
}

TEST_CASE("what one image has become is not the image of the others") {
  wire::JobSpec job = make_job({"true"});
  job.container.engine = "docker";
  job.container.image = DockerEngine::kImage;
  job.container.image_id = DockerEngine::get().image_id(DockerEngine::kEntryImage);
  RunnerClient client;
  client.send(wire::Hello{wire::kProtocolVersion, ""});
  REQUIRE(ask(client, order_of(DockerEngine::kImage, 0)).ready);
  client.send(job);
  client.wait_exit();
  REQUIRE(client.errors.size() == 1);
  CHECK(has(client.errors[0].message, "and " + job.container.image_id + " on the other hosts"));
}

TEST_CASE("progress of a pull, from what docker prints") {
  runner::container::PullProgress progress;
  progress.take("1: Pulling from team/train");
  CHECK(progress.text("a:1") == "pulling a:1: 1: Pulling from team/train");
  progress.take("aaaaaaaaaaaa: Pulling fs layer");
  progress.take("bbbbbbbbbbbb: Already exists");
  progress.take("aaaaaaaaaaaa: Download complete");
  CHECK(progress.text("a:1") == "pulling a:1: 2 of 2 layers downloaded, 1 unpacked");
}

TEST_CASE("what engines say of an image") {
  using runner::container::read_image_json;
  CHECK_FALSE(read_image_json("no json"));
  CHECK_FALSE(read_image_json("{}"));
  const auto facts = read_image_json(
      R"([{"Id":"abc","Architecture":"arm64","Size":5,"Config":{"Entrypoint":["/a","b"]}}])");
  REQUIRE(facts);
  CHECK(facts->id == "sha256:abc");
  CHECK(facts->architecture == "arm64");
  CHECK(facts->entrypoint == std::vector<std::string>{"/a", "b"});
}

TEST_CASE("ctr starts the image's user, who must be the wanted one or root") {
  const auto error_of = [](const std::string& image_user, const std::string& wanted) {
    const Result<> fits = runner::container::check_ctr_user("a:1", image_user, wanted);
    return fits ? std::string() : fits.error().message;
  };
  CHECK(error_of("1000:1000", "0:0") ==
        "image a:1: ctr starts it as its own user, 1000:1000, who can not become 0:0; set "
        "runner.container.user = \"1000:1000\", or install nerdctl");
  CHECK(error_of("1000", "2000:1000") != "");
  CHECK(error_of("1000:1000", "1000:7") != "");
  CHECK(error_of("1000:7", "1000") != "");
  for (const char* user : {"", "0", "0:0", "root", "name"}) CHECK(error_of(user, "7:8") == "");
  CHECK(error_of("1000:1000", "1000:1000") == "");
  CHECK(error_of("1000:1000", "1000") == "");
  CHECK(error_of("1000", "1000:5") == "");  // its group is in the image's /etc/passwd
}

TEST_CASE("the last words of an engine") {
  using runner::container::last_words;
  CHECK(last_words("WARNING: swap\ndocker: Error response from daemon: no such thing.\nSee 'docker "
                   "run --help'.\n") == "no such thing");
  CHECK(last_words("") == "");
}

TEST_CASE("ranks that share devices get all of them, also those whose own device exists") {
  using runner::container::add_gpus;
  cpu::Topology two_gpus;
  two_gpus.gpus = {{.pci = "0000:01:00.0"}, {.pci = "0000:02:00.0"}};
  wire::ContainerSpec spec;
  const auto devices_of = [&](const std::vector<std::uint32_t>& slots) {
    runner::container::HostFacts facts;
    const auto added = add_gpus(facts, spec, two_gpus, slots);
    CHECK(added.has_value() == (spec.gpus == "auto" || slots.back() < 2));
    return facts.gpus;
  };
  spec.gpus = "auto";
  CHECK(devices_of({1}) == std::vector<std::string>{"1"});
  CHECK(devices_of({0, 1}) == std::vector<std::string>{"0", "1"});
  CHECK(devices_of({0, 1, 2, 3}).empty());  // all devices
  spec.gpus = "slots";
  devices_of({0, 2});
}

TEST_CASE("devices of a container are counted inside, or named by UUID") {
  using runner::container::visible_devices;
  wire::ContainerSpec spec;
  spec.gpus = "slots";
  CHECK(visible_devices("3", spec, {2, 3}, {"", "", "", ""}) == "1");
  CHECK(visible_devices("3", spec, {2, 3}, {"", "", "GPU-a", "GPU-b"}) == "GPU-b");
  CHECK(visible_devices("3,2", spec, {2, 3}, {"", "", "", ""}) == "1,0");
  CHECK(visible_devices("2,3", spec, {2, 3}, {"", "", "GPU-a", "GPU-b"}) == "GPU-a,GPU-b");
  CHECK(visible_devices("7", spec, {2, 3}, {"", "", "", ""}) == "7");
  CHECK(visible_devices("2,7", spec, {2, 3}, {"", "", "", ""}) == "2,7");
  CHECK(visible_devices("", spec, {2, 3}, {"", "", "", ""}) == "");
  CHECK(visible_devices("0,1", spec, {0, 1}, {""}) == "0,1");  // no device for slot 1: unchanged
  spec.gpus = "all";
  CHECK(visible_devices("3", spec, {2, 3}, {"", "", "", ""}) == "3");
}

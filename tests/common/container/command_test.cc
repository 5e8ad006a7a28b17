// Command lines of container engines, byte for byte.
#include <doctest/doctest.h>

#include "common/container/engine_command.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::container;

namespace {

using sortie::test::has;

wire::ContainerSpec plain_spec(std::string engine = "docker") {
  wire::ContainerSpec spec;
  spec.engine = std::move(engine);
  spec.image = "train:1";
  return spec;
}

HostFacts plain_host() {
  HostFacts host;
  host.program = "docker";
  host.uid = 1000;
  host.gid = 100;
  host.runner = "/home/a/.cache/sortie/runner-1";
  host.run_folder = "/tmp/sortie-1000/r1-1-0";
  return host;
}

Box plain_box() {
  Box box;
  box.run_id = "r1";
  box.node_rank = 2;
  box.ranks = 4;
  return box;
}

std::string started(const wire::ContainerSpec& spec, const HostFacts& host = plain_host(),
                    const Box& box = plain_box()) {
  const auto argv = start_command(spec, host, box, "sha256:ab", "/tmp/s/init-0.sock");
  return argv ? shown(*argv) : "error: " + argv.error().message;
}

}  // namespace

TEST_CASE("a plain container, every word of it") {
  CHECK(started(plain_spec()) ==
        "docker run --detach --rm --name sortie-r1-a1-n2 --label sortie.run=r1 "
        "--label sortie.attempt=1 --label sortie.node=2 --label sortie.uid=1000 "
        "--label sortie.folder=/tmp/sortie-1000/r1-1-0 --user 1000:100 --network host "
        "--mount type=bind,source=/home/a/.cache/sortie/runner-1,target=/.sortie/runner,readonly "
        "--mount type=bind,source=/tmp/sortie-1000/r1-1-0,target=/tmp/sortie-1000/r1-1-0 "
        "--log-driver none --entrypoint /.sortie/runner sha256:ab container-init "
        "/tmp/s/init-0.sock");
}

TEST_CASE("a container says which runner can tell whether it is held") {
  HostFacts host = plain_host();
  host.machine = "boot/4026531836";
  CHECK(has(started(plain_spec(), host), "--label sortie.machine=boot/4026531836 --user"));
}

TEST_CASE("an engine that keeps containers while it restarts is not asked to remove them") {
  HostFacts host = plain_host();
  host.live_restore = true;
  const auto argv = container::start_command(plain_spec(), host, plain_box(), "sha256:ab", "/s");
  REQUIRE(argv);
  CHECK(std::ranges::find(*argv, "--rm") == argv->end());
  CHECK(std::ranges::find(*argv, "--detach") != argv->end());
}

TEST_CASE("every option of the table") {
  wire::ContainerSpec spec = plain_spec();
  spec.mounts = {
      {"/data/a,b", "/dataset", "ro"}, {"/ck", "/checkpoints", "rw,rslave"}, {"/z", "/z", "rw,z"}};
  spec.shm_bytes = 16ull << 30;
  spec.ulimits = {{"memlock", "-1"}, {"stack", "67108864"}};
  spec.devices = {"/dev/infiniband"};
  spec.capabilities = {"IPC_LOCK"};
  spec.privileged = 1;
  spec.user = "0:0";
  spec.workdir = "/work space";
  spec.labels = {{"team", "a'b"}, {"sortie.run", "forged"}};
  spec.extra_args = {"--read-only", "--env", "$HOME"};
  spec.rank_cpus_milli = 1500;
  spec.rank_memory_bytes = 1u << 30;
  HostFacts host = plain_host();
  host.groups = {100, 44};
  host.selinux = true;
  CHECK(started(spec, host) ==
        "docker run --detach --rm --name sortie-r1-a1-n2 --label 'team=a'\\''b' "
        "--label sortie.run=forged --label sortie.run=r1 --label sortie.attempt=1 "
        "--label sortie.node=2 --label sortie.uid=1000 "
        "--label sortie.folder=/tmp/sortie-1000/r1-1-0 --user 0:0 --network host "
        "--shm-size 17179869184 --security-opt label=disable --ulimit memlock=-1 "
        "--ulimit stack=67108864 --cpus 6 --memory 4294967296 --memory-swap 4294967296 "
        "--device /dev/infiniband --cap-add IPC_LOCK --privileged "
        "--mount type=bind,source=/home/a/.cache/sortie/runner-1,target=/.sortie/runner,readonly "
        "--mount type=bind,source=/tmp/sortie-1000/r1-1-0,target=/tmp/sortie-1000/r1-1-0 "
        "--mount 'type=bind,\"source=/data/a,b\",target=/dataset,readonly' "
        "--mount type=bind,source=/ck,target=/checkpoints,bind-propagation=rslave "
        "--volume /z:/z:rw,z --log-driver none --workdir '/work space' "
        "--entrypoint /.sortie/runner --read-only --env '$HOME' sha256:ab container-init "
        "/tmp/s/init-0.sock");
}

TEST_CASE("the caller's further groups go along") {
  HostFacts host = plain_host();
  host.groups = {100, 44, 999};
  CHECK(has(started(plain_spec(), host), "--user 1000:100 --group-add 44 --group-add 999 "));
}

TEST_CASE("one container per rank: the first shares its memory, the others take it") {
  wire::ContainerSpec spec = plain_spec();
  spec.shm_bytes = 1u << 20;
  Box box = plain_box();
  box.rank = 8;
  box.ranks = 1;
  box.ipc_shared = true;
  CHECK(container_name(box) == "sortie-r1-a1-n2-r8");
  CHECK(has(started(spec, plain_host(), box), "--label sortie.rank=8"));
  CHECK(has(started(spec, plain_host(), box), "--ipc shareable --shm-size 1048576"));
  box.rank = 9;
  box.ipc_shared = false;
  box.ipc_of = "sortie-r1-a1-n2-r8";
  const std::string second = started(spec, plain_host(), box);
  CHECK(has(second, "--ipc container:sortie-r1-a1-n2-r8"));
  CHECK_FALSE(has(second, "--shm-size"));
  spec.ipc = "host";
  CHECK(has(started(spec, plain_host(), box), "--ipc host"));
}

TEST_CASE("GPUs as each engine is asked for them") {
  wire::ContainerSpec spec = plain_spec();
  HostFacts host = plain_host();
  spec.gpus = "auto";
  CHECK_FALSE(has(started(spec, host), "gpu"));
  host.gpu_vendor = GpuVendor::nvidia;
  host.gpus = {"GPU-1a", "3"};
  CHECK(has(started(spec, host), "--gpus '\"device=GPU-1a,3\"' "));
  spec.gpus = "all";
  CHECK(has(started(spec, host), "--gpus all "));
  spec.gpus = "none";
  CHECK_FALSE(has(started(spec, host), "gpu"));
  spec = plain_spec("podman");
  spec.gpus = "slots";
  CHECK(has(started(spec, host), "--device nvidia.com/gpu=GPU-1a --device nvidia.com/gpu=3 "));
  host.gpu_vendor = GpuVendor::amd;
  host.gpu_groups = {44};
  CHECK(has(started(spec, host), "--device /dev/kfd --device /dev/dri --group-add 44 "));
}

TEST_CASE("rootless engines and daemons that map users") {
  HostFacts host = plain_host();
  host.userns_remap = true;
  CHECK(has(started(plain_spec(), host), "--userns=host --user 1000:100"));
  host.userns_remap = false;
  host.rootless = true;
  CHECK(has(started(plain_spec(), host), "--user 0:0"));
  host.groups = {44};
  CHECK(has(started(plain_spec("podman"), host),
            "--userns=keep-id --user 1000:100 --group-add keep-groups"));
}

TEST_CASE("ctr says what it can not do, and starts container-init as the image's user") {
  wire::ContainerSpec spec = plain_spec("ctr");
  HostFacts host = plain_host();
  host.program = "ctr";
  spec.shm_bytes = 1024;
  CHECK(started(spec, host) ==
        "ctr run --detach --null-io --label sortie.run=r1 --label sortie.attempt=1 "
        "--label sortie.node=2 --label sortie.uid=1000 "
        "--label sortie.folder=/tmp/sortie-1000/r1-1-0 --net-host "
        "--mount type=tmpfs,src=shm,dst=/dev/shm,"
        "options=nosuid:noexec:nodev:mode=1777:size=1024 "
        "--mount type=bind,src=/home/a/.cache/sortie/runner-1,dst=/.sortie/runner,"
        "options=rbind:ro "
        "--mount type=bind,src=/tmp/sortie-1000/r1-1-0,dst=/tmp/sortie-1000/r1-1-0,"
        "options=rbind:rw "
        "sha256:ab sortie-r1-a1-n2 /.sortie/runner container-init /tmp/s/init-0.sock 1000:100");
  spec.ulimits = {{"memlock", "-1"}};
  CHECK(started(spec, host) == "error: ctr can not do this: ulimits; install nerdctl");
  spec.ulimits.clear();
  spec.user = "nobody";
  CHECK(has(started(spec, host), "user = \"nobody\" by name; install nerdctl"));
  spec.user = "7:8";
  CHECK(started(spec, host).ends_with("/tmp/s/init-0.sock 7:8"));
  Box box = plain_box();
  box.ipc_shared = true;
  CHECK(has(started(spec, host, box), "shared memory between containers"));
}

TEST_CASE("an engine that nobody knows") {
  CHECK(started(plain_spec("lxc")) == "error: no container engine is called lxc");
  CHECK(clients_of("lxc").empty());
  CHECK(clients_of("containerd") == std::vector{Engine::nerdctl, Engine::ctr});
  CHECK(clients_of("podman") == std::vector{Engine::podman});
}

TEST_CASE("names are unique and short enough for every engine") {
  Box box = plain_box();
  box.run_id = std::string(63, 'a') + 'b';
  box.attempt = 4000000000u;
  box.node_rank = 99999;
  box.rank = 999999;
  const std::string name = container_name(box);
  CHECK(name.size() <= 76);
  box.run_id.back() = 'c';
  CHECK(container_name(box) != name);
}

TEST_CASE("names of images as Docker completes them") {
  for (const auto& [name, full] : std::vector<std::pair<std::string, std::string>>{
           {"alpine", "docker.io/library/alpine:latest"},
           {"alpine:3", "docker.io/library/alpine:3"},
           {"team/trainer", "docker.io/team/trainer:latest"},
           {"localhost/trainer:1", "localhost/trainer:1"},
           {"host:5000/trainer", "host:5000/trainer:latest"},
           {"ghcr.io/team/trainer:1", "ghcr.io/team/trainer:1"},
           {"alpine@sha256:0a", "docker.io/library/alpine@sha256:0a"}}) {
    CHECK(full_image_name(name) == full);
    CHECK(full_image_name(full) == full);
  }
}

TEST_CASE("ctr: an image that is stored under the name as written is found, after the full name") {
  const std::string head = "REF TYPE DIGEST SIZE PLATFORMS LABELS\n";
  const std::string raw = "a:1   application/x sha256:01 7.0 MiB linux/amd64 -\n";
  const std::string other = "b/a:1 application/x sha256:02 7.0 MiB linux/amd64 sha256:09\n";
  const std::string full = "docker.io/library/a:1 application/x sha256:03 7.0 MiB linux/amd64 -\n";
  CHECK_FALSE(listed_image("a:1", head));
  CHECK_FALSE(listed_image("a:1", head + other));
  const auto as_written = listed_image("a:1", head + other + raw);
  REQUIRE(as_written);
  CHECK(as_written->name == "a:1");
  CHECK(as_written->digest == "sha256:01");
  const auto both = listed_image("a:1", head + raw + full);
  REQUIRE(both);
  CHECK(both->name == "docker.io/library/a:1");
  CHECK(both->digest == "sha256:03");
  CHECK_FALSE(listed_image("docker.io/library/a:1", head + raw));
}

TEST_CASE("the other commands") {
  CHECK(shown(inspect_image_command(Engine::docker, "docker", "a:1")) ==
        "docker image inspect --format '{{json .}}' a:1");
  CHECK(shown(inspect_image_command(Engine::ctr, "ctr", "a:1")) ==
        "ctr images list name==docker.io/library/a:1 name==a:1");
  CHECK(shown(inspect_image_command(Engine::ctr, "ctr", "docker.io/library/a:1")) ==
        "ctr images list name==docker.io/library/a:1");
  CHECK(shown(save_commands(Engine::docker, "docker", "a:1").at(0)) == "docker save a:1");
  const auto saves = save_commands(Engine::ctr, "ctr", "a:1");
  REQUIRE(saves.size() == 2);
  CHECK(shown(saves[0]) == "ctr images export - docker.io/library/a:1");
  CHECK(shown(saves[1]) == "ctr images export - a:1");
  CHECK(shown(pull_command(Engine::podman, "/usr/bin/podman", "a:1")) ==
        "/usr/bin/podman pull a:1");
  CHECK(shown(list_command(Engine::docker, "docker", kRunLabel)) ==
        "docker ps --all --quiet --filter label=sortie.run");
  CHECK(shown(list_command(Engine::docker, "docker", kRunLabel, "r1")) ==
        "docker ps --all --quiet --filter label=sortie.run=r1");
  CHECK(shown(list_command(Engine::ctr, "ctr", kRunLabel, "r1")) ==
        "ctr containers list --quiet 'labels.\"sortie.run\"==\"r1\"'");
  CHECK(shown(remove_commands(Engine::docker, "docker", {"a", "b"}).at(0)) ==
        "docker rm --force --volumes a b");
  const ProcessStatus good = ProcessStatus::from_wait_status(0);
  const ProcessStatus bad = ProcessStatus::from_wait_status(1 << 8);
  CHECK(shown(state_command(Engine::podman, "podman", "a")) == "podman container inspect a");
  CHECK_FALSE(has_ended(Engine::podman, "a", good, "[{}]"));
  CHECK(has_ended(Engine::podman, "a", bad, ""));
  CHECK(shown(state_command(Engine::ctr, "ctr", "a")) == "ctr tasks list");
  const std::string tasks = "TASK    PID    STATUS    \nab      7      STOPPED\na       8      ";
  CHECK_FALSE(has_ended(Engine::ctr, "a", good, tasks + "RUNNING\n"));
  CHECK(has_ended(Engine::ctr, "a", good, tasks + "STOPPED\n"));
  CHECK(has_ended(Engine::ctr, "b", good, tasks + "RUNNING\n"));
  const auto steps = remove_commands(Engine::ctr, "ctr", {"a", "b"});
  REQUIRE(steps.size() == 3);
  CHECK(shown(steps[1]) == "ctr tasks delete --force b");
  CHECK(shown(steps[2]) == "ctr containers delete a b");
  CHECK(shown({"a", "", "it's", "$x", "\n"}) == "a '' 'it'\\''s' '$x' '\n'");
}

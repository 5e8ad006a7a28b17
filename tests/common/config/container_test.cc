// [runner.container]: accepted values, and the error for each rejected one.
#include "common/config/container.h"

#include <doctest/doctest.h>

#include "common/config/container_forms.h"
#include "common/config/load.h"

namespace sortie::config {
namespace {

constexpr const char* kGood = "[runner.container]\nengine = \"docker\"\nimage = \"trainer:1\"\n";

/// Error message of loading `table` followed by `lines`; empty if it loads.
std::string error_of(const std::string& lines, const std::string& table = kGood) {
  const auto loaded = load_job_text(table + lines, "job", {});
  return loaded ? "" : loaded.error().message;
}

ContainerConfig container_of(const std::string& lines) {
  const auto loaded = load_job_text(kGood + lines, "job", {});
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  return loaded->job.runner.container;
}

TEST_CASE("a container table with everything is read, written and read again") {
  const std::string text = R"([runner.container]
engine = "podman"
image = "registry:5000/team/trainer@sha256:)" +
                           std::string(64, 'a') + R"x("
pull = "never"
mounts = [["/host/data", "/data", "ro"], ["/host/ckpt", "/ckpt"]]
shm_size = "1.5g"
ipc = "private"
network = "host"
gpus = "slots"
devices = ["/dev/infiniband", "/dev/fuse:/dev/fuse:rwm", "nvidia.com/gpu=all"]
ulimits = { nofile = "1024:4096", memlock = "-1" }
capabilities = ["SYS_PTRACE", "CAP_IPC_LOCK"]
privileged = true
user = "1000:100"
workdir = "/work"
entrypoint = ["/bin/tool", "a b"]
env = { A = "1", HF_TOKEN = "(secret)" }
labels = { "team.name" = "x y" }
extra_args = ["--cpuset-mems", "0"]
scope = "rank"
cpus = 1.5
memory = "32GiB"
credentials_file = "/home/me/.docker/config.json"
)x";
  const auto first = load_job_text(text, "job", {});
  REQUIRE_MESSAGE(first, (first ? "" : first.error().message));
  const ContainerConfig& container = first->job.runner.container;
  CHECK(container.mounts == std::vector<std::vector<std::string>>{{"/host/data", "/data", "ro"},
                                                                  {"/host/ckpt", "/ckpt"}});
  CHECK(container.entrypoint == std::vector<std::string>{"/bin/tool", "a b"});
  CHECK(container.cpus == 1.5);
  CHECK(container.ulimits.size() == 2);
  const std::string written = to_toml(first->job);
  const auto second = load_job_text(written, "job", {});
  REQUIRE_MESSAGE(second, (second ? "" : second.error().message));
  CHECK(to_toml(second->job) == written);
  CHECK(second->job.runner.container.mounts == container.mounts);
}

TEST_CASE("what nobody sets is as training needs it") {
  const ContainerConfig container = container_of("");
  CHECK(container.used());
  CHECK(container.network == "host");
  CHECK(container.entrypoint == std::vector<std::string>{kImageEntrypoint});
  CHECK(container.ulimits ==
        std::map<std::string, std::string>{{"memlock", "-1"}, {"stack", "67108864"}});
  CHECK(!container.privileged);
  CHECK(!JobConfig{}.runner.container.used());
}

TEST_CASE("each bad value has one error that says what to write") {
  struct Row {
    const char* lines;
    const char* error;
  };
  const Row rows[] = {
      {"mounts = [\"/host/data\", \"/data\", \"/host/ckpt\", \"/ckpt\"]",
       "job:4:10: runner.container.mounts: each item is a list of its own; write mounts = "
       "[[\"/host/data\", \"/data\"], [\"/host/ckpt\", \"/ckpt\"]]"},
      {"mounts = [\"/host/data\", \"/data\", \"ro\", \"/host/ckpt\", \"/ckpt\"]",
       "job:4:10: runner.container.mounts: each item is a list of its own; write mounts = "
       "[[\"/host/data\", \"/data\", \"ro\"], [\"/host/ckpt\", \"/ckpt\"]]"},
      {"mounts = [[\"/host/data\", \"/data\", \"/host/ckpt\", \"/ckpt\"]]",
       "job:4:11: runner.container.mounts: 4 strings are more than one item; write mounts = "
       "[[\"/host/data\", \"/data\"], [\"/host/ckpt\", \"/ckpt\"]]"},
      {"mounts = \"/data\"",
       "job:4:10: runner.container.mounts: must be a list of lists of strings, not "
       "\"/data\"; write [[\"...\", \"...\"], [\"...\", \"...\"]]"},
      {"mounts = [[\"data\", \"/data\"]]",
       "job:4:11: runner.container.mounts: [\"data\", \"/data\"] has the relative path \"data\"; "
       "write it from the root"},
      {"mounts = [[\"/a\", \"~/data\"]]",
       "job:4:11: runner.container.mounts: [\"/a\", \"~/data\"] has the relative path \"~/data\"; "
       "write it from the root"},
      {"mounts = [[\"/a\"]]",
       "job:4:11: runner.container.mounts: [\"/a\"] has one path; write [\"/host/path\", "
       "\"/container/path\"]"},
      {"mounts = [[\"/a\", \"/\"]]",
       "job:4:11: runner.container.mounts: [\"/a\", \"/\"] would hide the whole image; mount "
       "below /"},
      {"mounts = [[\"/a\", \"/b\", \"or\"]]",
       "job:4:11: runner.container.mounts: \"or\" is no option of a mount; did you mean \"ro\"?"},
      {"mounts = [[\"/a\", \"/data\"], [\"/b\", \"/data/\"]]",
       "job:4:10: runner.container.mounts: \"/data\" is the target of two mounts, of \"/a\" and of "
       "\"/b\"; give one of them another"},
      {"shm_size = \"16 gigs\"",
       "job:4:12: runner.container.shm_size: \"16 gigs\" is no size; write a number and a unit, "
       "like \"512MiB\" or \"16g\""},
      {"memory = \"lots\"",
       "job:4:10: runner.container.memory: \"lots\" is no size; write a number and a unit, like "
       "\"512MiB\" or \"16g\""},
      {"memory = \"1m\"",
       "job:4:10: runner.container.memory: \"1m\" is less than the 6 MiB without which engines "
       "start nothing; use more"},
      {"cpus = 0.001",
       "job:4:8: runner.container.cpus: 0.001 is less than the 0.01 CPUs that engines can limit "
       "to; use more, or 0 for no limit"},
      {"ipc = \"shareable\"\nscope = \"rank\"",
       "job:4:7: runner.container.ipc: gives each rank's container a /dev/shm of its own that no "
       "other uses; leave ipc empty, and the containers of a host's ranks share one"},
      {"ulimits = { memlok = \"-1\" }",
       "job:4:13: runner.container.ulimits: \"memlok\" is not one of core | cpu | data | fsize | "
       "locks | memlock | msgqueue | nice | nofile | nproc | rss | rtprio | rttime | sigpending | "
       "stack; did you mean \"memlock\"?"},
      {"ulimits = { nofile = \"10:5\" }",
       "job:4:11: runner.container.ulimits: \"10:5\" has a soft limit above the hard one; write "
       "\"5:5\""},
      {"ulimits = { nofile = \"many\" }",
       "job:4:11: runner.container.ulimits: \"many\" is no limit; write a whole number, "
       "\"SOFT:HARD\", or -1 for none: nofile = \"-1\""},
      {"capabilities = [\"sys_ptrace\"]",
       "job:4:17: runner.container.capabilities: \"sys_ptrace\" is no Linux capability; did you "
       "mean \"SYS_PTRACE\"?"},
      {"devices = [\"infiniband\"]",
       "job:4:12: runner.container.devices: \"infiniband\" is no device; write one like "
       "\"/dev/infiniband\" or \"/dev/fuse:/dev/fuse:rwm\""},
      {"labels = { \"sortie.run\" = \"x\" }",
       "job:4:12: runner.container.labels: \"sortie.run\": labels with sortie. are Sortie's own; "
       "use another name"},
      {"labels = { \"a=b\" = \"x\" }",
       "job:4:12: runner.container.labels: \"a=b\" is no name of a label; use letters, digits, "
       "'.', '_', '/' and '-'"},
      {"user = \"me:you:they\"",
       "job:4:8: runner.container.user: \"me:you:they\" is no user; write \"UID\", \"UID:GID\" or "
       "a name of the image"},
      {"workdir = \"src\"",
       "job:4:11: runner.container.workdir: \"src\" is not absolute; write the path inside the "
       "container from its root"},
      {"ipc = \"hots\"",
       "job:4:7: runner.container.ipc: \"hots\" is not one of private | host | shareable; did you "
       "mean \"host\"?"},
      {"ipc = \"host\"\nshm_size = \"1g\"",
       "job:5:12: runner.container.shm_size: has no effect with ipc = \"host\", which uses the "
       "host's own /dev/shm; remove one of the two"},
      {"entrypoint = [\"\"]",
       "job:4:14: runner.container.entrypoint: the program's name is empty; write it first, or [] "
       "for none"},
      {"extra_args = [\"--name=x\"]",
       "job:4:14: runner.container.extra_args: \"--name\": Sortie names the containers after the "
       "run; remove it"},
      {"extra_args = [\"-e\", \"A=b\"]",
       "job:4:14: runner.container.extra_args: \"-e\": it would be in the process list; use "
       "runner.container.env"},
      {"extra_args = [\"-eA=b\"]",
       "job:4:14: runner.container.extra_args: \"-e\": it would be in the process list; use "
       "runner.container.env"},
      {"extra_args = [\"-PeA=b\"]",
       "job:4:14: runner.container.extra_args: \"-e\": it would be in the process list; use "
       "runner.container.env"},
      {"extra_args = [\"-env\", \"A=b\"]",
       "job:4:14: runner.container.extra_args: \"--env\": it would be in the process list; use "
       "runner.container.env"},
      {"extra_args = [\"-uroot\"]",
       "job:4:14: runner.container.extra_args: \"-u\": use runner.container.user"},
      {"extra_args = [\"-v/a:/b\"]",
       "job:4:14: runner.container.extra_args: \"-v\": use runner.container.mounts"},
      {"extra_args = [\"-dit\"]",
       "job:4:14: runner.container.extra_args: \"-d\": the ranks' input and output go through "
       "Sortie; remove it"},
      {"extra_args = [\"-w/x\"]",
       "job:4:14: runner.container.extra_args: \"-w\": use runner.container.workdir"},
      {"extra_args = [\"-privileged\"]",
       "job:4:14: runner.container.extra_args: \"--privileged\": use "
       "runner.container.privileged"},
      {"extra_args = [\"--label\", \"sortie.x=y\"]",
       "job:4:14: runner.container.extra_args: \"--label\": use runner.container.labels"},
      {"extra_args = [\"-lsortie.x=y\"]",
       "job:4:14: runner.container.extra_args: \"-l\": use runner.container.labels"},
      {"extra_args = [\"\"]",
       "job:4:14: runner.container.extra_args: \"\" is empty, and an engine would take it for the "
       "image; remove it"},
      {"extra_args = [\"-hnode-e\", \"-p80:80\", \"--cpuset-mems=0\"]", ""},
      {"env = { RANK = \"1\" }",
       "job:4:7: runner.container.env.RANK: RANK is set by Sortie itself, another value for each "
       "rank; remove it"},
      {"env = { A = \"1\" }\n[runner]\nenv = { A = \"2\" }",
       "job:4:7: runner.container.env.A: A is in runner.env too; remove one of the two"},
      {"network = \"bridge\"\n[runner]\nmpi = \"on\"",
       "job:4:11: runner.container.network: \"bridge\" keeps MPI programs from the host's PMIx "
       "server, which runner.mpi = \"on\" asks for; use \"host\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.lines);
    CHECK(error_of(row.lines) == row.error);
  }
}

TEST_CASE("an engine and an image, or no table") {
  CHECK(error_of("engine = \"dokcer\"", "[runner.container]\n") ==
        "job:2:10: runner.container.engine: \"dokcer\" is not one of docker | podman | containerd; "
        "did you mean \"docker\"?");
  CHECK(error_of("engine = \"nerdctl\"", "[runner.container]\n") ==
        "job:2:10: runner.container.engine: \"nerdctl\" is how containerd is spoken to; write "
        "\"containerd\"");
  CHECK(error_of("engine = \"docker\"", "[runner.container]\n") ==
        "job:2:10: runner.container.image: no image to start; set it, like image = \"trainer:1\"");
  CHECK(error_of("image = \"a\"", "[runner.container]\n") ==
        "job:2:9: runner.container.image: does nothing without runner.container.engine; set engine "
        "= \"docker\", \"podman\" or \"containerd\", or remove the table");
  CHECK(error_of("", "[runner.container]\n") == "");
}

TEST_CASE("names of images") {
  for (const char* good : {"a", "a:b", "debian:12-slim", "localhost/x", "reg.io:5000/a/b:1.2",
                           "localhost:5000/a_b/c__d", "sha256:0123456789ab"}) {
    CAPTURE(good);
    CHECK(check_image(good) == "");
  }
  for (const char* bad : {"-a", "/a", "a/", "a b", "a$(b)", "Trainer:1", "a@b", "a//b",
                          "a:", "reg.io/Team/x", "a@sha256:12"}) {
    CAPTURE(bad);
    CHECK(check_image(bad) != "");
  }
}

TEST_CASE("sizes as Docker and people write them") {
  struct Row {
    const char* text;
    std::uint64_t bytes;
  };
  for (const Row& row :
       {Row{"1", 1}, Row{"512", 512}, Row{"1k", 1024}, Row{"64M", 64u << 20},
        Row{"16GiB", std::uint64_t{16} << 30}, Row{"16gb", std::uint64_t{16} << 30},
        Row{"1.5g", std::uint64_t{3} << 29}, Row{"2 TiB", std::uint64_t{2} << 40}, Row{"7b", 7}}) {
    CAPTURE(row.text);
    const auto bytes = parse_size(row.text);
    REQUIRE(bytes);
    CHECK(*bytes == row.bytes);
  }
  for (const char* bad : {"", "g", "1gg", "1ib", "-1g", "1.2.3g", ".5g", "1.", "0", "1e3", "1 g b",
                          "99999999999999999999g"}) {
    CAPTURE(bad);
    CHECK(!parse_size(bad));
  }
  CHECK(parse_size("0g").error().message ==
        "a size must be at least 1 byte; for the default leave the key empty");
}

TEST_CASE("what the trainer reads and writes lies under a mount") {
  JobConfig job;
  job.runner.container =
      container_of("mounts = [[\"/host/data\", \"/data\", \"ro\"], [\"/host/ckpt\", \"/ckpt\"]]");
  job.data.data_prefixes = {"/data/a/text", "{stage}/b"};
  job.trainer.save_dir = "/ckpt/run1";
  CHECK(check_mounted(job).empty());
  const auto error = [&] {
    std::string text;
    for (const Violation& violation : check_mounted(job))
      text += std::string(violation.rule) + " " + violation.keys.front() + ": " + violation.message;
    return text;
  };
  job.data.data_prefixes = {"/datasets/text"};
  CHECK(error() ==
        "E3 data.data_prefixes: \"/datasets/text\" is under no mount, so it would not be there "
        "inside the container; add [\"/datasets\", \"/datasets\", \"ro\"] to "
        "runner.container.mounts, the first being where it is on the hosts");
  job.data.data_prefixes = {"/host/data/a/text"};
  CHECK(error() ==
        "E3 data.data_prefixes: \"/host/data/a/text\" is its path on the host; inside the "
        "container it is \"/data/a/text\": write that");
  job.data.data_prefixes = {};
  job.trainer.save_dir = "/save";
  CHECK(error().starts_with("E3 trainer.save_dir: \"/save\" is under no mount"));
  CHECK(error().find("add [\"/save\", \"/save\"] to") != std::string::npos);
  job.trainer.save_dir = "/data/save";
  CHECK(error() ==
        "E3 trainer.save_dir: \"/data/save\" is under the mount of \"/host/data\" at \"/data\", "
        "which is read-only; take \"ro\" away from it");
  job.trainer.save_dir = "";
  job.trainer.load_dir = "/old";
  CHECK(error().find("add [\"/old\", \"/old\", \"ro\"] to") != std::string::npos);
  job.trainer.load_dir = "";
  job.trainer.load_weights_from = "/old";
  CHECK(error().starts_with("E3 trainer.load_weights_from: \"/old\" is under no mount"));
  job.trainer.load_weights_from = "";
  job.data.tokenizer = "sentencepiece:/tok/m.model";
  CHECK(error().starts_with("E3 data.tokenizer: \"/tok/m.model\" is under no mount"));
  job.runner.container.engine = "";
  CHECK(error() == "");
}

}  // namespace
}  // namespace sortie::config

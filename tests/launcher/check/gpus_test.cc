// GPUs and the trainer's answers: from reports of hosts that differ to verdicts.
#include "launcher/check/gpus.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "launcher/check/present.h"
#include "launcher/check/requests.h"
#include "tests/launcher/check/reports.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher::check;
using namespace sortie::test;

namespace {

Expectations trainer_job(const std::string& device) {
  Expectations expect = sound_expectations();
  expect.device = device;
  expect.ask_trainer = true;
  return expect;
}

OneGpu h100() {
  OneGpu gpu;
  gpu.name = "NVIDIA H100";
  gpu.compute_capability = "9.0";
  gpu.memory_mib = 81559;
  gpu.max_sm_clock_mhz = gpu.app_clock_mhz = gpu.default_app_clock_mhz = 1980;
  gpu.power_limit_w = gpu.default_power_limit_w = 700;
  gpu.persistence = true;
  return gpu;
}

/// A host with two GPUs and a trainer that can use them.
HostResult gpu_host(const std::string& name, const std::string& model = "NVIDIA H100") {
  HostResult host = sound_host(name);
  GpuFacts gpus;
  gpus.driver = gpus.devices = 2;
  gpus.smi = "/usr/bin/nvidia-smi";
  gpus.driver_version = "580.65.06";
  gpus.gpus.assign(2, h100());
  for (OneGpu& gpu : gpus.gpus) gpu.name = model;
  host.report.gpus = gpus;
  TrainerFacts trainer;
  trainer.version = "1.0";
  trainer.build = std::string(64, 'a');
  trainer.isa = "avx512_core";
  trainer.driver_cuda = "13.0";
  trainer.cuda = "13.0";
  trainer.cublaslt = "13.1.0";
  trainer.nccl = "2.28.9";
  trainer.gpus.assign(2, {model, "", 90, 1980, std::uint64_t{80} << 30});
  host.report.trainer = trainer;
  return host;
}

/// Its trainer can use no GPU.
HostResult without_module(HostResult host) {
  TrainerFacts& trainer = *host.report.trainer;
  trainer.gpus.clear();
  trainer.cuda = trainer.cublaslt = trainer.nccl = trainer.driver_cuda = "";
  trainer.problem =
      "/opt/libsortie-cuda.so: can not be loaded: libnccl.so.2: cannot open shared object file: No "
      "such file or directory; install Sortie's build with CUDA, or use \"cpu\"";
  return host;
}

/// A host without GPUs, on which the module is not installed.
HostResult cpu_host(const std::string& name) {
  HostResult host = without_module(gpu_host(name));
  host.report.gpus = GpuFacts{};
  return host;
}

}  // namespace

TEST_CASE("gpus: sound hosts show model, memory, clocks, driver and libraries") {
  const std::vector<HostResult> hosts = {gpu_host("h1"), gpu_host("h2")};
  for (const char* device : {"cuda", "auto"}) {
    const auto gpus = judge_gpus(hosts, trainer_job(device));
    const auto trainer = judge_trainer(hosts, trainer_job(device));
    for (std::size_t i : {0u, 1u}) {
      CHECK(gpus[i] == Finding{"gpus", Verdict::pass,
                               "2 x NVIDIA H100 (79.6 GiB, compute capability 9.0, at most 1980 "
                               "MHz), driver 580.65.06",
                               ""});
      CHECK(trainer[i] ==
            Finding{"trainer", Verdict::pass,
                    "build aaaaaaaaaaaa, CUDA 13.0 (driver: 13.0), cuBLASLt 13.1.0, NCCL 2.28.9",
                    ""});
    }
  }
  CHECK(judge_trainer(hosts, trainer_job("cpu"))[0].reason ==
        "build aaaaaaaaaaaa, on CPUs (avx512_core)");
}

TEST_CASE("gpus: the ranks of a run need GPUs of one model") {
  std::vector<HostResult> hosts = {gpu_host("h1"), gpu_host("h2"), gpu_host("h3", "NVIDIA A100")};
  for (const char* device : {"cuda", "auto"}) {
    const auto found = judge_gpus(hosts, trainer_job(device));
    CHECK(found[0].verdict == Verdict::pass);
    CHECK(found[2].verdict == Verdict::fail);
    CHECK(contains(found[2].reason, ": NVIDIA H100 on h[1-2], and the ranks of a run need"));
    CHECK_FALSE(found[2].fix.empty());
  }
  // Ranks on CPUs do not use them, and other programs are only slow.
  CHECK(judge_gpus(hosts, trainer_job("cpu"))[2].verdict == Verdict::pass);
  CHECK(judge_gpus(hosts, sound_expectations())[2].verdict == Verdict::warn);
  // Sites are separate jobs.
  hosts[0].site = hosts[1].site = "oslo";
  hosts[2].site = "rome";
  CHECK(judge_gpus(hosts, trainer_job("cuda"))[2].verdict == Verdict::pass);
  // Two models in one host; a slot selects one of them.
  std::vector<HostResult> one = {gpu_host("h1")};
  one[0].report.gpus->gpus[1].name = one[0].report.trainer->gpus[1].name = "NVIDIA A100";
  CHECK(judge_gpus(one, trainer_job("cuda"))[0].verdict == Verdict::fail);
  CHECK(contains(judge_gpus(one, trainer_job("cuda"))[0].reason,
                 "1 x NVIDIA H100, 1 x NVIDIA A100, driver 580.65.06: the ranks of a run need"));
  one[0].slots = {0};
  CHECK(judge_gpus(one, trainer_job("cuda"))[0].verdict == Verdict::pass);
}

TEST_CASE("gpus: a driver that is too old ends a run on GPUs") {
  std::vector<HostResult> hosts = {gpu_host("h1"), gpu_host("h2"), gpu_host("h3")};
  hosts[1].report.gpus->driver_version = "570.10";
  // CUDA's compatibility package: the trainer works nevertheless.
  CHECK(judge_gpus(hosts, trainer_job("cuda"))[1].verdict == Verdict::warn);
  CHECK(contains(judge_gpus(hosts, trainer_job("cuda"))[1].reason, ": driver 580.65.06 on h[1,3]"));
  hosts[1] = without_module(hosts[1]);
  hosts[1].report.trainer->problem =
      "the NVIDIA driver supports CUDA 12.8, this build needs 13.0; install a newer driver";
  const auto found = judge_gpus(hosts, trainer_job("cuda"));
  CHECK(found[0].verdict == Verdict::pass);
  CHECK(found[1].verdict == Verdict::fail);
  CHECK(contains(found[1].reason, "needs driver 580 or newer"));
  const auto trainer = judge_trainer(hosts, trainer_job("cuda"));
  CHECK(trainer[1] == Finding{"trainer", Verdict::fail,
                              "trainer.device = \"cuda\": the NVIDIA driver supports CUDA 12.8, "
                              "this build needs 13.0",
                              "install a newer driver"});
  CHECK(judge_gpus(hosts, trainer_job("auto"))[1].verdict == Verdict::warn);
  CHECK(judge_gpus(hosts, trainer_job("cpu"))[1].verdict == Verdict::pass);
  // A program that is not Sortie's trainer has its own CUDA.
  hosts[0].report.gpus->driver_version = "570.10";
  CHECK(judge_gpus(hosts, sound_expectations())[1].verdict == Verdict::pass);
}

TEST_CASE("gpus: what only slows a run is a warning that names the GPUs") {
  std::vector<HostResult> hosts = {gpu_host("h1"), gpu_host("h2"), gpu_host("h3")};
  auto& gpus = hosts[1].report.gpus->gpus;
  const auto found = [&] { return judge_gpus(hosts, trainer_job("cuda"))[1]; };
  gpus[1].app_clock_mhz = 1200;
  CHECK(found().verdict == Verdict::warn);
  CHECK(contains(found().reason, ": application clocks of 1200 MHz instead of 1980 MHz on GPU 1"));
  CHECK(contains(found().fix, "nvidia-smi -rac"));
  gpus[0].power_limit_w = gpus[1].power_limit_w = 400;
  CHECK(contains(found().reason, "; a power limit of 400 W instead of 700 W on GPU 0-1"));
  gpus[0].persistence = false;
  CHECK(contains(found().reason, "; persistence mode is off"));
  gpus.assign(2, h100());
  gpus[0].max_sm_clock_mhz = 1755;
  CHECK(found().verdict == Verdict::warn);
  CHECK(contains(found().reason, ": clocks of at most 1755 MHz, and 1980 MHz on h[1,3]"));
  gpus.assign(2, h100());
  gpus[0].persistence.reset();  // unknown
  gpus[0].app_clock_mhz = gpus[0].power_limit_w = 0;
  CHECK(found().verdict == Verdict::pass);
  // Without a program all GPUs count, not only those of slots.
  hosts[1].slots = {0};
  gpus[1].power_limit_w = 400;
  CHECK(judge_gpus(hosts, trainer_job("cuda"))[1].verdict == Verdict::pass);
  Expectations fleet = sound_expectations();
  fleet.program.clear();
  CHECK(judge_gpus(hosts, fleet)[1].verdict == Verdict::warn);
}

TEST_CASE("gpus: hosts with and without GPUs in one run") {
  const std::vector<HostResult> hosts = {gpu_host("h1"), cpu_host("h2")};
  const auto with_auto = judge_gpus(hosts, trainer_job("auto"));
  CHECK(with_auto[0].verdict == Verdict::pass);
  CHECK(with_auto[1].verdict == Verdict::fail);
  CHECK(contains(with_auto[1].reason, "all on GPUs, or all on CPUs"));
  CHECK(judge_gpus(hosts, trainer_job("cuda"))[1].verdict == Verdict::fail);
  CHECK(judge_gpus(hosts, trainer_job("cpu"))[1].verdict == Verdict::pass);
  CHECK(judge_gpus(hosts, sound_expectations())[1].verdict == Verdict::warn);
  // On CPUs everywhere.
  const std::vector<HostResult> cpus = {cpu_host("h1"), cpu_host("h2")};
  CHECK(judge_gpus(cpus, trainer_job("auto"))[0].verdict == Verdict::pass);
  CHECK(judge_trainer(cpus, trainer_job("auto"))[0].verdict == Verdict::pass);
}

TEST_CASE(
    "trainer: GPU code that does not load ends a run with \"cuda\", and mixes with \"auto\"") {
  std::vector<HostResult> hosts = {gpu_host("h1"), without_module(gpu_host("h2")), gpu_host("h3")};
  const auto cuda = judge_trainer(hosts, trainer_job("cuda"));
  CHECK(cuda[0].verdict == Verdict::pass);
  CHECK(cuda[1].verdict == Verdict::fail);
  CHECK(contains(cuda[1].reason, "can not be loaded: libnccl.so.2: cannot open"));
  CHECK(cuda[1].fix == "install Sortie's build with CUDA, or use \"cpu\"");
  const auto mixed = judge_trainer(hosts, trainer_job("auto"));
  CHECK(mixed[0].verdict == Verdict::pass);
  CHECK(mixed[1].verdict == Verdict::fail);
  CHECK(contains(mixed[1].reason,
                 "its ranks would compute on CPUs, and those of h[1,3] on GPUs: /opt/"));
  for (HostResult& host : hosts) host = without_module(host);
  const auto slow = judge_trainer(hosts, trainer_job("auto"));
  CHECK(slow[1].verdict == Verdict::warn);
  CHECK(contains(slow[1].reason, "although it has GPUs: /opt/libsortie-cuda.so"));
  CHECK(judge_trainer(hosts, trainer_job("cpu"))[1].verdict == Verdict::pass);
}

TEST_CASE("trainer: GPUs that are too few or too old for the ranks") {
  std::vector<HostResult> hosts = {gpu_host("h1")};
  hosts[0].report.trainer->gpus.pop_back();
  CHECK(contains(judge_trainer(hosts, trainer_job("cuda"))[0].reason, "1 GPU for 2 ranks"));
  Expectations one = trainer_job("cuda");
  one.one_gpu = true;
  CHECK(judge_trainer(hosts, one)[0].verdict == Verdict::pass);
  hosts = {gpu_host("h1")};
  hosts[0].report.trainer->gpus[1].problem =
      "Tesla V100 has compute capability 7.0, and 8.0 or newer is needed";
  CHECK(judge_trainer(hosts, trainer_job("cuda"))[0].verdict == Verdict::fail);
  CHECK(judge_trainer(hosts, trainer_job("auto"))[0].verdict == Verdict::warn);
  CHECK(contains(judge_trainer(hosts, trainer_job("auto"))[0].reason, "8.0 or newer is needed"));
}

TEST_CASE("trainer: builds, libraries and instruction sets that differ end a run at its start") {
  std::vector<HostResult> hosts = {gpu_host("h1"), gpu_host("h2"), gpu_host("h3")};
  hosts[2].report.trainer->nccl = "2.27.3";
  const auto libraries = judge_trainer(hosts, trainer_job("cuda"));
  CHECK(libraries[0].verdict == Verdict::pass);
  CHECK(libraries[2].verdict == Verdict::fail);
  CHECK(libraries[2].reason ==
        "CUDA 13.0, cuBLASLt 13.1.0, NCCL 2.27.3, and CUDA 13.0, cuBLASLt 13.1.0, NCCL 2.28.9 on "
        "h[1-2]");
  hosts[2].report.trainer->build = std::string(64, 'b');
  for (const char* device : {"cuda", "auto", "cpu"}) {
    const auto builds = judge_trainer(hosts, trainer_job(device));
    CHECK(builds[0].verdict == Verdict::pass);
    CHECK(builds[2].verdict == Verdict::fail);
    CHECK(builds[2].reason == "build bbbbbbbbbbbb, and aaaaaaaaaaaa on h[1-2]");
  }
  hosts[2].report.trainer->build.clear();  // an older version
  CHECK(judge_trainer(hosts, trainer_job("cpu"))[2].verdict == Verdict::fail);
  hosts[2].report.trainer->error = "/opt/train: no end within 30000 ms";
  CHECK(contains(judge_trainer(hosts, trainer_job("cpu"))[2].reason, "no end within"));
  hosts = {cpu_host("h1"), cpu_host("h2"), cpu_host("h3")};
  hosts[2].report.trainer->isa = "avx2";
  CHECK(judge_trainer(hosts, trainer_job("auto"))[1].verdict == Verdict::pass);
  CHECK(judge_trainer(hosts, trainer_job("auto"))[2].verdict == Verdict::fail);
  CHECK(judge_trainer(hosts, trainer_job("auto"))[2].reason ==
        "its CPU has avx2, and avx512_core on h[1-2]");
  hosts = {gpu_host("h1"), gpu_host("h2")};  // GPUs compute there
  hosts[1].report.trainer->isa = "avx2";
  CHECK(judge_trainer(hosts, trainer_job("auto"))[1].verdict == Verdict::pass);
}

TEST_CASE("gpus: without nvidia-smi the trainer's own view counts") {
  HostResult host = gpu_host("h1");
  host.report.gpus = GpuFacts{};
  CHECK(gpu_count(host) == 2);
  const Finding found = judge_gpus({host}, trainer_job("cuda"))[0];
  CHECK(found.verdict == Verdict::pass);
  CHECK(found.reason == "2 x NVIDIA H100 (80.0 GiB, compute capability 9.0, at most 1980 MHz)");
}

TEST_CASE("gpus: text and JSON show GPUs and versions, equal hosts once") {
  std::vector<HostResult> hosts = {gpu_host("h1"), gpu_host("h2"), cpu_host("h3")};
  const Expectations expect = trainer_job("cpu");
  const std::string text = check_text(hosts, evaluate(hosts, expect), {});
  CAPTURE(text);
  CHECK(
      has(text,
          "\ngpus of h[1-2] (2): 2 x NVIDIA H100 (79.6 GiB, compute capability 9.0, at most "
          "1980 MHz), driver 580.65.06, CUDA 13.0 (driver: 13.0), cuBLASLt 13.1.0, NCCL 2.28.9\n"));
  CHECK_FALSE(has(text, "gpus of h3"));
  const auto json = nlohmann::json::parse(check_json_text(hosts, evaluate(hosts, expect), 1));
  const auto& host = json["hosts"][0];
  CHECK(host["driver"] == "580.65.06");
  CHECK(host["gpus"][1]["name"] == "NVIDIA H100");
  CHECK(host["gpus"][1]["max_sm_clock_mhz"] == 1980);
  CHECK(host["gpus"][1]["persistence"] == true);
  CHECK_FALSE(host["gpus"][1].contains("sm_clock_mhz"));
  CHECK(host["trainer"]["nccl"] == "2.28.9");
  CHECK(host["trainer"]["gpus"] == 2);
  CHECK(json["hosts"][2]["gpus"].empty());
  CHECK(has(json["hosts"][2]["trainer"]["problem"].get<std::string>(), "can not be loaded"));
}

TEST_CASE("trainer: it is asked with the environment of ranks, without secrets") {
  const ScopedTempDir dir;
  launcher::JobOptions options;
  options.overrides = {"data.data_prefixes=[\"/data/x\"]",
                       "data.tokenizer=byte",
                       "model.preset=gpt2-124m",
                       "trainer.device=cuda",
                       "runner.hosts=[\"h1 slots=0,3\", \"h2 slots=2\"]",
                       "runner.env.LD_LIBRARY_PATH=/opt/nccl",
                       "runner.secret_env.TOKEN=(secret)"};
  const ScopedVariable secret("TOKEN", "hidden");
  write_text(dir / "job.toml", "");
  options.config = dir.str("job.toml");
  auto job = launcher::plan_job(options);
  REQUIRE_MESSAGE(job, job.error().message);
  const Expectations expect = expectations(*job, /*only_hosts=*/false);
  CHECK(expect.device == "cuda");
  CHECK(expect.ask_trainer);
  CHECK_FALSE(expect.one_gpu);
  const auto names = check_names(expect);
  CHECK(std::ranges::find(names, "trainer") != names.end());
  const auto request =
      nlohmann::json::parse(trainer_request(*job, expect, job->plan.hosts[0], 30000));
  CHECK(request["kind"] == "trainer");
  CHECK(request["cpu"] == false);
  CHECK(request["limit_ms"] == 30000);
  const auto env = request["program"]["env"].get<std::vector<std::string>>();
  const auto sent = [&](const std::string& line) {
    return std::ranges::find(env, line) != env.end();
  };
  CHECK(sent("LD_LIBRARY_PATH=/opt/nccl"));
  CHECK(sent("CUDA_VISIBLE_DEVICES=0,3"));
  CHECK(sent("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  CHECK_FALSE(has(request.dump(), "TOKEN"));
  CHECK_FALSE(has(request.dump(), "hidden"));
  const auto look = nlohmann::json::parse(look_request(*job, expect, job->plan.hosts[1], false));
  CHECK(look["program"] ==
        nlohmann::json::parse(trainer_request(*job, expect, job->plan.hosts[1], 30000))["program"]);
  CHECK(has(look.dump(), "CUDA_VISIBLE_DEVICES=0,1\""));
  // MASTER_PORT must be free on the host of rank 0, and not on a spare, which has no ranks yet.
  job->plan.master_port = 29500;
  CHECK(nlohmann::json::parse(look_request(*job, expect, job->plan.hosts[0], true))["port"] ==
        29500);
  const auto spare = nlohmann::json::parse(look_request(*job, expect, launcher::HostPlan{}, false));
  CHECK_FALSE(spare.contains("port"));
  CHECK_FALSE(has(spare.dump(), "CUDA_VISIBLE_DEVICES"));
  // A program of the user is not asked.
  options.overrides.clear();
  options.program = {"./train.py"};
  options.config.clear();
  job = launcher::plan_job(options);
  REQUIRE(job);
  CHECK_FALSE(expectations(*job, false).ask_trainer);
  CHECK(expectations(*job, false).device.empty());
}

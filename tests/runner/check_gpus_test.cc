// The check requests about GPUs, answered by the real runner: nvidia-smi (a script, because this
// machine may have none), and sortie-train with emulated GPUs.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/runner/checked_runner.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::test;
using Json = nlohmann::json;

namespace {

void write_script(const std::filesystem::path& path, const std::string& body) {
  test::write_text(path, "#!/bin/sh\n" + body);
  std::filesystem::permissions(path, std::filesystem::perms(0755));
}

/// The part "gpus" on a host with this nvidia-smi.
Json gpus_with(const std::string& nvidia_smi) {
  ScopedTempDir dir;
  write_script(dir / "nvidia-smi", nvidia_smi);
  CheckedRunner runner({"PATH=" + dir.path().string() + ":/usr/bin:/bin"});
  return runner.part_of(look(), "gpus");
}

/// The part "trainer" for a program and variables of the job.
Json trainer_with(const std::string& program, std::vector<std::string> variables,
                  int limit_ms = 60000) {
  CheckedRunner runner;
  const Json request = {{"kind", "trainer"},
                        {"program", {{"name", program}, {"work_dir", "/"}, {"env", variables}}},
                        {"limit_ms", limit_ms}};
  return runner.part_of(request, "trainer");
}

const std::string kEmulated = std::string("SORTIE_CUDA_MODULE=") + SORTIE_EMULATED_MODULE;

}  // namespace

TEST_CASE("check: nvidia-smi that answers, fails, hangs") {
  const Json two = gpus_with("echo 'NVIDIA H100, 81559'; echo 'NVIDIA H100, 81559'\n");
  REQUIRE(two["gpus"].size() == 2);
  CHECK(two["gpus"][1]["memory_mib"] == 81559);
  const Json failed =
      gpus_with("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n");
  CHECK(failed["smi_error"].get<std::string>().find("exit code 18: Failed to init") == 0);
  const auto begin = std::chrono::steady_clock::now();
  const Json hung = gpus_with("sleep 99 & sleep 98\n");
  CHECK(hung["smi_error"].get<std::string>().find("no end within") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < patient(std::chrono::seconds(60)));
}

TEST_CASE("check: memory, clocks, limits and modes of each GPU") {
  const Json gpus = gpus_with(
      "case \"$1\" in --query-gpu=name,memory.total,compute_cap,clocks.sm,clocks.max.sm,*) ;; *) "
      "exit 2;; "
      "esac\n"
      "echo 'NVIDIA H100, 81559, 9.0, 345, 1980, 1200, 1980, 400.00, 700.00, Disabled'\n"
      "echo 'NVIDIA X, [N/A], [N/A], [N/A], [N/A], [N/A], [Requested functionality has been "
      "deprecated], [N/A], [N/A], Enabled'\n")["gpus"];
  REQUIRE(gpus.size() == 2);
  const Json expected = {{"name", "NVIDIA H100"},         {"memory_mib", 81559},
                         {"compute_capability", "9.0"},   {"sm_clock_mhz", 345},
                         {"max_sm_clock_mhz", 1980},      {"app_clock_mhz", 1200},
                         {"default_app_clock_mhz", 1980}, {"power_limit_w", 400},
                         {"default_power_limit_w", 700},  {"persistence", false}};
  CHECK(gpus[0] == expected);
  CHECK(gpus[1] == Json::parse(R"({"name": "NVIDIA X", "persistence": true})"));
}

TEST_CASE("check: an nvidia-smi that does not know a value is asked for less") {
  const Json gpus = gpus_with(
      "case \"$1\" in --query-gpu=name,memory.total) echo 'NVIDIA K80, 11441';; "
      "*) echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2;; esac\n");
  CHECK_FALSE(gpus.contains("smi_error"));
  CHECK(gpus["gpus"] == Json::parse(R"([{"name": "NVIDIA K80", "memory_mib": 11441}])"));
}

TEST_CASE("check: what sortie-train finds with the job's variables") {
  const Json part = trainer_with(SORTIE_TRAIN_BINARY, {kEmulated, "SORTIE_EMULATED_GPUS=2",
                                                       "SORTIE_EMULATED_NCCL_VERSION=22703"});
  CAPTURE(part.dump());
  REQUIRE_FALSE(part.contains("error"));
  CHECK(part["answer"]["gpus"].size() == 2);
  CHECK(part["answer"]["nccl"] == "2.27.3");
  CHECK(part["answer"]["build"].get<std::string>().size() == 64);
  const Json broken = trainer_with(SORTIE_TRAIN_BINARY, {"SORTIE_CUDA_MODULE=/no/such.so"});
  CHECK(contains(broken["answer"]["problem"], "/no/such.so: can not be loaded"));
}

TEST_CASE("check: a trainer that is not there, fails, says nothing or hangs") {
  const ScopedTempDir dir;
  CHECK(trainer_with(dir.str("none"), {})["error"] == "No such file or directory");
  write_script(dir / "trainer", "echo 'Illegal instruction' >&2; exit 132\n");
  CHECK(contains(trainer_with(dir.str("trainer"), {})["error"],
                 "devices --json`: exit code 132: Illegal instruction"));
  write_script(dir / "trainer", "echo nonsense\n");
  CHECK(contains(trainer_with(dir.str("trainer"), {})["error"], "exit code 0: nonsense"));
  write_script(dir / "trainer", "echo warning >&2; echo '{\"build\": \"ab\"}'\n");
  CHECK(trainer_with(dir.str("trainer"), {})["answer"] == Json::parse(R"({"build": "ab"})"));
  write_script(dir / "trainer", "sleep 99 & sleep 98\n");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(contains(trainer_with(dir.str("trainer"), {}, 300)["error"], "no end within 300 ms"));
  CHECK(std::chrono::steady_clock::now() - begin < patient(std::chrono::seconds(60)));
}

TEST_CASE("check: the trainer has the environment of a rank, not the runner's own") {
  const ScopedTempDir dir;
  write_script(dir / "trainer", "echo \"{\\\"all\\\": \\\"$OF_RUNNER,$OF_JOB,$HOME,$*\\\"}\"\n");
  CheckedRunner runner({"OF_RUNNER=1", "HOME=/home/x"});
  const Json program = {
      {"name", dir.str("trainer")}, {"work_dir", "/"}, {"env", Json::array({"OF_JOB=2"})}};
  Json request = {{"kind", "trainer"}, {"program", program}, {"limit_ms", 60000}};
  CHECK(runner.part_of(request, "trainer")["answer"]["all"] == ",2,/home/x,devices --json");
  request["cpu"] = true;
  CHECK(runner.part_of(request, "trainer")["answer"]["all"] == ",2,/home/x,devices --json --cpu");
}

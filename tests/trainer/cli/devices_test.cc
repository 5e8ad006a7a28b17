// Tests of `sortie-train devices` as a user and as `sortie check` call it, on emulated GPUs.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

using Json = nlohmann::json;
using sortie::test::has;
using sortie::testing::Finished;

/// Runs `devices` with variables ("NAME=value") and arguments.
Finished devices(std::vector<std::string> variables, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"/usr/bin/env"};
  argv.insert(argv.end(), variables.begin(), variables.end());
  argv.insert(argv.end(), {SORTIE_TRAIN_BINARY, "devices"});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return sortie::testing::run(argv);
}

Json devices_json(std::vector<std::string> variables, std::vector<std::string> more = {}) {
  more.insert(more.begin(), "--json");
  const Finished done = devices(std::move(variables), more);
  CAPTURE(done.output);
  REQUIRE(done.code == 0);
  return Json::parse(done.output);
}

const std::string kDevicesModule = std::string("SORTIE_CUDA_MODULE=") + SORTIE_EMULATED_MODULE;

}  // namespace

TEST_CASE("devices: GPUs with their clocks, versions and the build, as JSON and as text") {
  const Json all = devices_json({kDevicesModule, "SORTIE_EMULATED_GPUS=2"});
  CAPTURE(all.dump());
  CHECK(all["schema"] == "sortie/devices/1");
  CHECK(all["version"].is_string());
  const Finished hash = sortie::testing::run({"/usr/bin/sha256sum", SORTIE_TRAIN_BINARY});
  CHECK(all["build"] == hash.output.substr(0, 64));
  CHECK(all["cuda"] == "13.0");
  CHECK(all["driver_cuda"] == "13.0");
  CHECK(has(all["cublaslt"].get<std::string>(), "13."));
  CHECK(all["nccl"] == "2.28.9");
  CHECK(all["libraries"] ==
        "CUDA 13.0, cuBLASLt " + all["cublaslt"].get<std::string>() + ", NCCL 2.28.9");
  CHECK_FALSE(all.contains("problem"));
  REQUIRE(all["gpus"].size() == 2);
  for (const Json& gpu : all["gpus"]) {
    CHECK(gpu["name"] == "emulated GPU");
    CHECK(gpu["compute_capability"] == 90);
    CHECK(gpu["clock_mhz"] == 1830);
    CHECK(gpu["memory_clock_mhz"] == 2619);
    CHECK_FALSE(gpu.contains("problem"));
  }
  const Finished text = devices({kDevicesModule, "SORTIE_EMULATED_GPUS=2"}, {});
  CAPTURE(text.output);
  CHECK(has(text.output, ", build " + hash.output.substr(0, 12) + "\n"));
  CHECK(has(text.output, ", supports CUDA 13.0\n"));
  CHECK(has(text.output, ", NCCL 2.28.9\n"));
  CHECK(has(text.output, "gpu 1    emulated GPU, compute capability 9.0, "));
  CHECK(has(text.output, ", clocks of at most 1830 MHz (memory 2619 MHz)\n"));
}

TEST_CASE("devices: a module that is not there, is another one, or finds no GPU") {
  const Json absent = devices_json({"SORTIE_CUDA_MODULE=/no/such/module.so"});
  CHECK(has(absent["problem"].get<std::string>(), "/no/such/module.so: can not be loaded: "));
  CHECK(absent["cuda"].is_null());
  CHECK(absent["libraries"].is_null());
  CHECK(absent["build"].get<std::string>().size() == 64);
  CHECK(absent["gpus"].empty());
  const Json other = devices_json({"SORTIE_CUDA_MODULE=libm.so.6"});
  CHECK(has(other["problem"].get<std::string>(), "belongs to another build"));
  const Json lost = devices_json({kDevicesModule, "SORTIE_EMULATED_LOST_GPU=1"});
  CHECK(has(lost["problem"].get<std::string>(), "a look at a GPU failed"));
  CHECK(lost["gpus"].empty());
  const Json none = devices_json({kDevicesModule, "SORTIE_EMULATED_GPUS=0"});
  CHECK(has(none["problem"].get<std::string>(), "this process sees no GPU"));
  CHECK(none["nccl"] == "2.28.9");  // the module is loaded
}

TEST_CASE("devices: a GPU that is too old for the kernels is named with the reason") {
  const Json old =
      devices_json({kDevicesModule, "SORTIE_EMULATED_GPUS=1", "SORTIE_EMULATED_GPU=sm_75"});
  CHECK(old["gpus"][0]["problem"] ==
        "emulated GPU has compute capability 7.5, and 8.0 or newer is needed");
  const Finished text =
      devices({kDevicesModule, "SORTIE_EMULATED_GPUS=1", "SORTIE_EMULATED_GPU=sm_75"}, {});
  CHECK(has(text.output, "and 8.0 or newer is needed\n"));
}

TEST_CASE("devices --cpu loads no GPU code") {
  const Json cpu = devices_json({kDevicesModule}, {"--cpu"});
  CHECK(cpu["gpus"].empty());
  CHECK(cpu["cuda"].is_null());
  CHECK_FALSE(cpu.contains("problem"));
  CHECK(cpu["build"].get<std::string>().size() == 64);
  CHECK_FALSE(cpu["cpu"]["isa"].get<std::string>().empty());
  CHECK_FALSE(has(devices({kDevicesModule}, {"--cpu"}).output, "gpu"));
}

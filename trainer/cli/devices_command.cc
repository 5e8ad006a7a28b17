#include "trainer/cli/devices_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/cpu/topology.h"
#include "trainer/cli/report.h"
#include "trainer/loop/compute_device.h"
#include "trainer/loop/startup_check.h"
#include "trainer/tensor/context.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kShownBuild = 12;  // as in the error of the start-up check

/// What a process finds here. `problem`: why it can not use GPUs.
struct Devices {
  std::string build;  // hash of this program
  CpuFacts cpu;
  std::string driver;  // version of the NVIDIA driver
  DeviceModule* module = nullptr;
  std::vector<GpuFacts> gpus;
  std::string problem;
};

Result<Devices> find_devices(bool only_cpu) {
  Devices found;
  SORTIE_ASSIGN_OR_RETURN(found.build, build_hash());
  found.cpu = cpu_facts();
  found.driver = cpu::nvidia_driver_version("/");
  if (only_cpu) return found;
  const auto module = load_cuda_module();
  if (module) found.module = *module;
  try {
    auto gpus = module ? (*module)->gpus() : std::unexpected(module.error());
    if (gpus)
      found.gpus = std::move(*gpus);
    else
      found.problem = gpus.error().message;
  } catch (const DeviceError& error) {  // a GPU that is counted, but does not answer
    found.problem = error.what();
  }
  return found;
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

OrderedJson devices_json(const Devices& found) {
  const DeviceVersions versions = found.module ? found.module->versions() : DeviceVersions();
  OrderedJson all = {{"schema", "sortie/devices/1"},
                     {"version", SORTIE_VERSION},
                     {"build", found.build},
                     {"cpu", {{"model", found.cpu.model}, {"isa", found.cpu.isa}}},
                     {"driver", text_or_null(found.driver)},
                     {"driver_cuda", text_or_null(versions.driver_cuda)},
                     {"libraries", text_or_null(found.module ? found.module->libraries() : "")},
                     {"cuda", text_or_null(versions.cuda)},
                     {"cublaslt", text_or_null(versions.cublaslt)},
                     {"nccl", text_or_null(versions.nccl)},
                     {"gpus", OrderedJson::array()}};
  if (!found.problem.empty()) all["problem"] = found.problem;
  for (const GpuFacts& gpu : found.gpus) {
    OrderedJson one = {{"name", gpu.name},
                       {"compute_capability", gpu.compute_capability},
                       {"multiprocessors", gpu.multiprocessors},
                       {"memory_bytes", gpu.memory_bytes},
                       {"clock_mhz", gpu.clock_mhz},
                       {"memory_clock_mhz", gpu.memory_clock_mhz}};
    if (const Result<> usable = check_gpu(gpu); !usable) one["problem"] = usable.error().message;
    all["gpus"].push_back(std::move(one));
  }
  return all;
}

void print_devices(const Devices& found, bool only_cpu) {
  fmt::print("program  sortie-train {}, build {}\n", SORTIE_VERSION,
             found.build.substr(0, kShownBuild));
  fmt::print("cpu      {} ({})\n", found.cpu.model, found.cpu.isa);
  if (only_cpu) return;
  const DeviceVersions versions = found.module ? found.module->versions() : DeviceVersions();
  fmt::print("driver   {}{}\n", found.driver.empty() ? "unknown" : found.driver,
             versions.driver_cuda.empty() ? "" : ", supports CUDA " + versions.driver_cuda);
  if (found.module) fmt::print("module   {}\n", found.module->libraries());
  if (!found.problem.empty()) fmt::print("gpus     none: {}\n", found.problem);
  for (std::size_t i = 0; i < found.gpus.size(); ++i) {
    const GpuFacts& gpu = found.gpus[i];
    const Result<> usable = check_gpu(gpu);
    fmt::print(
        "gpu {:<4} {}, compute capability {}.{}, {}, clocks of at most {} MHz{}{}\n", i, gpu.name,
        gpu.compute_capability / 10, gpu.compute_capability % 10, human_bytes(gpu.memory_bytes),
        gpu.clock_mhz,
        gpu.memory_clock_mhz > 0 ? fmt::format(" (memory {} MHz)", gpu.memory_clock_mhz) : "",
        usable ? "" : ": " + usable.error().message);
  }
}

Result<> show_devices(bool as_json, bool only_cpu) {
  SORTIE_ASSIGN_OR_RETURN(const Devices found, find_devices(only_cpu));
  if (as_json)
    fmt::print("{}\n", json_text(devices_json(found)));
  else
    print_devices(found, only_cpu);
  return {};
}

}  // namespace

void add_devices_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "devices", "GPUs that are visible here, their driver, and the CUDA libraries of this build");
  auto as_json = std::make_shared<bool>(false), only_cpu = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "As one JSON object");
  command->add_flag("--cpu", *only_cpu, "Only program and CPU; no GPU code is loaded");
  command->callback([as_json, only_cpu, &exit_code] {
    exit_code = report_error("devices", show_devices(*as_json, *only_cpu));
  });
}

}  // namespace sortie::trainer

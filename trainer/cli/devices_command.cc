#include "trainer/cli/devices_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/cli/report.h"
#include "trainer/tensor/context.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

Result<> show_devices(bool as_json) {
  const CpuFacts cpu = cpu_facts();
  nlohmann::ordered_json all = {{"schema", "sortie/devices/1"},
                                {"cpu", {{"model", cpu.model}, {"isa", cpu.isa}}},
                                {"libraries", nullptr},
                                {"gpus", nlohmann::ordered_json::array()}};
  if (!as_json) fmt::print("cpu    {} ({})\n", cpu.model, cpu.isa);
  const auto module = load_cuda_module();
  if (module) {
    all["libraries"] = (*module)->libraries();
    if (!as_json) fmt::print("build  {}\n", (*module)->libraries());
  }
  const auto gpus = module ? (*module)->gpus() : std::unexpected(module.error());
  if (!gpus) {
    all["problem"] = gpus.error().message;
    if (!as_json) fmt::print("gpus   none: {}\n", gpus.error().message);
  } else {
    for (std::size_t i = 0; i < gpus->size(); ++i) {
      const GpuFacts& gpu = (*gpus)[i];
      all["gpus"].push_back({{"name", gpu.name},
                             {"compute_capability", gpu.compute_capability},
                             {"multiprocessors", gpu.multiprocessors},
                             {"memory_bytes", gpu.memory_bytes}});
      if (!as_json)
        fmt::print("gpu {:<2} {}, compute capability {}.{}, {}\n", i, gpu.name,
                   gpu.compute_capability / 10, gpu.compute_capability % 10,
                   human_bytes(gpu.memory_bytes));
    }
  }
  if (as_json) fmt::print("{}\n", all.dump());
  return {};
}

}  // namespace

void add_devices_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "devices", "GPUs that are visible here, and the CUDA libraries of this build");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "As one JSON object");
  command->callback(
      [as_json, &exit_code] { exit_code = report_error("devices", show_devices(*as_json)); });
}

}  // namespace sortie::trainer

#include "trainer/cli/load_checkpoint.h"

#include <chrono>

#include "common/base/log.h"
#include "trainer/cli/progress.h"

namespace sortie::trainer {

Result<std::unique_ptr<LoadedModel>> load_checkpoint(std::string_view verb,
                                                     const std::filesystem::path& place,
                                                     int threads, const std::string& precision,
                                                     const std::string& device, CheckDepth depth) {
  SORTIE_ASSIGN_OR_RETURN(const ComputeDevice compute, choose_device_of_verb(device));
  const auto begin = std::chrono::steady_clock::now();
  ProgressLine line{std::string(verb)};
  auto loaded = load_model(place, threads, precision, compute.device, line.callback(), depth);
  line.finish();
  if (!loaded) return loaded;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  log::debug("{}: step {}, {} parameters, {}, {} threads, loaded in {:.1f} s",
             (*loaded)->folder.string(), (*loaded)->step, (*loaded)->store.parameter_elements(),
             compute.name(), threads, passed.count());
  return loaded;
}

Result<ComputeDevice> choose_device_of_verb(const std::string& wanted) {
  return choose_device(wanted, DevicePlace{}, "--device");
}

void add_device_option(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "Device: cuda = the first GPU of CUDA_VISIBLE_DEVICES; auto = cuda if there is a "
                  "GPU, else cpu")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

}  // namespace sortie::trainer

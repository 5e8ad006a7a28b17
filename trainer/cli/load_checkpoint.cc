#include "trainer/cli/load_checkpoint.h"

#include <chrono>

#include "common/base/log.h"
#include "trainer/cli/progress.h"

namespace sortie::trainer {

Result<std::unique_ptr<LoadedModel>> load_checkpoint(std::string_view verb,
                                                     const std::filesystem::path& place,
                                                     int threads, const std::string& precision) {
  const auto begin = std::chrono::steady_clock::now();
  ProgressLine line{std::string(verb)};
  auto loaded = load_model(place, threads, precision, Device{}, line.callback());
  line.finish();
  if (!loaded) return loaded;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  log::debug("{}: step {}, {} parameters, {} threads, loaded in {:.1f} s",
             (*loaded)->folder.string(), (*loaded)->step, (*loaded)->store.parameter_elements(),
             threads, passed.count());
  return loaded;
}

}  // namespace sortie::trainer

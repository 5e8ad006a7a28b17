#include "trainer/cli/output_options.h"

#include "common/base/log.h"

namespace sortie::trainer {

void init_log(std::string_view log_level) {
  const OutputOptions& options = output_options();
  log::init("sortie-train", options.verbose ? log::Level::debug
                            : options.quiet ? log::Level::error
                                            : log::level_named(log_level));
}

}  // namespace sortie::trainer

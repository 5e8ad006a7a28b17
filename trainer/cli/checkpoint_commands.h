// `sortie-train checkpoint ls | verify`.
#pragma once

#include <CLI/App.hpp>

namespace sortie::trainer {

/// Adds the verb `checkpoint`; see add_data_commands for `exit_code`.
void add_checkpoint_commands(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

// `sortie-train data build | inspect | train-tokenizer`.
#pragma once

#include <CLI/App.hpp>

namespace sortie::trainer {

/// Adds the verb `data`. A command that ran stores its exit code (base/exit_code.h) in `exit_code`,
/// which must outlive the parsing.
void add_data_commands(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

// sortie-train import, export, probe.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_hf_commands(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

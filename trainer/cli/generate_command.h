// `sortie-train generate`: generates text with the model of a checkpoint.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_generate_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

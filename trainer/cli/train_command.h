// `sortie-train train`: one rank of a training job.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_train_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

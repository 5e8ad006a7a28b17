// `sortie-train eval`: how well the model of a checkpoint predicts texts and answers.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_eval_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

// `sortie-train eval`: scores the model of a checkpoint on texts and on multiple-choice questions.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_eval_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

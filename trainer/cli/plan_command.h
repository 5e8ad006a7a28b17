// `sortie-train plan`: parameters, operations and memory of a rank of a job, without training.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_plan_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

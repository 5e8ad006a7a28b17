// sortie-train bench step.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_bench_step(CLI::App& bench, int& exit_code);

}  // namespace sortie::trainer

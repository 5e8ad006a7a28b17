// sortie-train bench comm.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_bench_comm(CLI::App& bench, int& exit_code);

}  // namespace sortie::trainer

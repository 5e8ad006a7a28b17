// `sortie-train bench`: collectives over all ranks of a job; products and copies of one rank.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_bench_commands(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

// `sortie-train merge-lora`: plain weights from a checkpoint with low-rank updates.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_merge_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

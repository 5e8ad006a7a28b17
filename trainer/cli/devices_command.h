// `sortie-train devices`: what this machine's processes can compute on.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_devices_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

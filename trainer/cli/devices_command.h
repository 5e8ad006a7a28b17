// `sortie-train devices`: lists the devices on which processes of this machine can compute.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

void add_devices_command(CLI::App& app, int& exit_code);

}  // namespace sortie::trainer

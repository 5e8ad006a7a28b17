// `sortie image push`: an image of this machine to hosts, from the command line to the exit code.
#pragma once

#include <string>

#include "launcher/copy/tree_upload.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct ImagePushOptions {
  JobOptions job;      // which hosts, and how they are reached
  std::string image;   // as the engine here knows it
  std::string engine;  // of the hosts; empty = the config's, else docker
  std::string from;    // of this machine; empty = the same
  RelayMode relay = RelayMode::automatic;
  bool json = false;
};

int push_image(const ImagePushOptions& options);

}  // namespace sortie::launcher

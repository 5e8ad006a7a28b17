// `sortie image push`: copies a container image from this machine to hosts.
#pragma once

#include <string>

#include "launcher/copy/tree_upload.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct ImagePushOptions {
  JobOptions job;      // selects hosts and how to reach them
  std::string image;   // name in the engine of this machine
  std::string engine;  // engine of the hosts; empty = that of the config, else docker
  std::string from;    // engine of this machine; empty = the same
  RelayMode relay = RelayMode::automatic;
  bool json = false;
};

/// The folder of a host's archive, below its home folder. Hosts may share a home folder, and each
/// removes its archive once it is loaded, so each has a folder of its own.
std::string image_folder(const std::string& host);

int push_image(const ImagePushOptions& options);

}  // namespace sortie::launcher

// The result of `sortie image push`, as text and as JSON (schema sortie/image_push/1).
#pragma once

#include <string>
#include <vector>

#include "launcher/copy/host_crew.h"

namespace sortie::launcher {

/// The result for one host, in addition to HostResult.
struct PushOutcome {
  bool present = false;  // the host already had the image
  std::size_t layers_there = 0;
  std::string image_id;
};

struct PushReport {
  const std::string& image;
  const std::string& image_id;
  double seconds = 0;
  const std::vector<HostResult>& results;
  const std::vector<PushOutcome>& outcomes;
};

/// Empty if no host has the image.
std::string image_text(const PushReport& report);
std::string image_json(const PushReport& report);

}  // namespace sortie::launcher

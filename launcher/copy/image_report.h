// What `sortie image push` shows: its progress, and its result as text and as JSON (schema
// sortie/image_push/1).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/copy/host_crew.h"
#include "launcher/copy/local_tree.h"

namespace sortie::launcher {

/// How far one archive is: hosts that lack the same layers share one.
struct ArchiveProgress {
  std::uint64_t cut = 0, to_cut = 0;  // bytes written of the copy without layers; 0 = no copy
  ReadProgress reading = {};
  bool is_sent = false;                // it is on the way to hosts
  std::uint64_t done = 0, wanted = 0;  // bytes of what these hosts lack
};

/// What `image push` shows after the image is saved: the copying and reading of archives, until the
/// first is sent; the bytes that hosts have received; how many of them load the image.
Progress image_progress(std::span<const ArchiveProgress> archives, std::size_t hosts,
                        std::size_t loading);

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

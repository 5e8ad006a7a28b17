// XIDs: the error codes of NVIDIA's driver, with the meaning of each for a job. Based on NVIDIA's
// catalogue of XIDs. Where that is ambiguous, a code leads to a restart, never to the loss of a
// host.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/health/class.h"

namespace sortie::health {

struct Xid {
  std::uint16_t first, last;  // codes
  std::string_view name;
  Class kind;
  Action action;
  Remedy remedy;
  /// The code says that work was aborted, but not why: another XID of the same GPU within
  /// kGroupSeconds is the cause.
  bool inherits = false;
};

/// XIDs of one GPU within this time are one incident.
inline constexpr double kGroupSeconds = 10;

/// The entry of a code. For an unknown code: class info, action watch, so it explains no failure.
const Xid& xid(int code);

}  // namespace sortie::health

// XIDs: the error codes of NVIDIA's driver, with what each one means for a job. After NVIDIA's
// catalogue of XIDs; where that leaves a choice, so that a doubtful code costs a restart and never
// a host.
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
  /// Says that work was cut off, not by what: another XID of the same GPU within kGroupSeconds is
  /// the cause.
  bool inherits = false;
};

/// XIDs of one GPU within so many seconds are one incident.
inline constexpr double kGroupSeconds = 10;

/// Of a code that nobody knows: an entry of class info that is watched, never evidence.
const Xid& xid(int code);

}  // namespace sortie::health

// Interprets findings: class, action, text, and a command for the administrator. One function for
// all kinds; xid.h has the table of XIDs.
#pragma once

#include <string>
#include <string_view>

#include "common/health/class.h"
#include "common/health/finding.h"

namespace sortie::health {

struct Judgement {
  Class kind = Class::info;
  Action action = Action::ignore;
  Remedy remedy = Remedy::none;
  std::string what;       // "XID 79: the GPU has fallen off the bus"
  bool inherits = false;  // another finding about the same device within kGroupSeconds is the cause
  /// Whether this explains the failure of a job on this host shortly afterwards.
  bool explains() const {
    return (action == Action::restart || action == Action::cordon) && kind >= Class::link;
  }
};

/// An action that the driver requests (Finding::recovery) takes precedence over the table.
Judgement judge(const Finding& finding);

/// "GPU 3 (0000:3b:00.0)", "eth0"; empty for the host as a whole.
std::string device_text(const Finding& finding);

/// A command for the administrator; "" if there is none. The caller must have checked the grammar
/// of `host`. The command contains the device only if that is a PCI address or a plain word, and no
/// other text from the host.
std::string remedy_command(Remedy remedy, std::string_view host, const Finding& finding);

}  // namespace sortie::health

// What a finding means: class, action, words and the command for a person. One function for all
// kinds; xid.h has the table of XIDs.
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
  /// Whether a job that failed on this host shortly after has its reason in this.
  bool explains() const {
    return (action == Action::restart || action == Action::cordon) && kind >= Class::link;
  }
};

/// What the driver itself asks for (Finding::recovery) comes before the table.
Judgement judge(const Finding& finding);

/// "GPU 3 (0000:3b:00.0)", "eth0"; empty for the host as a whole.
std::string device_text(const Finding& finding);

/// The command that a person may run, "" where there is none. `host` and the device have their
/// grammar checked by the caller: nothing else of a host's words gets into it.
std::string remedy_command(Remedy remedy, std::string_view host, const Finding& finding);

}  // namespace sortie::health

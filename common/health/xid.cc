#include "common/health/xid.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace sortie::health {
namespace {

using enum Class;
using enum Action;
using enum Remedy;

// clang-format off
/// In ascending order of codes.
constexpr Xid kXids[] = {
    {8, 8, "the GPU stopped working on a channel", app, restart, check_program},
    {11, 11, "broken command buffer", app, restart, check_program},
    {13, 13, "exception of the graphics engine (bad access, failed assertion)", app, restart, check_program},
    {25, 25, "broken command buffer", app, restart, check_program},
    {31, 31, "memory page fault (illegal address)", app, restart, check_program},
    {32, 32, "broken command buffer, or bad data on its way to the GPU", app, restart, check_program},
    {37, 37, "notice of the driver", info, ignore, none},
    {38, 38, "watchdog of the GPU's front end", driver, restart, reset_gpu},
    {39, 41, "error of a copy engine", driver, restart, reset_gpu},
    {43, 43, "a channel was reset", app, restart, check_program, true},
    {44, 44, "notice of the driver", info, ignore, none},
    {45, 45, "work was removed after another error", consequence, watch, none, true},
    {46, 46, "the GPU stopped working", hardware, cordon, reset_gpu},
    {48, 48, "uncorrectable memory error (double bit)", hardware, cordon, reset_gpu},
    {54, 54, "auxiliary power is not connected", hardware, cordon, inspect},
    {60, 60, "error of a video engine", app, restart, check_program},
    {62, 62, "the power management unit halted", hardware, cordon, reset_gpu},
    {63, 63, "a memory row was remapped", hardware, drain, reset_gpu},
    {64, 64, "a memory row could not be remapped", hardware, cordon, reset_gpu},
    {66, 67, "notice of the driver", info, ignore, none},
    {68, 69, "error of a video or class engine", app, restart, check_program},
    {70, 72, "error of a copy engine", driver, restart, reset_gpu},
    {74, 74, "NVLink error", link, restart, nvlink},
    {75, 77, "error of a copy engine", driver, restart, reset_gpu},
    {78, 78, "a virtual GPU could not start", driver, watch, software},
    {79, 79, "the GPU has fallen off the bus", hardware, cordon, reboot},
    {80, 80, "bad data on its way to the GPU", app, restart, check_program},
    {82, 84, "error of a video engine", app, restart, check_program},
    {85, 85, "error of a copy engine", driver, restart, reset_gpu},
    {86, 86, "error of a video engine", app, restart, check_program},
    {88, 89, "error of a video engine", app, restart, check_program},
    {92, 92, "many corrected memory errors (single bit)", hardware, watch, none},
    {93, 93, "notice of the driver", info, ignore, none},
    {94, 94, "contained memory error", hardware, restart, reset_gpu},
    {95, 95, "uncontained memory error", hardware, cordon, reset_gpu},
    {96, 105, "error of a video engine", app, restart, check_program},
    {106, 107, "test message of the driver", info, ignore, none},
    {109, 109, "a context switch took too long", driver, restart, reset_gpu},
    {110, 110, "security fault", hardware, cordon, reset_gpu},
    {119, 119, "the GPU's system processor did not answer", driver, cordon, reset_gpu},
    {120, 120, "error of the GPU's system processor", driver, cordon, reset_gpu},
    {121, 121, "link between CPU and GPU: corrected error", link, watch, none},
    {126, 135, "error of a copy engine", driver, restart, reset_gpu},
    {136, 136, "a link could not be trained", link, cordon, reset_gpu},
    {137, 137, "access to a peer over NVLink was refused", app, restart, check_program},
    {139, 139, "error of a video engine", app, restart, check_program},
    {140, 140, "unrecovered memory error", hardware, cordon, reset_gpu},
    {141, 141, "notice of the driver", info, ignore, none},
    {142, 142, "error of a video encoder", info, ignore, none},
    {143, 143, "the GPU could not be initialized", hardware, cordon, reset_gpu},
    {144, 150, "NVLink error", link, restart, nvlink},
    {151, 151, "keys for encrypted memory could not be rotated", driver, watch, software},
    {152, 153, "notice of the driver", info, ignore, none},
    {154, 154, "the driver asks for an action", info, watch, none},
    {155, 156, "NVLink error that needs a reset", link, cordon, reset_gpu},
    {157, 157, "a memory row could not be retired", hardware, watch, none},
    {158, 158, "fatal time-out of a link", link, cordon, reset_gpu},
    {159, 161, "notice about memory or links", hardware, watch, none},
    {162, 162, "notice about power", info, watch, none},
    {163, 163, "error of the GPU's firmware", driver, restart, reboot},
    {166, 167, "fatal time-out on the PCIe bus or in the firmware", driver, restart, reboot},
    {169, 169, "a microcontroller of the GPU halted", driver, restart, reboot},
    {171, 171, "detail of a memory error", info, watch, none},
    {172, 173, "fatal error of the link between CPU and GPU", driver, restart, reboot},
};
// clang-format on

static_assert(std::ranges::adjacent_find(kXids, [](const Xid& a, const Xid& b) {
                return a.first > a.last || a.last >= b.first;
              }) == std::end(kXids));

constexpr Xid kUnknown = {0,    0,     "a code that this version of Sortie does not know",
                          info, watch, none};

}  // namespace

const Xid& xid(int code) {
  const Xid* found = std::ranges::lower_bound(kXids, code, {}, &Xid::last);
  return found != std::end(kXids) && code >= found->first ? *found : kUnknown;
}

}  // namespace sortie::health

// What a forked process pays at its first steps, paid before: page faults.
#pragma once

namespace sortie::runner {

/// Brings in the pages of this program's code and data, of its stack and of its heap's next pieces.
/// After a fork each of them would be a fault (0.4 ms in all for a conversation). Memory of its own
/// grows by half a MiB. Where the kernel can not (before Linux 5.14), the faults come later.
void rehearse();

}  // namespace sortie::runner

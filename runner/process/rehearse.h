// What a forked process pays at its first steps, paid before: page faults.
#pragma once

namespace sortie::runner {

/// `data`: what little code it runs costs less in faults than pages of the whole program cost when
/// the process ends.
enum class Rehearsed { code_and_data, data };

/// Brings in the pages of this program's code and data, of its stack and of its heap's next pieces.
/// After a fork each of them would be a fault (0.4 ms in all for a conversation). Memory of its own
/// grows by half a MiB. Where the kernel can not (before Linux 5.14), the faults come later.
void rehearse(Rehearsed what);

}  // namespace sortie::runner

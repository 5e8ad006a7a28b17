// Takes page faults in advance that a forked process would take in its first steps.
#pragma once

namespace sortie::runner {

/// `data`: for a process that runs little code. Its faults cost less than unmapping the pages of
/// the whole program when it ends.
enum class Rehearsed { code_and_data, data };

/// Populates the pages of this program's code and data, of its stack, and of the heap that is
/// allocated next. After a fork each of them would cost a fault (0.4 ms in total for a
/// conversation). The process's own memory grows by half a MiB. If the kernel does not support this
/// (before Linux 5.14), the faults occur later.
void rehearse(Rehearsed what);

}  // namespace sortie::runner

// Explains forbidden accesses: the process ends with a line that says what was accessed.
#pragma once

namespace emulated_cuda {

/// Installs the SIGSEGV handler, unless it is installed already. Another handler may replace it
/// later.
void name_faults();

}  // namespace emulated_cuda

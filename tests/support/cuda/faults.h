// Accesses that an emulated GPU does not allow end the process with a line that says what they are.
#pragma once

namespace emulated_cuda {

/// From here on, for as long as no one else takes SIGSEGV over.
void name_faults();

}  // namespace emulated_cuda

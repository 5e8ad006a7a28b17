// The version of oneDNN, on which bits of results on CPUs depend.
#pragma once

#include <string>

namespace sortie::trainer::ops {

/// "MAJOR.MINOR.PATCH COMMIT" of the library in use; that which the program was compiled with may
/// differ.
std::string onednn_version();

}  // namespace sortie::trainer::ops

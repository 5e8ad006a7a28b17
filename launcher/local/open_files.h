// Limit of open descriptors of this process, which needs two per host.
#pragma once

#include <optional>
#include <string>

namespace sortie::launcher {

/// Raises the soft limit to the hard limit. Idempotent.
void raise_open_file_limit();

/// The original soft limit of this process, for its children: programs that use select() must not
/// unexpectedly get descriptors above 1024. nullopt: the limit was not raised.
std::optional<unsigned long> original_open_file_limit();

}  // namespace sortie::launcher

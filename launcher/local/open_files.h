// How many descriptors this process may have: two per host add up.
#pragma once

#include <optional>
#include <string>

namespace sortie::launcher {

/// Raises the soft limit to the hard one. Idempotent.
void raise_open_file_limit();

/// The soft limit that this process was started with, for its children: programs that use select()
/// must not get descriptors beyond 1024 without having asked. nullopt: it was not raised.
std::optional<unsigned long> original_open_file_limit();

}  // namespace sortie::launcher
